"""Host side of the Hopper kernel: pages loaded by TMA, multiplied by wgmma, units from a schedule.

The paper's kernels leave the choice of instructions to Triton's compiler; `hopper_kernel` chooses
them itself. It covers the features that most models need; `hopper_coverage` checks a batch for
them.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from ..batch import Batch
from ..layer_tensors import LayerTensors
from ..layers import Repeat
from ..new_tokens import NewTokens
from ..schedule import COUNTERS, Schedule, make_schedule
from ..search_space import hopper_tile
from .hopper_coverage import holds_words, suits
from .hopper_descriptors import box_rows, describe, descriptor_of, descriptors_like, padded
from .kernel_call import KernelCall, num_sms, zeros

__all__ = ["HopperLayers", "launch", "run", "suits"]

CAPTURES_OVERLAP = 12030
"""Version of the driver from which a graph may contain launches that overlap: CUDA 12.3."""


@cache
def driver_version() -> int | None:
    """Return the version of CUDA that the driver supports, such as 12030; None without one."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        return None
    return version.value


REGISTERS = 512
"""Registers of a multiprocessor for each thread of a group of four warps that has it alone."""


def registers_per_thread(halves: int, casts: bool) -> int | None:
    """Return the registers that a program is compiled for; None for as many as there are.

    A program has a group of four warps for each half, for the producer, and for a float8 cache.

    Args:
        halves: as in `Schedule`.
        casts: as in `Batch`.
    """
    if halves == 2:
        return None
    groups = 3 if casts else 2
    return REGISTERS // (2 * groups) // 8 * 8


def launch(
    batch: Batch,
    schedule: Schedule | None = None,
    overlap: bool = True,
    new: NewTokens | None = None,
) -> KernelCall:
    """Prepare a launch with the programs that run at the same time.

    Args:
        batch: the call.
        schedule: that of the batch's lengths; made if None.
        overlap: as in `plan`.
        new: keys and values of new tokens to write into the cache, if the kernel `writes` them.

    Raises:
        ValueError: the kernel does not cover the batch; `auto` would choose another one.
    """
    if not suits(batch):
        raise ValueError(
            "implementation: 'hopper' takes a Hopper GPU, Triton 3.6 to 3.9, bfloat16 or float16 "
            "in q, the same or float8 in caches, an even head size, at most 64 query heads per KV "
            "head, rows of q and out at even offsets, caches aligned to 16 bytes, without gaps "
            "between heads whose size is not 64, 128 or 256, a block_size that is a multiple of 8, "
            "and no ALiBi; use 'auto'"
        )
    return prepare(batch, schedule or make_schedule(batch, overlap), overlap, new)


def prepare(batch: Batch, schedule: Schedule, overlap: bool, new: NewTokens | None) -> KernelCall:
    """Prepare the launch of a batch that is known to suit; the arguments are those of `launch`."""
    from .hopper_kernel import hopper_kernel

    overlap = overlap and (driver_version() or 0) >= CAPTURES_OVERLAP
    q, out, cache = batch.q, batch.out, batch.k_cache
    page, strides = cache.shape[1], cache.stride()
    counters = COUNTERS + 2 * schedule.blocks * batch.kv_heads
    heads_below = strides[2] % strides[1] == 0  # a head's pages are rows of their own
    head_padded = padded(q.shape[2])
    programs = 2 // schedule.halves
    tile = hopper_tile(schedule.pairs, schedule.halves, head_padded, batch.casts)
    box = box_rows(page, tile)
    registers = registers_per_thread(schedule.halves, batch.casts)
    return KernelCall(
        hopper_kernel,
        (programs * num_sms(q.device),),
        (
            out, out.stride(0), out.stride(1), describe(cache, box), describe(batch.v_cache, box),
            strides[0] // strides[1],
            strides[2] // strides[1] if heads_below else 0, 0 if heads_below else strides[2],
            *((None,) * 8 if new is None else (
                cache, batch.v_cache, strides[1], *new, *new.keys.stride()[:2]
            )),
            schedule.units, schedule.scratch,
            zeros(q.device, 1 << (counters - 1).bit_length()),  # kept for each size: a few sizes
            q, batch.block_table, batch.sinks, batch.k_scale, batch.v_scale,
            batch.softmax_scale, batch.softcap,
            q.stride(0), q.stride(1), batch.block_table.stride(0),
        ),
        {
            "PAIRS": schedule.pairs, "KV_HEADS": batch.kv_heads, "GROUP": batch.group,
            "HEAD": q.shape[2], "HEAD_PADDED": head_padded, "PAGE": page,
            "BOX": box, "WINDOW": batch.window, "SOFTCAP": batch.softcap > 0,
            "OVERLAP": overlap, "HALVES": schedule.halves, "CAST": batch.casts,
            "launch_pdl": overlap, **({} if registers is None else {"maxnreg": registers}),
        },
    )  # fmt: skip


def run(batch: Batch) -> torch.Tensor:
    """Compute a batch's attention, and return its `out`."""
    launch(batch)()
    return batch.out


def writes(schedule: Schedule, new: NewTokens) -> bool:
    """Check that the kernel can write new keys and values too, if `write_cache` can.

    In decoding, one unit computes all new tokens of a sequence's keys. A prompt's Q blocks would
    have to wait for each other.
    """
    return (
        schedule.pairs == 0
        and holds_words(new.keys)
        and holds_words(new.values)
        and new.keys.stride() == new.values.stride()
    )


class HopperLayers:
    """Launches in the layers of a step, which share a schedule and the form of their caches.

    Args:
        batch: the call of one layer.
        overlap: as in `plan`.
    """

    def __init__(self, batch: Batch, overlap: bool) -> None:
        """Schedule the batch."""
        self._schedule, self._overlap = make_schedule(batch, overlap), overlap

    def writes(self, batch: Batch, new: NewTokens) -> bool:
        """Return whether the kernel writes new tokens, as `Layers` says."""
        return writes(self._schedule, new)

    def launch(self, batch: Batch, new: NewTokens | None = None) -> Repeat | None:
        """Compute a layer; None for an `out` that the kernel cannot write, which is copied."""
        out = batch.out
        if not holds_words(out):
            # A copy and not an empty tensor: rows past the last sequence must keep their content.
            copy = out.clone(memory_format=torch.contiguous_format)
            self.launch(batch.with_out(copy), new)
            out.copy_(copy)
            return None
        call = prepare(batch, self._schedule, self._overlap, new)
        box, is_writing = call.kwargs["BOX"], new is not None
        names: tuple[str, ...] = ("out", "keys", "values", "q")
        if is_writing:
            names += ("k_cache", "v_cache", "new_keys", "new_values", "new_slots")
        if batch.scales is not None:
            names += ("k_scale", "v_scale")
        repeated = call.launch(names)
        if repeated is None:
            return None
        descriptors = [
            descriptors_like(cache, box, repeated.expands)
            for cache in (batch.k_cache, batch.v_cache)
        ]

        def repeat(layer: LayerTensors) -> bool:
            keys = descriptor_of(layer.k_cache, box, descriptors[0], repeated, "keys")
            values = descriptor_of(layer.v_cache, box, descriptors[1], repeated, "values")
            written = (layer.k_cache, layer.v_cache, *(layer.new or ())) if is_writing else ()
            return repeated(layer.out, keys, values, layer.q, *written, *(layer.scales or ()))

        return repeat
