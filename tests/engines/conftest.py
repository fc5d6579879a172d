"""vLLM on a machine without a GPU: it takes Triton, whose kernels are interpreted."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
import torch
from support.vllm_engine import config


@pytest.fixture
def import_engine(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Return a function that imports a module of vLLM's, on a pretended H200."""
    if torch.cuda.is_available():
        pytest.skip("the tensors are on the host")
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        # vLLM gives Triton up where it sees no driver, unless devices are hidden on purpose.
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    pytest.importorskip("vllm")
    platform = import_module("vllm.platforms").current_platform
    device = classmethod(lambda cls, device_id=0: "NVIDIA H200")
    monkeypatch.setattr(type(platform), "get_device_name", device)
    if not import_module("vllm.triton_utils").HAS_TRITON:
        pytest.skip("vLLM was imported without Triton")
    return import_module


@pytest.fixture
def backend() -> Any:
    """Return the backend as vLLM finds it."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    from dejavu_cache.engines.vllm.plugin import BACKEND, register

    register()
    assert AttentionBackendEnum.CUSTOM.get_path() == BACKEND
    return AttentionBackendEnum.CUSTOM.get_class()


@pytest.fixture
def make(backend: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a layer of the backend's, with settings of an engine."""

    def make(settings: Any = None, **options: Any) -> Any:
        monkeypatch.setattr(
            "dejavu_cache.engines.vllm.backend.get_current_vllm_config",
            lambda: settings or config(),
        )
        arguments = {"num_heads": 4, "head_size": 32, "scale": 32**-0.5, "num_kv_heads": 2}
        defaults = {"alibi_slopes": None, "sliding_window": None, "kv_cache_dtype": "auto"}
        return backend.get_impl_cls()(**{**arguments, **defaults, **options})

    return make
