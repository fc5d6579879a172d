"""What a launch writes: its tensors before and after, and how far two results of one differ.

An output that holds its result before a launch proves nothing: a config that does not write it
would look right. So outputs that may hold anything are filled before a launch: with a NaN if they
hold floating-point numbers, else with the original content of which some bits are flipped. What a
launch does not write keeps that.

Copies lie on the device, or on the host where that is full. Large tensors are looked at in pieces,
which need little memory beside them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..model.record import NO_MEMORY, NOT_COPYABLE
from ..system.background_threads import dropping_errors, let_signals_through
from ..triton_internals.identity import dtype_name
from .compile_ahead import is_out_of_memory

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PIECE = 2**20
"""Number of elements that are looked at together."""

MEMORY_SHARE = 0.5
"""Share of a device's or the host's free memory that copies may take."""

MOST_ON_HOST = 1 << 32
"""Largest copy on the host in bytes: each launch that is compared moves it back and forth."""

LEAST_SUMS = 64
"""Least number of sums that show that partial sums are right: one may agree by chance."""

SUMMING = 32
"""Bytes for each element of a tensor whose partial sums are added up."""

LACKS_MEMORY = f"{NO_MEMORY}: neither the device nor the host has any left for a copy"

TOLERANCES = {"float64": 1e-6, "float32": 1e-2, "float16": 2e-2, "bfloat16": 4e-2}
"""Largest difference by dtype, as a share of an element plus the scale of its tensor.

Configs differ in the order of their sums and in what passes through TF32; wrong ones differ by
whole terms.
"""

LOW_PRECISION = 0.25
"""The same for floating-point types of 8 bits and less."""

ROUNDINGS = 4
"""Roundings of an element that is updated in place, as by atomic additions in any order."""

SAMPLED_CHANGES = 4096
"""Elements of a piece, or up to twice as many, of which the scale of its changes is taken."""

MEDIANS = 8.0
"""Largest scale of a tensor in medians of its elements, so that outliers do not hide the others."""

FILL_RATIO = 4096.0
"""Least ratio to the other elements of a value that masks or pads, such as -1e4 in logits."""

FEW = 1e-5
"""Share of elements that may be off by what is small beside a tensor's large elements.

Where magnitudes differ by many powers of ten, some elements near 0 are sums of large terms.
"""

MOST_FEW = 15
"""Largest number of such elements: the rows of a tile, which is wrong as a whole, have more."""

SAMPLE = 2**20
"""Number of elements, evenly spaced, of which a tensor's scale is taken."""

_NANS = {
    "float64": 0x7FFA5A5A5A5A5A5A,
    "float32": 0x7FDA5A5A,
    "float16": 0x7EDA,
    "bfloat16": 0x7FDA,
    "float8_e4m3fn": -1,
    "float8_e5m2": -2,
    "float8_e4m3fnuz": -128,
    "float8_e5m2fnuz": -128,
}
"""A NaN by dtype, as an integer: where the type allows it, one that no computation yields."""

_FLIPS = {1: 0x5A, 2: 0x5A5A, 4: 0x5A5A5A5A, 8: 0x5A5A5A5A5A5A5A5A}
"""Bits to flip in an element of another dtype, by its size in bytes."""


