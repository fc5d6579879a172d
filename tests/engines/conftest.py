"""vLLM on a machine without a GPU: it takes Triton, whose kernels are interpreted."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

import pytest
import torch


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
