"""Find what a launch writes, what is expected there, and what may stand there before.

An output that holds its result before a launch proves nothing: a config that does not write it
would look right. Two kinds of launches of the default config find out more.

*Which arguments are outputs?* Those that the default changes. If it changes nothing that can hold
NaN, there may be outputs that held their results already. They are told from inputs by a launch
after the last bits of all were changed: an input keeps the change, an output loses it.

If it changes something else that can hold NaN, no input is touched. An output that held its results
is found once a config changes it: then the default is asked about this one argument.

*Which outputs may hold NaN before a launch?* Those from which the default computes the same
results then. In comparisons they do, so that elements that a config does not write show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from .argument_snapshot import ArgumentSnapshot
from .argument_tensors import open_for_writes
from .probe_contents import (
    blank_elements,
    can_be_probed,
    checksums,
    choose,
    equal_bits,
    fill_blank,
    is_nudged,
    nudge,
)
from .tensor_comparison import describe_difference

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Blanks", "ExpectedResults"]

Blanks = Mapping[str, "Tensor"]
"""Masks of the elements to fill with NaN before a launch, by output."""

MOST_PROBES = 8
"""Limit of the arguments that are tried one by one: outputs, or small ones that may be outputs."""

NUDGES = 7
"""Number of different changes of the last bits; in bfloat16 the largest is by 5%."""

SMALL = 64
"""Number of elements up to which an argument is tried alone.

