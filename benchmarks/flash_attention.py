"""FlashAttention 3, in vLLM's build, for comparison.

The environment variable FLASH_ATTENTION_3 is the path of its library, `.so` or `.so.xz`.
"""

from __future__ import annotations

import lzma
import os
import tempfile
from pathlib import Path

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


def run(batch: Batch) -> torch.Tensor:
    """Compute a batch's attention."""
    b = batch
    torch.ops._vllm_fa3_C.fwd(
        b.q, b.k_cache, b.v_cache, None, None, None, b.out, b.cu_seqlens_q, None, None, None,
        b.seqused_k, b.max_seqlen_q, b.max_seqlen_k, b.block_table,
        None, None, None, None, None, None, None, None,
        b.softmax_scale, True, -1, -1, 0.0, True, None, 0, None, 0, None, 1, 0, None,
    )  # fmt: skip
    return b.out
