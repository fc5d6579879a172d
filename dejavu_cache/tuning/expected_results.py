"""Find what a launch writes, what is expected there, and what may stand there before.

An output that holds its result before a launch proves nothing: a config that does not write it
would look right. So the default config is launched twice: on what the program passed, and with
contents in its outputs that no launch computes. What it does not write keeps those.

*Which arguments may be outputs?* Those that the author declared, or else those that the default's
code writes, or all where the code does not tell.

*Which of them are filled?* Those that the default's code writes and never reads, whatever their
dtype. Where the code does not tell, those that the first launch changed, unless they are integers:
an integer may be an index, an address, or a lock for which a kernel waits. Then the launch tells
whether results depend on what was filled. An author who declares outputs says that none does.

Tell how far two tensors differ, beyond what may differ between configs of one kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from ..triton_internals.identity import dtype_name
from .argument_snapshot import bits, pieces

if TYPE_CHECKING:
    from torch import Tensor
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager

from .argument_snapshot import (
    LACKS_MEMORY,
    ArgumentSnapshot,
    Filler,
    copy_of,
    find_filler,
    pieces_on_device,
)
from .compile_ahead import is_out_of_memory

if TYPE_CHECKING:
    from torch import Tensor

    from ..triton_internals.argument_access import Accesses

__all__ = [
    "TOLERANCES",
    "Output",
    "compare_tensors",
    "describe_difference",
    "find_outputs",
    "scale_of",
]


TOLERANCES = {"float64": 1e-6, "float32": 1e-2, "float16": 2e-2, "bfloat16": 4e-2}
"""Largest difference by dtype, as a share of an element plus the scale of its tensor.

Configs differ in the order of their sums and in what passes through TF32; wrong ones differ by
whole terms.
"""

LOW_PRECISION = 0.25
"""The same for floating-point types of 8 bits and less."""

MEDIANS = 8.0
"""Largest scale of a tensor in medians of its elements, so that outliers do not hide the others."""

FILL_RATIO = 4096.0
"""Least ratio to the other elements of a value that masks or pads, such as -1e4 in logits."""

SAMPLE = 2**20
"""Number of elements, evenly spaced, of which the median is taken."""


def compare_tensors(actual: Tensor, expected: Tensor, tolerance: float | None = None) -> str:
    """Describe how far a tensor is from the expected one; return an empty string if they agree.

    Integers and booleans must be equal. NaN and infinities must stand in the same places.

    Args:
        actual: a tensor of the shape and dtype of `expected`.
        expected: a tensor.
        tolerance: the largest relative difference; None for that of the dtype.
    """
    if not expected.numel():
        return ""
    scale = scale_of(lambda: (part for (part,) in pieces(expected)))
    return describe_difference(pieces(actual, expected), scale, tolerance)


def describe_difference(
    parts: Iterable[tuple[Tensor, Tensor]], scale: float, tolerance: float | None = None
) -> str:
    """Describe how far a tensor is from the expected one, as `compare_tensors` does.

    Args:
        parts: the same parts of both, one after the other; one at least.
        scale: the expected tensor's, by `scale_of`.
        tolerance: the largest relative difference; None for that of the dtype.
    """
    import torch

    counts, errors, elements = [], [], 0
    for actual, expected in parts:
        elements += expected.numel()
        far, odd, error = _compare(actual, expected, scale, tolerance)
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
    return f"{extent}, by up to {largest:.3g}; the tensor's scale is {scale:.3g}"


def _compare(
    actual: Tensor, expected: Tensor, scale: float, tolerance: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return which elements differ, which by NaN or infinity, and the largest other difference."""
    import torch

    if not expected.is_floating_point():
        unequal = bits(actual) != bits(expected)
        return unequal, unequal, unequal.any()
    if tolerance is None:
        tolerance = TOLERANCES.get(dtype_name(expected.dtype), LOW_PRECISION)
    left, right = _widen(actual), _widen(expected)
    finite = torch.isfinite(right)
    odd = torch.where(
        finite, ~torch.isfinite(left), ~((left == right) | (left.isnan() & right.isnan()))
    )
    error = torch.where(finite & ~odd, (left - right).abs(), 0.0)
    # Two products: the sum of the largest numbers would be infinite.
    far = odd | (error > tolerance * _magnitude(expected) + tolerance * scale)
    return far, odd, error.max()


