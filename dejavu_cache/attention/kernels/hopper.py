"""Host side of the Hopper kernel: pages loaded by TMA, multiplied by wgmma, units from a schedule.

The paper's kernels leave the choice of instructions to Triton's compiler; `hopper_kernel` chooses
them itself. It covers the features that most models need; `suits` checks a batch for them.
"""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch

from ...triton_internals.binder import RepeatedLaunch
from ...triton_internals.environment import is_interpreting, pretended_device
from ...triton_internals.versions import COVERED
from ..batch import Batch, LayerTensors, NewTokens, Repeat
from ..schedule import COUNTERS, Schedule, make_schedule
from ..search_space import SHARED_MEMORY
from .kernel_call import KernelCall, num_sms, zeros

CONVERTED_DTYPES = torch.float8_e4m3fn, torch.float8_e5m2
"""Dtypes of caches whose tiles the kernel converts; `hopper_pages` says how."""


def suits(batch: Batch) -> bool:
    """Check a batch for a Hopper GPU, dtypes that it covers, TMA's alignment and plain features."""
    cache = batch.k_cache
    aligned = 16 // cache.element_size()
    return (
        batch.alibi_slopes is None
        and batch.q.element_size() == 2
        and (cache.dtype == batch.q.dtype or cache.dtype in CONVERTED_DTYPES)
        and batch.group <= 64
        and holds_words(batch.q)
        and holds_words(batch.out)
        and cache.shape[1] % 8 == 0
        and cache.stride(1) > 0
        and cache.stride(1) % aligned == 0
        and cache.stride(0) % cache.stride(1) == 0
        and (cache.stride(2) % cache.stride(1) == 0 or cache.stride(2) % aligned == 0)
        and has_no_gaps(cache, padded(cache.shape[3]))
        and cache.data_ptr() % 16 == 0
        and batch.v_cache.data_ptr() % 16 == 0
        and available(batch.q.device)
    )


def holds_words(tensor: torch.Tensor) -> bool:
    """Check that the rows of a tensor, [token, head], consist of words of two 2-byte elements."""
    return (
        tensor.data_ptr() % 4 == 0
        and tensor.shape[2] % 2 == 0
        and tensor.stride(0) % 2 == 0
        and tensor.stride(1) % 2 == 0
    )


def has_no_gaps(cache: torch.Tensor, head_padded: int) -> bool:
    """Check that what is loaded beyond a head's end is another head of the cache, or zeros.

    Zeros of the queries multiply it, and zero times NaN is not zero.

    Args:
        cache: keys.
        head_padded: elements of a head that are loaded.
    """
    _, _, heads, head = cache.shape
    heads_are_rows = cache.stride(2) % cache.stride(1) == 0
    return heads == 1 or heads_are_rows or cache.stride(2) == head or head_padded == head


@cache
def available(device: torch.device) -> bool:
    """Return whether the kernel runs on a device at all."""
    if pretended := pretended_device():
        return COVERED and pretended.arch == "sm_90"
    if not COVERED or device.type == "cpu" or not torch.cuda.is_available() or is_interpreting():
        return False
    return torch.version.hip is None and torch.cuda.get_device_capability(device.index)[0] == 9


SWIZZLED_ROW = 128
"""Bytes of a row of swizzled shared memory, which a box of TMA is as wide as, at most."""


def padded(head: int) -> int:
    """Return the head size of the kernel's tiles: a power of two, at least 64."""
    return max(64, 1 << (head - 1).bit_length())


def box_rows(page: int, tile: int) -> int:
    """Return the rows of a box of TMA, a power of two: at most 64, and none crosses page or tile."""
    return min(page & -page, tile, 64)


class Address(NamedTuple):
    """Memory of a tensor, without keeping it alive."""

    dtype: torch.dtype
    address: int

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return self.address


MOST_DESCRIPTORS = 4096
"""Limit of descriptors that are kept per shape."""


@lru_cache(maxsize=64)
def descriptors_like(*form: Any) -> dict[int, Any]:
    """Return the descriptors, by address, of the caches that have a form.

    Args:
        *form: shape, strides and dtype, `box_rows`, and whether descriptors are tensor maps, as a
            repeated launch takes them.
    """
    return {}


def descriptor_of(
    cache: torch.Tensor, box: int, like: dict[int, Any], launch: RepeatedLaunch, name: str
) -> Any:
    """Return the descriptor of a cache, made once for the same memory and shape.

    Args:
        cache: keys or values.
        box: of `box_rows`.
        like: `descriptors_like` it.
        launch: what takes the descriptor.
        name: its argument's name.
    """
    address = cache.data_ptr()
    descriptor = like.get(address)
    if descriptor is None:
        if len(like) >= MOST_DESCRIPTORS:
            like.clear()
        described = describe(cache, box)
        described.base = Address(cache.dtype, address)
        descriptor = like[address] = launch.expand(name, described)
    return descriptor