def copyable_tensors(
    arguments: Mapping[str, Any], ignore: Collection[str]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors that can be copied, and why others cannot be, both by name.

    Parts of tuples have names such as `outs[0]`. Tensors without elements, and those that are to be
    ignored, are left out.
    """
    import torch

    tensors: dict[str, Tensor] = {}
    reasons: dict[str, str] = {}
    for name, tensor in _named_tensors(arguments):
        if name.partition("[")[0] in ignore:
            continue
        try:
            if tensor.layout is not torch.strided or not tensor.numel():
                continue
            strides = zip(tensor.stride(), tensor.shape, strict=True)
            if any(stride <= 0 and size != 1 for stride, size in strides):
                raise ValueError("some of its elements share memory")
            # One element shows it of lazy views, and of classes that refuse torch's functions.
            element = tensor.detach()[(slice(0, 1),) * tensor.dim()]
            bool((_bits(element) == _bits(element.clone())).all())
            if element.is_floating_point():
                element.to(torch.float32)
        except Exception as error:
            let_signals_through(error)
            reason = (str(error).splitlines() or [""])[0][:300]
            reasons[name] = f"{NOT_COPYABLE}: {type(error).__name__}: {reason}"
        else:
            tensors[name] = tensor
    return tensors, reasons


def spans_of_arguments(arguments: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the addresses of each tensor's elements by name, from the first to behind the last."""
    spans = {}
    for name, tensor in _named_tensors(arguments):
        with dropping_errors():  # some refuse to say where they are
            start, length = tensor.data_ptr(), 1
            for stride, size in zip(tensor.stride(), tensor.shape, strict=True):
                length += stride * (size - 1)
            spans[name] = start, start + length * tensor.element_size()
    return spans


def _named_tensors(values: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors among values by name, those behind tensor descriptors included."""
    import torch

    for name, value in values.items():
        if isinstance(value, (tuple, list)):
            for index, part in enumerate(value):
                yield from _named_tensors({f"{name}[{index}]": part})
            continue
        tensor = value if isinstance(value, torch.Tensor) else getattr(value, "base", value)
        if isinstance(tensor, torch.Tensor):
            yield name, tensor


@dataclass(eq=False)
class Output:
    """A tensor that a launch may write: what it holds before, and what is expected after it.

    Attributes:
        original: what `copy_of` has kept of what the program passed.
        may_be_filled: whether it may hold anything before a launch; once results are expected,
            whether the default's launch found it filled.
        is_visible: whether some element shows that the default writes it.
        holds_results: whether only a launch on the filled tensor shows that.
        held_zeros: whether the elements that the default writes held zeros, to which code may add.
    """

    tensor: Tensor
    original: Tensor
    may_be_filled: bool = False
    is_visible: bool = False
    holds_results: bool = False
    held_zeros: bool = True
    _expected: Tensor = field(init=False)
    _scale: Scale | None = field(default=None, init=False)
    _change: Scale | None = field(default=None, init=False)
    """The magnitudes of changes, where the default updates what it reads."""

    def restore(self, *, filled: bool = False) -> None:
        """Give the tensor its original content again, or else content that no launch computes."""
        import torch

        # Autograd does not see these writes, as it does not see a kernel's own.
        with torch.inference_mode(self.tensor.is_inference()), torch.no_grad():
            for part, before in _pieces(self.tensor.data, self.original):
                _bits(part).copy_(_fill_bits(before) if filled else _bits(before))

    def expect_present(self, was_filled: bool, *, is_updated: bool = False) -> bool:
        """Expect the present content after each launch; return whether there is memory for it.

        Args:
            was_filled: whether the launch found the tensor filled.
            is_updated: whether it computed the content from what the tensor held before.
        """
        import torch

        self.may_be_filled = was_filled
        is_changed, is_float = False, self.tensor.is_floating_point()
        changes: list[Tensor] = []
        for part, before in _pieces(self.tensor, self.original):
            written = _bits(part) != (_fill_bits(before) if was_filled else _bits(before))
            self.is_visible = self.is_visible or bool(written.any())
            is_changed = is_changed or bool((written & (_bits(part) != _bits(before))).any())
            if is_float and bool((written & (_bits(before) << 1 != 0)).any()):  # a zero has a sign
                self.held_zeros = False
            if is_float and is_updated and bool(written.any()):
                change = (part.double() - before.double())[written]
                changes.append(change[:: 1 + len(change) // SAMPLED_CHANGES])
        self.holds_results = self.is_visible and not is_changed
        self._change = scale_of(torch.cat(changes)) if changes else None
        expected = copy_of(self.tensor) if self.is_visible else self.original
        if expected is None:
            return False
        self._expected = expected
        return True

    def describe_difference(self, tolerance: float | None, was_filled: bool) -> str:
        """Describe how the present content differs from the expected one; empty if they agree.

        Partial sums agree if those of neighbouring blocks add up to those of larger ones. What is
        updated in place must change alike, too: a step of 1e-4 is less than any tolerance.

        Args:
            tolerance: the largest relative difference; None for that of the dtype.
            was_filled: whether the launch found the tensor filled.
        """
        if self._scale is None:
            self._scale = scale_of(self._expected)
        difference = describe_difference(self._parts(was_filled), self._scale, tolerance)
        if not difference and self._change is not None:
            changes = self._changes(self._scale.typical)
            difference = describe_difference(changes, self._change, tolerance)
            return difference and f"{difference} (of its changes)"
        if difference and was_filled and self.may_be_filled and (sums := self._sums(tolerance)):
            return describe_difference([sums], scale_of(sums[1]), tolerance)
        return difference

    def _changes(self, scale: float) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield by how much parts have changed, but for rounding, and by how much they should."""
        import torch

        for actual, expected, before in _pieces(self.tensor, self._expected, self.original):
            right, change = expected.double(), expected.double() - before.double()
            error = (actual.double() - right).nan_to_num(0.0)  # infinities agree
            rounding = ROUNDINGS * torch.finfo(actual.dtype).eps * (right.abs() + scale)
            error = error.sign() * (error.abs() - rounding).clamp(min=0)
            yield (change + error).to(actual.dtype), change.to(actual.dtype)

    def _sums(self, tolerance: float | None) -> tuple[Tensor, Tensor] | None:
        """Add up the partial sums of smaller blocks, in the present or in the expected content.

        Configs with blocks of different sizes write different numbers of partial sums, from the
        first on, and their caller adds up as many as `best_config` has blocks. A config that
        leaves out results is none of them: where both write, it writes the same as the default.
        One that normalizes fewer columns may write the same total, but no sums of neighbours.
        Where all slices are alike, nothing tells these kinds apart.

        Raises:
            torch.OutOfMemoryError: memory lacks for the sums.
        """
        import torch

        tensor, device = self.tensor.detach(), self.tensor.device
        for dim, size in enumerate(tensor.shape if tensor.is_floating_point() else ()):
            if tensor.numel() < LEAST_SUMS * size:
                continue
            line = tuple(slice(None) if at == dim else 0 for at in range(tensor.dim()))
            unwritten = _fill_bits(self.original[line].to(device))
            counts = [
                int((_bits(content[line].to(device)) != unwritten).sum())
                for content in (tensor, self._expected)
            ]
            if 0 in counts or counts[0] == counts[1]:  # as by most wrong configs
                continue
            if tensor.numel() * SUMMING > free_memory(device) * MEMORY_SHARE:
                raise torch.OutOfMemoryError(LACKS_MEMORY)
            contents = tensor, self._expected.to(device)
            unwritten = _fill_bits(self.original.to(device))
            if any(
                bool((_bits(content) != unwritten).narrow(dim, count, size - count).any())
                for content, count in zip(contents, counts, strict=True)
            ):
                continue
            least, most = sorted(counts)
            longer = contents[counts.index(most)]
            both = [content.narrow(dim, 0, least) for content in contents]
            neighbours = [longer.narrow(dim, start, most - 1) for start in (0, 1)]
            if all(
                describe_difference([(left, right)], scale_of(right), tolerance)
                for left, right in (both, neighbours)
            ):
                actual, wanted = (
                    _add_neighbours(content.narrow(dim, 0, count), dim, least)
                    for content, count in zip(contents, counts, strict=True)
                )
                return actual, wanted
        return None

    def _parts(self, was_filled: bool) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield parts of the present and of the expected content.

        What the default does not write is expected to be as before: another config may write what
        is there already, such as zeros in a padding.
        """
        import torch

        for actual, expected, before in _pieces(self.tensor, self._expected, self.original):
            if not self.may_be_filled:
                yield actual, expected
                continue
            held, filled = _bits(before), _fill_bits(before)
            unwritten, left = _bits(expected) == filled, (_bits(actual) == filled) & was_filled
            seen = torch.where(left & unwritten, held, _bits(actual))
            if expected.is_floating_point():  # where a NaN is expected, the filling's is no result
                missing = left & ~unwritten & expected.to(torch.float32).isnan()
                seen = torch.where(missing, 0, seen)
            wanted = torch.where(unwritten, held, _bits(expected))
            yield seen.view(actual.dtype), wanted.view(expected.dtype)


def load_comparison(arguments: Mapping[str, Any]) -> None:
    """Have PyTorch load the kernels that compare such tensors, as it does at their first launch."""
    for _, tensor in _named_tensors(arguments):
        if tensor.is_cuda:
            with dropping_errors():  # a comparison meets them too, if there is one
                compare_ones(tensor.dtype, tensor.device)


@cache
def compare_ones(dtype: torch.dtype, device: torch.device) -> str:
    """Compare a tensor with itself as a launch's output, and describe the difference."""
    import torch

    ones = torch.ones(2 * PIECE, dtype=dtype, device=device)
    copyable_tensors({"ones": ones}, ())
    output = Output(ones, ones.clone(), may_be_filled=True)
    output.restore(filled=True)
    ones.fill_(1)
    output.expect_present(was_filled=True)
    return output.describe_difference(None, was_filled=True)


def _add_neighbours(slices: Tensor, dim: int, count: int) -> Tensor:
    """Add up as many slices at a time as a larger block has smaller ones, which is a power of 2."""
    import torch

    together = 1 << (-(-slices.size(dim) // count) - 1).bit_length()
    groups = torch.arange(slices.size(dim), device=slices.device) // together
    sums = torch.zeros_like(slices.narrow(dim, 0, count), dtype=torch.float64)
    return sums.index_add(dim, groups, slices.double()).to(slices.dtype)


def _fill_bits(original: Tensor) -> Tensor:
    """Return the bits, as integers, of what a part is filled with."""
    import torch

    bits, nan = _bits(original), _NANS.get(dtype_name(original.dtype))
    return bits ^ _FLIPS[original.element_size()] if nan is None else torch.full_like(bits, nan)


def copy_of(tensor: Tensor, *, may_use_host: bool = True) -> Tensor | None:
    """Return a copy of a tensor, on the host where its device is full; None if that is, too."""
    import torch

    size = tensor.numel() * tensor.element_size()
    on_host = [torch.device("cpu")] if may_use_host and size <= MOST_ON_HOST else []
    for device in dict.fromkeys([tensor.device, *on_host]):
        if 2 * size > free_memory(device) * MEMORY_SHARE:
            continue
        try:
            copied = torch.empty_like(tensor.detach(), device=device, requires_grad=False)
            for part, source in _pieces(copied, tensor):
                part.copy_(source)
        except Exception as error:
            if not (is_out_of_memory(error) or "allocate memory" in str(error)):
                raise
        else:
            return copied
    return None


def free_memory(device: torch.device) -> float:
    """Return the memory of a device, or of the host, that is free for tensors, in bytes."""
    import torch

    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + unused)
    with suppress(OSError, LookupError, ValueError):  # not Linux
        available = Path("/proc/meminfo").read_text().partition("MemAvailable:")[2]
        return float(available.split()[0]) * 1024
    return float("inf")


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the same parts of tensors of one shape, all on the device of the first one."""
    first = tensors[0]
    longest = max(range(first.dim()), key=first.size, default=0)
    size = first.size(longest) if first.dim() else 1
    length = max(1, PIECE * size // first.numel())
    for start in range(0, size, length):
        parts = []
        for tensor in tensors:
            part = tensor.detach()
            if part.dim():
                part = part.narrow(longest, start, min(length, size - start))
            parts.append(part.to(first.device))
        yield tuple(parts)


def _bits(tensor: Tensor) -> Tensor:
    """Return a view of a tensor's bits as integers, unseen by autograd."""
    import torch

    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().view(integers[tensor.element_size()])


class Scale(NamedTuple):
    """Magnitudes of a tensor's elements, by which those near 0 are judged.

    Attributes:
        typical: the root mean square, but at most a few medians.
        large: the 99th percentile of those other than 0 and masks.
    """

    typical: float
    large: float


def describe_difference(
    parts: Iterable[tuple[Tensor, Tensor]], scale: Scale, tolerance: float | None = None
) -> str:
    """Describe how far a tensor is from the expected one; return an empty string if they agree.

    Integers and booleans must be equal. NaN and infinities must stand in the same places.

    Args:
        parts: the same parts of both, one after the other; one at least.
        scale: the expected tensor's, by `scale_of`.
        tolerance: the largest relative difference; None for that of the dtype.
    """
    import torch

    counts, errors, elements = [], [], 0
    for actual, expected in parts:
        elements += expected.numel()
        of_dtype = TOLERANCES.get(dtype_name(expected.dtype), LOW_PRECISION)
        allowed = of_dtype if tolerance is None else tolerance
        far, odd, error = _compare(actual, expected, scale.typical, allowed)
        counts.append(torch.stack([far.sum(), odd.sum()]))
        errors.append(error)
    unequal, odd_ones = torch.stack(counts).sum(0).tolist()
    if not unequal:
        return ""
    extent = f"differs in {unequal} of {elements} elements"
    if not expected.is_floating_point():
        return extent
    if odd_ones:
        return f"{extent}, {odd_ones} of them NaN or infinite on one side only"
    largest = float(torch.stack(errors).max())
    if unequal <= min(FEW * elements, MOST_FEW) and largest <= allowed * scale.large:
        return ""
    return f"{extent}, by up to {largest:.3g}; the tensor's scale is {scale.typical:.3g}"


def _compare(
    actual: Tensor, expected: Tensor, scale: float, tolerance: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return which elements differ, which by NaN or infinity, and by how much others do at most."""
    import torch

    if not expected.is_floating_point():
        unequal = _bits(actual) != _bits(expected)
        return unequal, unequal, unequal.any()
    wide = torch.float64 if expected.dtype == torch.float64 else torch.float32
    left, right = actual.to(wide), expected.to(wide)
    finite = torch.isfinite(right)
    odd = torch.where(
        finite, ~torch.isfinite(left), ~((left == right) | (left.isnan() & right.isnan()))
    )
    error = torch.where(finite & ~odd, (left - right).abs(), 0.0)
    magnitude = torch.where(finite, right.abs(), 0.0)
    # Two products: the sum of the largest numbers would be infinite.
    far = odd | (error > tolerance * magnitude + tolerance * scale)
    return far, odd, torch.where(far, error, 0.0).max()


def scale_of(tensor: Tensor) -> Scale:
    """Return the magnitudes of a tensor's elements, by which those near 0 are judged.

    The typical one is at most a few medians: one element of -1e9 must not hide that all others are
    wrong. It belongs to the tensor and not to the element, because an element near 0 may be a sum
    of large terms. Of other than floating-point tensors both are 0.
    """
    if not tensor.is_floating_point():
        return Scale(0.0, 0.0)
    sample = _sample(tensor)
    ordered = sample[sample > 0].sort().values
    if not ordered.numel():
        return Scale(0.0, 0.0)
    # Relative to about the largest, squares do not overflow. CUDA multiplies by the reciprocal,
    # which must be no subnormal number.
    unit = min(max(float(ordered[-1]), 1e-300), 1e300)
    squares = float((ordered / unit).square().sum())
    root_mean_square = unit * math.sqrt(squares / sample.numel())
    typical = min(root_mean_square, MEDIANS * _percentile(ordered, 50, least=0.25))
    return Scale(typical, _percentile(ordered, 99, least=0.005))


def _percentile(ordered: Tensor, percent: int, least: float) -> float:
    """Return a percentile, of the smaller numbers if a share at least is equal: a mask's value."""
    import torch

    value = ordered[(ordered.numel() - 1) * percent // 100]
    smaller = ordered[: int(torch.searchsorted(ordered, value))]
    is_frequent = int((ordered == value).sum()) >= least * ordered.numel()
    if is_frequent and 64 * smaller.numel() >= ordered.numel():
        median = smaller[(smaller.numel() - 1) // 2]
        if float(value) > FILL_RATIO * float(median):
            value = smaller[(smaller.numel() - 1) * percent // 100]
    return float(value)


def _sample(tensor: Tensor) -> Tensor:
    """Return finite magnitudes, evenly spaced, or those of one part if the spaced ones are 0."""
    import torch

    # By an odd step: an even one would meet few columns of rows whose length is a power of two.
    step = -(-tensor.numel() // SAMPLE) | 1
    start, spaced = 0, []
    for (part,) in _pieces(tensor):
        spaced.append(_finite_magnitudes(part.flatten()[start::step]))
        start = (start - part.numel()) % step
    sample = torch.cat(spaced)
    if not bool((sample > 0).any()):
        for (part,) in _pieces(tensor):
            magnitudes = _finite_magnitudes(part)
            if bool((magnitudes > 0).any()):
                return magnitudes
    return sample


def _finite_magnitudes(tensor: Tensor) -> Tensor:
    wide = tensor.double()
    return wide[wide.isfinite()].abs()
