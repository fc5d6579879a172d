"""FlashAttention 3, in vLLM's build, and FlashAttention 4, for comparison.

The environment variable FLASH_ATTENTION_3 is the path of its library, `.so` or `.so.xz`. Version 4
is there if its package, `flash-attn-4`, is.
"""

from __future__ import annotations

import importlib.util
import lzma
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dejavu_cache.attention.batch import Batch


def available() -> bool:
    """Load the library; return whether there is one."""
    library = os.environ.get("FLASH_ATTENTION_3")
    if not library:
        return False
    path = Path(library)
    if path.suffix == ".xz":
        unpacked = Path(tempfile.mkdtemp()) / "_vllm_fa3_C.abi3.so"
        unpacked.write_bytes(lzma.decompress(path.read_bytes()))
        path = unpacked
    torch.ops.load_library(str(path))
    return True


def has_version_4() -> bool:
    """Return whether the package of FlashAttention 4 is installed."""
    return (
        importlib.util.find_spec("flash_attn") is not None
        and importlib.util.find_spec("flash_attn.cute") is not None
    )


def run(batch: Batch, plan: torch.Tensor | None = None) -> torch.Tensor:
    """Compute a batch's attention, by what `plan` returned, if that was called."""
    b = batch
    torch.ops._vllm_fa3_C.fwd(
        b.q, b.k_cache, b.v_cache, None, None, None, b.out, b.cu_seqlens_q, None, None, None,
        b.seqused_k, b.max_seqlen_q, b.max_seqlen_k, b.block_table,
        None, None, None, None, None, None, None, None,
        b.softmax_scale, True, -1, -1, 0.0, True, plan, 0, None, 0, None, 1, 0, None,
    )  # fmt: skip
    return b.out


def plan(batch: Batch) -> torch.Tensor:
    """Return what the layers of a step share, as vLLM prepares it: the scheduler's metadata."""
    b = batch
    heads, size = b.q.shape[1:]
    made: torch.Tensor = torch.ops._vllm_fa3_C.get_scheduler_metadata(
        b.num_seqs, b.max_seqlen_q, b.max_seqlen_k, heads, b.kv_heads, size, size, b.q.dtype,
        b.seqused_k, b.cu_seqlens_q, None, None, None, None, b.k_cache.shape[1], 0, True, -1, -1,
        False, 0, None, 0,
    )  # fmt: skip
    return made


def version_4() -> Callable[[Batch], Any]:
    """Return the function that computes a batch's attention by version 4.

    It splits no keys on Hopper GPUs.
    """
    from flash_attn.cute.interface import _flash_attn_fwd

    def run_version_4(batch: Batch) -> Any:
        b = batch
        return _flash_attn_fwd(
            b.q, b.k_cache, b.v_cache, cu_seqlens_q=b.cu_seqlens_q, seqused_k=b.seqused_k,
            max_seqlen_q=b.max_seqlen_q, max_seqlen_k=b.max_seqlen_k, page_table=b.block_table,
            softmax_scale=b.softmax_scale, causal=True, num_splits=1, out=b.out,
        )  # fmt: skip

    return run_version_4
