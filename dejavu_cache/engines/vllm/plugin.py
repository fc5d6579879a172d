"""Plug-in that vLLM loads in every process of an engine."""

from __future__ import annotations

from ...settings import current_settings
from ...system.import_hooks import after_import
from ...system.notices import logger

__all__ = ["register"]

BACKEND = "dejavu_cache.engines.vllm.backend.DejavuAttentionBackend"


def register() -> None:
    """Offer the attention backend as `CUSTOM`; replace `triton.autotune` if it is wanted.

    vLLM calls this in each of its processes, through the entry-point group `vllm.general_plugins`.
    It replaces `triton.autotune` if `DEJAVU_CACHE_INSTALL=1`.
    """
    _register_backend()
    after_import("vllm.v1.worker.gpu_worker", _serve_after_warmup)
    if current_settings().install:
        from ...installation.autotune_replacement import install

        install()


def _register_backend() -> None:
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    except ImportError:  # an earlier vLLM, which takes no backends of others
        return
    custom = AttentionBackendEnum.CUSTOM
    if custom.is_overridden() and custom.get_path() != BACKEND:
        logger.warning(
            "vLLM's backend CUSTOM is %s already, so that dejavu-cache's attention is not offered",
            custom.get_path(),
        )
        return
    register_backend(custom, BACKEND)


def _serve_after_warmup(worker_module: object) -> None:
    """Begin to serve when a worker of vLLM has warmed up and captured its graphs."""
    worker = worker_module.Worker  # type: ignore[attr-defined]
    warm_up = worker.compile_or_warm_up_model

    def compile_or_warm_up_model(self: object) -> object:
        result = warm_up(self)
        from ...runtime.service_phase import serving

        serving()
        return result

    worker.compile_or_warm_up_model = compile_or_warm_up_model