def _widen(tensor: Tensor) -> Tensor:
    import torch

    return tensor.to(torch.float64 if tensor.dtype == torch.float64 else torch.float32)


def _magnitude(tensor: Tensor) -> Tensor:
    """Return the absolute values of a part, 0 where they are not finite."""
    import torch

    wide = _widen(tensor)
    return torch.where(torch.isfinite(wide), wide.abs(), 0.0)


def scale_of(parts: Callable[[], Iterator[Tensor]]) -> float:
    """Return the size of a tensor's typical elements, by which those near 0 are judged.

    It is the root mean square, but at most a few medians: one element of -1e9 must not hide
    that all others are wrong. It belongs to the tensor and not to the element, because an element
    near 0 may be a sum of large terms. Of other than floating-point tensors it is 0.

    Args:
        parts: iterates over the tensor's parts; called several times.
    """
    import torch

    first = next(parts())
    if not first.is_floating_point():
        return 0.0
    peaks = [
        torch.stack([part.max().double(), torch.isfinite(_widen(tensor)).sum().double()])
        for tensor in parts()
        for part in [_magnitude(tensor)]
    ]
    largest = torch.stack(peaks)
    peak, count = float(largest[:, 0].max()), float(largest[:, 1].sum())
    if not peak:
        return 0.0
    # Relative to about the largest, squares do not overflow. CUDA multiplies by the reciprocal,
    # which must be no subnormal number.
    bound = 1e300 if first.dtype == torch.float64 else 1e30
    unit = min(max(peak, 1 / bound), bound)
    squares = [(_magnitude(part) / unit).square().sum(dtype=torch.float64) for part in parts()]
    root_mean_square = unit * math.sqrt(float(torch.stack(squares).sum()) / count)
    return min(root_mean_square, MEDIANS * _median(parts))


def _median(parts: Callable[[], Iterator[Tensor]]) -> float:
    """Return the median of the elements that are neither 0 nor a fill value.

    Elements that are 0 are skipped, since results may be sparse.
    """
    import torch

    ordered = _sample(parts).sort().values
    median = _middle(ordered)
    # A mask may cover most elements: then the median is its value, exactly and many times.
    smaller = ordered[: int(torch.searchsorted(ordered, median))]
    fills = int((ordered == median).sum())
    is_fill = 4 * fills >= ordered.numel() and 64 * smaller.numel() >= ordered.numel()
    if is_fill and float(median) > FILL_RATIO * float(_middle(smaller)):
        median = _middle(smaller)
    return float(median)


