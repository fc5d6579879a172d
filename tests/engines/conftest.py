"""The attention backend as vLLM makes it."""

from __future__ import annotations

from typing import Any

import pytest
from support.vllm_engine import config

from dejavu_cache.attention.sweep_suite import KERNELS


@pytest.fixture
def one_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave each attention kernel one config, so that nothing is tuned."""
    for kernel in KERNELS.values():
        monkeypatch.setattr(kernel, "configs", [kernel.configs[0]])


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