def describe(cache: torch.Tensor, box: int) -> Any:
    """Make TMA's descriptor of a cache: a matrix whose rows are one token's heads, or one of them.

    Its rows are `cache.stride(1)` elements apart. Rows that belong to no token of this cache, as in
    memory that layers or keys and values share, are never read.

    Args:
        cache: keys or values.
        box: of `box_rows`.
    """
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    blocks, page, heads, head = cache.shape
    of_blocks, of_slots, of_heads, _ = cache.stride()
    rows = (blocks - 1) * (of_blocks // of_slots) + page
    columns = head
    if of_heads % of_slots == 0:
        rows += (heads - 1) * (of_heads // of_slots)
    else:
        columns += (heads - 1) * of_heads
    size = cache.element_size()
    width = min(SWIZZLED_ROW, size * padded(head))
    layout = swizzled_layout(width, 8 * size)
    return TensorDescriptor(cache, [rows, columns], [of_slots, 1], [box, width // size], layout)


@cache
def swizzled_layout(width: int, bits: int) -> Any:
    """Return the layout of shared memory whose rows have `width` bytes, with elements of `bits`."""
    from triton.experimental.gluon.language import NVMMASharedLayout

    return NVMMASharedLayout(swizzle_byte_width=width, element_bitwidth=bits, rank=2)


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


CAST_STAGES = 2
"""Tiles of a float8 cache, of keys and of values each, that are ready to be multiplied."""


def tiles_of(pairs: int, halves: int, head_padded: int, casts: bool) -> tuple[int, int]:
    """Return the keys of a tile, and the tiles of keys, and of values, that are loaded ahead.

    Long prompts have large tiles, which take fewer instructions per key; in all other work the rest
    of a sequence's last tile and the first tile's latency cost more. Heads of 256 leave room for
    small ones where two programs share a multiprocessor, or a float8 cache has tiles of its own.
    Beside prompts, decoding with such heads takes up to a third less time in small tiles, of which
    more are on their way at once.

    Args:
        pairs: as in `Schedule`.
        halves: likewise.
        head_padded: the head size of the tiles.
        casts: as in `Batch`.
    """
    if head_padded > 128:
        tile = 32 if halves == 1 or casts or pairs == 1 else 64
    else:
        tile = 128 if pairs == 2 else 64
    # Bytes of the queries and the barriers, and of the tiles that are converted.
    used = 2 * head_padded * halves * 64 + 512
    if casts:
        used += 2 * head_padded * 2 * CAST_STAGES * tile
    each = 2 * head_padded * tile * (1 if casts else 2)
    # A multiprocessor has the memory of its programs, 2 / halves, and 1 KiB more for each.
    there = (SHARED_MEMORY[90] + 1024) * halves // 2 - 1024
    return tile, min((there - used) // each, 4)


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


def prepare(batch: Batch, schedule: Schedule, overlap: bool, new: NewTokens | None) -> KernelCall:
    """Prepare the launch of a batch that `suits`, with the programs that run at the same time.

    Args:
        batch: the call.
        schedule: that of the batch's lengths.
        overlap: as in `plan`.
        new: keys and values of new tokens to write into the cache, if the kernel `writes` them.
    """
    from .hopper_kernel import hopper_kernel

    overlap = overlap and (driver_version() or 0) >= CAPTURES_OVERLAP
    q, out, cache = batch.q, batch.out, batch.k_cache
    page, strides = cache.shape[1], cache.stride()
    counters = COUNTERS + 2 * schedule.blocks * batch.kv_heads
    heads_below = strides[2] % strides[1] == 0  # a head's pages are rows of their own
    head_padded = padded(q.shape[2])
    programs = 2 // schedule.halves
    tile, stages = tiles_of(schedule.pairs, schedule.halves, head_padded, batch.casts)
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
            "TILE": tile, "STAGES": stages,
            "launch_pdl": overlap, **({} if registers is None else {"maxnreg": registers}),
        },
    )  # fmt: skip


def run(batch: Batch) -> torch.Tensor:
    """Compute a batch's attention, and return its `out`.

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
    prepare(batch, make_schedule(batch, overlap=True), overlap=True, new=None)()
    return batch.out


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
        """Return whether the kernel writes new keys and values too, if `write_cache` can.

        In decoding, one unit computes all new tokens of a sequence's keys. A prompt's Q blocks
        would have to wait for each other.
        """
        return (
            self._schedule.pairs == 0
            and holds_words(new.keys)
            and holds_words(new.values)
            and new.keys.stride() == new.values.stride()
        )

    def launch(self, batch: Batch, new: NewTokens | None = None) -> Repeat | None:
        """Compute a layer, and return how to compute others of the same form.

        Args:
            batch: the call of the layer.
            new: its new tokens, if the launch is to write them.

        Raises:
            ValueError: `out` has rows at odd offsets.
        """
        if not holds_words(batch.out):
            raise ValueError("out: its rows are at odd offsets; expected even ones, as in q")
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
            descriptors_like(cache.shape, cache.stride(), cache.dtype, box, repeated.expands)
            for cache in (batch.k_cache, batch.v_cache)
        ]

        def repeat(layer: LayerTensors) -> bool:
            keys = descriptor_of(layer.k_cache, box, descriptors[0], repeated, "keys")
            values = descriptor_of(layer.v_cache, box, descriptors[1], repeated, "values")
            written = (layer.k_cache, layer.v_cache, *(layer.new or ())) if is_writing else ()
            return repeated(layer.out, keys, values, layer.q, *written, *(layer.scales or ()))

        return repeat
