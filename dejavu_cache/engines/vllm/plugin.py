"""Plug-in that vLLM loads in every process of an engine."""

from __future__ import annotations

from ...settings import current_settings
from ...system.import_hooks import after_import
from ...system.notices import logger
from .worker_phases import follow_worker

__all__ = ["register"]

BACKEND = "dejavu_cache.engines.vllm.backend.DejavuAttentionBackend"


def register() -> None:
    """Offer the attention backend as `CUSTOM`; replace `triton.autotune` if it is wanted.

    vLLM calls this in each of its processes, through the entry-point group `vllm.general_plugins`.
    It replaces `triton.autotune` if `DEJAVU_CACHE_INSTALL=1`.
    """
    _register_backend()
    after_import("vllm.v1.worker.gpu_worker", follow_worker)
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