Results of inputs with other last bits may happen to be what a small output's own change made it.
"""


class ExpectedResults:
    """What counts as right: the outputs' content after a launch of the default config.

    Args:
        snapshot: the launch's arguments before it.
        run: computes the expected results; they stand while the context is open.
        tolerance_of: returns the largest relative difference in an output, or None for that of its
            dtype.

    Attributes:
        contents: the outputs' expected content, by name; empty if nothing can be compared.
        blanks: the contents from which to compare; outputs that are not named, and elements outside
            the masks, have their original content.
    """

    def __init__(
        self,
        snapshot: ArgumentSnapshot,
        run: Callable[[], AbstractContextManager[None]],
        tolerance_of: Callable[[str], float | None],
    ) -> None:
        """Launch nothing yet."""
        self._snapshot = snapshot
        self._run = run
        self._tolerance_of = tolerance_of
        self.contents: dict[str, Tensor] = {}
        self.blanks: Blanks = {}
        self._checksums: dict[str, Tensor] = {}
        """Checksums of the other arguments, of which some may be outputs."""

    def compute(self) -> None:
        """Launch what is needed; the arguments are left as the last launch left them."""
        snapshot = self._snapshot
        with self._run():
            changed = [name for name in snapshot.originals if snapshot.has_changed(name)]
            self.contents = {name: snapshot.tensors[name].detach().clone() for name in changed}
        unchanged_outputs = self._find_rewritten()
        if not changed:  # Integers cannot be asked; a config that changes them is wrong.
            unchanged_outputs += [
                name
                for name, original in snapshot.originals.items()
                if not original.is_floating_point()
            ]
        self.contents.update({name: snapshot.originals[name] for name in unchanged_outputs})
        self.blanks = self._find_blanks()
        self._checksums = {
            name: checksums(original)
            for name, original in snapshot.originals.items()
            if name not in self.contents and self._may_be_nudged(name)
        }

    def find_more_outputs(self) -> bool:
        """Return whether what the last launch changed has further outputs; expect their results.

        Arguments that the default config does not write, such as scratch memory, are none.
        """
        changed = list(filter(self._differs_from_sum, self._checksums))
        for name in changed:
            self._snapshot.restore()
            with open_for_writes(self._snapshot.tensors[name]) as tensor:
                nudge(tensor, 1)
            with self._run():
                is_output = not self._differs_from_sum(name)
            if is_output:
                self._snapshot.keep_present(name)
                self.contents[name] = self._snapshot.originals[name]
            del self._checksums[name]
        return any(name in self.contents for name in changed)

    def _differs_from_sum(self, name: str) -> bool:
        import torch

        return not torch.equal(checksums(self._snapshot.tensors[name]), self._checksums[name])

    def describe_difference(self, name: str, actual: Tensor, expected: Tensor) -> str:
        """Describe how far an output is from an expected content; empty if they agree."""
        return describe_difference(actual, expected, self._tolerance_of(name))

    def prepare_outputs(self, blanks: Blanks) -> None:
        """Fill the outputs before a launch: with NaN in the masks, elsewhere as they were."""
        for name in self.contents:
            self._snapshot.write(name, self._snapshot.originals[name])
        for name, mask in blanks.items():  # last: another output may share its memory
            with open_for_writes(self._snapshot.tensors[name]) as tensor:
                fill_blank(tensor, mask)

    def _find_rewritten(self) -> list[str]:
        """Return the outputs that held their results before the launch already.

        They are looked for only where no changed argument can show what a config computes, since
        another stream may read the inputs meanwhile.
        """
        tensors = self._snapshot.tensors
        if any(can_be_probed(tensors[name]) for name in self.contents):
            return []
        unchanged = [name for name in tensors if name not in self.contents]
        candidates = [name for name in unchanged if self._may_be_nudged(name)]
        rewritten = self._find_written(unchanged, candidates) if candidates else []
        small = [
            name for name in candidates if name not in rewritten and tensors[name].numel() <= SMALL
        ]
        for name in small[:MOST_PROBES]:
            rewritten += self._find_written([name], [name])
        return rewritten

    def _find_written(self, names: Sequence[str], nudged: Sequence[str]) -> list[str]:
        """Return which of some arguments a launch writes.

        Args:
            names: the arguments.
            nudged: arguments whose last bits are changed before the launch.
        """
        snapshot = self._snapshot
        numbers = {name: 1 + index % NUDGES for index, name in enumerate(nudged)}

        def is_written(name: str) -> bool:
            if name not in numbers:
                return snapshot.has_changed(name)
            return not is_nudged(snapshot.tensors[name], snapshot.originals[name], numbers[name])

        snapshot.restore()
        for name, number in numbers.items():
            with open_for_writes(snapshot.tensors[name]) as tensor:
                nudge(tensor, number)
        with self._run():
            written = list(filter(is_written, names))
        snapshot.restore()
        return written

    def _may_be_nudged(self, name: str) -> bool:
        import torch

        tensor = self._snapshot.tensors[name]
        is_weight = isinstance(tensor, torch.nn.Parameter)  # another thread may be reading it
        return not is_weight and can_be_probed(tensor) and not self._snapshot.may_share_memory(name)

    def _find_blanks(self) -> Blanks:
        """Return the outputs whose old content the results do not depend on, with their masks.

        If one output is also an input, its NaN spoils the others: then each is tried alone, and
        those whose NaN changes nothing are tried together.
        """
        outputs = [name for name in self.contents if can_be_probed(self._snapshot.tensors[name])]
        if not outputs:
            return {}
        blanks = self._try_blanks(outputs)
        if blanks is None and len(outputs) > 1:
            tries = {name: self._try_blanks([name]) for name in outputs[:MOST_PROBES]}
            independent = [name for name in tries if tries[name] is not None]
            if len(independent) == 1:
                blanks = tries[independent[0]]
            elif independent:
                blanks = self._try_blanks(independent)
        return blanks or {}

    def _try_blanks(self, names: Sequence[str]) -> Blanks | None:
        """Launch from outputs full of NaN; return their masks, or None if the results change.

        The masks leave out what the default has not written: another config may fill that with what
        is there already, such as zeros in a padding.
        """
        import torch

        snapshot = self._snapshot
        full = {name: torch.ones_like(snapshot.tensors[name], dtype=torch.bool) for name in names}
        self.prepare_outputs(full)
        blanks = {}
        with self._run():
            for name, expected in self.contents.items():
                actual = snapshot.tensors[name]
                if name in names:
                    kept = equal_bits(expected, snapshot.originals[name])
                    unwritten = kept & blank_elements(actual)
                    blanks[name] = ~unwritten
                    actual = choose(unwritten, expected, actual)
                if self.describe_difference(name, actual, expected):
                    return None
        return blanks