def _sample(parts: Callable[[], Iterator[Tensor]]) -> Tensor:
    """Return magnitudes that are not 0, evenly spaced, or the first ones where those are few."""
    import torch

    step = -(-sum(part.numel() for part in parts()) // SAMPLE)
    start, spaced = 0, []
    for part in parts():
        magnitude = _magnitude(part).flatten()
        spaced.append(magnitude[start::step].clone())  # a view would keep the whole part
        start = (start - magnitude.numel()) % step
    sample = torch.cat(spaced)
    sample = sample[sample > 0]
    if sample.numel():
        return sample
    first = (_magnitude(part) for part in parts())
    return next(part[part > 0] for part in first if bool((part > 0).any()))[:SAMPLE]


def _middle(ordered: Tensor) -> Tensor:
    return ordered[(ordered.numel() - 1) // 2]


Run = Callable[[], AbstractContextManager[None]]
"""Computes the expected results, which stand while the context is open."""


class Output:
    """An argument that a launch writes: its content before and after, and what to fill it with.

    Attributes:
        filler: what it may hold before a launch; None if only what the program passed.
        is_visible: whether some element shows that the default writes it.
        needs_filling: whether only a launch on the filled output shows that.
    """

    def __init__(self, tensor: Tensor, original: Tensor, expected: Tensor) -> None:
        """Expect a content after each launch; the original itself if it is to stay."""
        self.filler: Filler | None = None
        self.is_visible = expected is not original
        self.needs_filling = False
        self._tensor = tensor
        self._original = original
        self._expected = expected
        self._scale: float | None = None

    def fill(self, filler: Filler) -> None:
        """Replace the content before a launch."""
        filler.write(self._tensor, self._original)

    def adopt(self, filler: Filler) -> None:
        """Expect what a launch of the default has made of a filled output, unless it is untouched.

        Without memory for that, the output is not filled.
        """
        parts = pieces_on_device(self._tensor, self._original)
        if all(bool(filler.holds(part, before).all()) for part, before in parts):
            return
        if self._expected is not self._original:
            for present, expected in pieces(self._tensor, self._expected):
                expected.copy_(present)
        elif (copied := copy_of(self._tensor)) is not None:
            self._expected = copied
        else:
            return
        self.needs_filling = not self.is_visible
        self.filler, self.is_visible = filler, True

    def describe_difference(self, tolerance: float | None, filler: Filler | None) -> str:
        """Describe how the present content differs from the expected one; empty if they agree.

        Args:
            tolerance: the largest relative difference; None for that of the dtype.
            filler: what it held before the launch; None for what the program passed.
        """
        if self._scale is None:
            self._scale = scale_of(lambda: (expected for _, expected in self._parts(None)))
        return describe_difference(self._parts(filler), self._scale, tolerance)

    def _parts(self, filler: Filler | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield parts of the present and of the expected content.

        What the default does not write is expected to be as before: another config may write what
        is there already, such as zeros in a padding.
        """
        for actual, expected, original in pieces_on_device(
            self._tensor, self._expected, self._original
        ):
            left = None if filler is None else filler.holds(actual, original)
            if self.filler is not None:
                unwritten = self.filler.holds(expected, original)
                expected = _choose(unwritten, original, expected)
                left = None if left is None else left & unwritten
            yield (actual if left is None else _choose(left, original, actual)), expected


def find_outputs(
    snapshot: ArgumentSnapshot,
    run: Run,
    accesses: Callable[[], Accesses | None],
    tolerance_of: Callable[[str], float | None],
    among: Collection[str] | None,
) -> dict[str, Output]:
    """Launch the default config as often as it takes to find its outputs.

    The arguments are left as the last launch left them. Outputs that cannot be copied are missing;
    `snapshot` says why.

    Args:
        snapshot: the launch's arguments before it; copies are made as far as memory reaches.
        run: launches the default.
        accesses: returns what the default's code does, as far as that is known by then.
        tolerance_of: returns the largest relative difference in an output, or None for that of its
            dtype.
        among: the arguments that the author declared as outputs, or None.
    """
    # Where neither code nor author tells, most candidates are inputs, and may be large.
    is_told = accesses() is not None or among is not None
    copied = {
        name
        for name in _candidates(snapshot, accesses(), among)
        if snapshot.copy(name, may_use_host=is_told)
    }
    with run():
        outputs = _read_outputs(snapshot, _candidates(snapshot, accesses(), among))
        for name in copied - outputs.keys():
            snapshot.forget(name)
        fillers = _find_fillers(snapshot, outputs, accesses(), among)
    if (known := accesses()) is not None and _start_elsewhere(snapshot, outputs, known):
        snapshot.begin()
        with run():
            outputs = _read_outputs(snapshot, outputs)
            fillers = _find_fillers(snapshot, outputs, known, among)
        for name in snapshot.starts.keys() & outputs.keys() if known.is_observed else ():
            outputs[name].is_visible = True  # it was written, and is right as it was
    if fillers:
        try:
            is_told = accesses() is not None or among is not None
            _fill(snapshot, run, tolerance_of, outputs, fillers, are_never_read=is_told)
        except Exception as error:  # what was computed is still compared
            if not is_out_of_memory(error):
                raise
    return outputs


def _candidates(
    snapshot: ArgumentSnapshot, accesses: Accesses | None, among: Collection[str] | None
) -> list[str]:
    """Return the tensors that may be outputs, the smallest first."""
    names = [
        name
        for name in snapshot.tensors
        if (accesses is None or name in accesses.written)
        and (among is None or name.partition("[")[0] in among)
    ]
    return sorted(names, key=lambda name: snapshot.tensors[name].numel())


def _read_outputs(snapshot: ArgumentSnapshot, names: Iterable[str]) -> dict[str, Output]:
    """Return outputs with the content that a launch of the default has left."""
    outputs = {}
    for name in names:
        if name in snapshot.originals:
            expected = _expected_content(snapshot, name)
            if expected is not None:
                outputs[name] = Output(snapshot.tensors[name], snapshot.before(name), expected)
    return outputs


def _start_elsewhere(
    snapshot: ArgumentSnapshot, outputs: Mapping[str, Output], accesses: Accesses
) -> bool:
    """Have outputs start from other content if they are updated in place and have not changed.

    They may hold zeros to which zeros are added. Integers are left as they are: a kernel that reads
    them may take them for an address.
    """
    for name, output in outputs.items():
        is_float = snapshot.tensors[name].is_floating_point()
        if is_float and not output.is_visible and name in accesses.read:
            snapshot.start_elsewhere(name)
    return bool(snapshot.starts)


def _expected_content(snapshot: ArgumentSnapshot, name: str) -> Tensor | None:
    """Return a tensor's content, the copy of the one before if it is the same, or None."""
    if not snapshot.has_changed(name):
        return snapshot.before(name)
    content = copy_of(snapshot.tensors[name])
    if content is None:
        snapshot.uncopied[name] = LACKS_MEMORY
    return content


def _find_fillers(
    snapshot: ArgumentSnapshot,
    outputs: Mapping[str, Output],
    accesses: Accesses | None,
    among: Collection[str] | None,
) -> dict[str, Filler]:
    """Return what to fill outputs with, whose results stand now."""
    fillers = {}
    for name, output in outputs.items():
        if accesses is not None:
            may_fill = name not in accesses.read and not snapshot.shares_memory(name)
        else:
            may_fill = output.is_visible or among is not None
        if may_fill:
            with_integers = accesses is not None or among is not None
            filler = find_filler(
                snapshot.tensors[name], snapshot.originals[name], with_integers=with_integers
            )
            if filler is not None:
                fillers[name] = filler
    return fillers


def _fill(
    snapshot: ArgumentSnapshot,
    run: Run,
    tolerance_of: Callable[[str], float | None],
    outputs: Mapping[str, Output],
    fillers: Mapping[str, Filler],
    *,
    are_never_read: bool,
) -> None:
    """Launch from filled outputs, and expect what becomes of those whose results are as before.

    Args:
        snapshot: the launch's arguments before it.
        run: launches the default.
        tolerance_of: returns the largest relative difference in an output.
        outputs: all outputs.
        fillers: the outputs to fill, and what with.
        are_never_read: whether it is known that no results depend on what the filled ones held, so
            that those of the others say nothing about them.
    """
    snapshot.begin()
    for name, filler in fillers.items():  # last: another output may share its memory
        outputs[name].fill(filler)
    with run():
        unlike = {
            name
            for name, output in outputs.items()
            if output.describe_difference(tolerance_of(name), fillers.get(name))
        }
        for name in fillers.keys() - unlike if are_never_read or not unlike else ():
            outputs[name].adopt(fillers[name])


def _choose(mask: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return the elements of `left` where a mask is true, and of `right` elsewhere."""
    import torch

    return torch.where(mask, bits(left), bits(right)).view(left.dtype)
