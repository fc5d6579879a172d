"""Find what a launch writes, what is expected there, and what may stand there before.

An output that holds its result before a launch proves nothing: a config that does not write it
would look right. So the default config is launched twice: on what the program passed, and with
contents in its outputs that no launch computes. What it does not write keeps those.

*Which arguments may be outputs?* Those that the author declared, or else those that the default's
code writes, or all where the code does not tell.

*Which of them are filled?* Those that the default's code writes and never reads, whatever their
dtype. Where the code does not tell, those that the first launch changed, unless they are integers:
an integer may be an index, an address, or a lock for which a kernel waits. An author who declares
an output says that it is none. Then the launch tells whether results depend on what was filled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from .argument_snapshot import LACKS_MEMORY, ArgumentSnapshot, copy_of
from .argument_tensors import bits, pieces, pieces_on_device
from .config_failures import is_out_of_memory
from .probe_contents import Filler, find_filler
from .tensor_comparison import describe_difference, scale_of

if TYPE_CHECKING:
    from torch import Tensor

    from ..triton_internals.argument_access import Accesses

__all__ = ["Output", "find_outputs"]

MOST_PROBES = 8
"""Limit of the outputs that are filled one by one where some depend on what others held."""

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
        trials = _Trials(snapshot, run, tolerance_of, outputs)
        try:
            trials.fill(fillers, are_never_read=accesses() is not None)
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


class _Trials:
    """Launches of the default from filled outputs, to see which results depend on that."""

    def __init__(
        self,
        snapshot: ArgumentSnapshot,
        run: Run,
        tolerance_of: Callable[[str], float | None],
        outputs: Mapping[str, Output],
    ) -> None:
        self._snapshot = snapshot
        self._run = run
        self._tolerance_of = tolerance_of
        self._outputs = outputs

    def fill(self, fillers: Mapping[str, Filler], *, are_never_read: bool) -> None:
        """Have outputs filled whose earlier content the default's results do not depend on.

        Args:
            fillers: the outputs to try, and what to fill them with.
            are_never_read: whether the code says that there is no such dependence.
        """
        unlike = self._launch(fillers, excused=self._outputs if are_never_read else ())
        if unlike and not are_never_read and len(fillers) > 1:
            unrepeated = self._launch({}) if unlike - fillers.keys() else set()
            for name in list(fillers)[:MOST_PROBES]:
                self._launch({name: fillers[name]}, excused=unrepeated)

    def _launch(self, fillers: Mapping[str, Filler], excused: Collection[str] = ()) -> set[str]:
        """Launch once, and expect what becomes of filled outputs if all results are as before.

        Args:
            fillers: the outputs to fill, and what with.
            excused: outputs whose other results say nothing about the filled ones.

        Returns:
            The outputs with other results than before.
        """
        self._snapshot.begin()
        for name, filler in fillers.items():  # last: another output may share its memory
            self._outputs[name].fill(filler)
        with self._run():
            unlike = {
                name
                for name, output in self._outputs.items()
                if output.describe_difference(self._tolerance_of(name), fillers.get(name))
            }
            if unlike <= {*excused}:
                for name in fillers.keys() - unlike:
                    self._outputs[name].adopt(fillers[name])
        return unlike


def _choose(mask: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return the elements of `left` where a mask is true, and of `right` elsewhere."""
    import torch

    return torch.where(mask, bits(left), bits(right)).view(left.dtype)
