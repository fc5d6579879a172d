"""Host side of the Hopper kernel: Q blocks with pages loaded by TMA and multiplied by wgmma.

The paper's kernels leave the choice of instructions to Triton's compiler; `hopper_kernel` chooses
them itself. It covers the features that most models need, and `suits` checks a batch for them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton

from ...triton_internals.environment import is_interpreting
from ..batch import Batch
from .kernel_call import KernelCall, num_sms, zeros

__all__ = ["COVERED", "available", "launch", "run", "suits"]


def suits(batch: Batch) -> bool:
    """Check a batch for a Hopper GPU, 2-byte elements, TMA's alignment and a plain causal mask."""
    cache, page = batch.k_cache, batch.k_cache.shape[1]
    plain = batch.window < 0 and not batch.softcap and batch.alibi_slopes is None
    return (
        plain
        and batch.q.element_size() == 2
        and cache.dtype == batch.q.dtype
        and batch.k_scale is None
        and batch.v_scale is None
        and batch.group <= 64
        and page >= 8
        and page & (page - 1) == 0
        and cache.stride(2) == batch.q.shape[2]
        and cache.stride(1) > 0
        and cache.stride(0) % cache.stride(1) == 0
        and cache.stride(1) % 8 == 0
        and cache.data_ptr() % 16 == 0
        and batch.v_cache.data_ptr() % 16 == 0
        and available(batch.q.device)
    )


COVERED = (3, 6) <= tuple(int(part) for part in triton.__version__.split(".")[:2]) <= (3, 8)
"""Whether the installed Triton has the version of Gluon that the kernel is written in."""


@cache
def available(device: torch.device) -> bool:
    """Return whether the kernel runs on a device at all."""
    if not COVERED or device.type != "cuda" or not torch.cuda.is_available() or is_interpreting():
        return False
    return torch.version.hip is None and torch.cuda.get_device_capability(device)[0] == 9


def launch(batch: Batch) -> KernelCall:
    """Prepare a launch with a program per pair of Q blocks and KV head, or one per SM.

    Raises:
        ValueError: the kernel does not cover the batch; `auto` would choose another one.
    """
    if not suits(batch):
        raise ValueError(
            "implementation: 'hopper' takes a Hopper GPU, Triton 3.6 to 3.8, bfloat16 or float16 "
            "in q and caches, a block_size that is a power of two from 8 on, and no window, "
            "softcap, ALiBi or scales; use 'auto'"
        )
    from .hopper_kernel import ROWS, hopper_kernel

    q, out, cache = batch.q, batch.out, batch.k_cache
    blocks = batch.q_blocks(2 * (ROWS.value // batch.group))
    pairs = blocks * batch.kv_heads
    return KernelCall(
        hopper_kernel,
        lambda meta: (min(pairs, num_sms(q.device)) if meta["PERSISTENT"] else pairs,),
        (
            out, out.stride(0), out.stride(1), _describe(cache), _describe(batch.v_cache),
            cache.stride(0) // cache.stride(1), blocks, zeros(q.device, 2),
            q, batch.cu_seqlens_q, batch.seqused_k, batch.block_table, batch.sinks,
            batch.softmax_scale, q.stride(0), q.stride(1), batch.block_table.stride(0),
            *batch.composition,
        ),
        {
            "KV_HEADS": batch.kv_heads, "GROUP": batch.group, "HEAD": q.shape[2],
            "HEAD_PADDED": max(64, batch.head_padded), "PAGE": cache.shape[1],
        },
    )  # fmt: skip


def run(batch: Batch) -> torch.Tensor:
    """Compute a batch's attention, and return its `out`."""
    launch(batch)()
    return batch.out


def _describe(cache: torch.Tensor) -> Any:
    """Make TMA's descriptor of a cache: a matrix [token slots, KV heads * head_size]."""
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from .hopper_kernel import COLUMNS

    blocks, page, heads, head = cache.shape
    slots = (blocks - 1) * (cache.stride(0) // cache.stride(1)) + page
    layout = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    box = [min(page, COLUMNS.value), COLUMNS.value]
    return TensorDescriptor(cache, [slots, heads * head], [cache.stride(1), 1], box, layout)
