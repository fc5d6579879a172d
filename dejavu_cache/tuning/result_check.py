"""Compare what a config computes with what the default config computes, before it may win.

A config can be fast because it is wrong: a tile that does not divide the problem, or a race between
programs. Timing cannot tell, so the results of the prospective winner are compared with the
default's on the launch that is tuned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from .argument_tensors import (
    free_memory,
    is_comparable,
    may_overlap,
    named_tensors,
    open_for_writes,
    size_in_bytes,
)
from .config_failures import is_out_of_memory
from .probe_contents import (
    blank_elements,
    can_be_probed,
    choose,
    equal_bits,
    fill_blank,
    have_same_bits,
    is_nudged,
    nudge,
)
from .tensor_comparison import describe_difference

__all__ = ["CheckOptions", "ResultChecker", "Verdict"]

MEMORY_SHARE = 0.5
"""Share of the device's free memory that copies may take; larger arguments count as inputs."""

REPEATS = 2
"""Number of times a config's results are computed: a race need not show in the first launch."""

MOST_PROBES = 8
"""Limit of the arguments that are tried one by one: outputs, or small ones that may be outputs."""

NUDGES = 7
"""Number of different changes of the last bits; in bfloat16 the largest is by 5%."""

SMALL = 64
"""Number of elements up to which an argument is tried alone.

Results of inputs with other last bits may happen to be what a small output's own change made it.
"""


@dataclass(frozen=True)
class CheckOptions:
    """Declarations of a kernel's author about comparing results.

    Attributes:
        tolerance: the largest relative difference, for all tensors or by argument; the default
            depends on the dtype, see `tensor_comparison.TOLERANCES`.
        ignore: arguments whose content depends on the config, such as scratch memory.
        reference: computes the expected results in place of the default config. It is called with
            the launch's arguments by name and writes its results into them.
        repeatable: whether two launches give the same results. Set it to False for kernels that
            race or accumulate in any order by design: their results are compared only once.
    """

    tolerance: float | Mapping[str, float] | None = None
    ignore: Sequence[str] = ()
    reference: Callable[[Mapping[str, Any]], None] | None = None
    repeatable: bool = True


class Verdict(NamedTuple):
    """The outcome of a comparison.

    Attributes:
        outcome: `unchecked` where nothing could be compared.
        evidence: which argument differs and how far, or why nothing could be compared.
    """

    outcome: Literal["right", "wrong", "unchecked"]
    evidence: str = ""


class _Difference(NamedTuple):
    """How a config's results differ.

    Attributes:
        evidence: which argument differs and how far.
        is_nan: whether NaN stands where a number is expected: the argument may have held it before.
    """

    evidence: str
    is_nan: bool


class ResultChecker:
    """Compares the results of a launch's configs with the default's.

    The arguments have their original content again after each comparison.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        launch: Callable[[Any], AbstractContextManager[None]],
        default: Any,
        options: CheckOptions,
    ) -> None:
        """Set up the comparison for one launch; nothing is launched yet.

        Args:
            arguments: the launch's arguments by name.
            launch: launches a config; its results stand while the context is open.
            default: the config whose results count as right.
            options: declarations of the kernel's author.
        """
        self._arguments = arguments
        self._launch = launch
        self._default = default
        self._options = options
        self._tensors: dict[str, Any] = {}
        self._originals: dict[str, Any] = {}
        """The arguments' content before the first launch."""
        self._blanks: dict[str, Any] = {}
        """Outputs to fill with NaN before each launch that is compared.

        The value is a mask of the elements that are filled, or None for all of them.
        """
        self._expected: dict[str, Any] = {}
        """The outputs' expected content."""
        self._reason = "the default config was not launched"
        """Why nothing can be compared, while nothing is expected."""

    def prepare(self) -> None:
        """Compute the expected results.

        It comes before anything else of the launch runs: afterwards the arguments hold what some
        config wrote, and a config that writes nothing would look right.
        """
        tensors = self._comparable_tensors()
        try:
            self._copy(tensors)
            self._compute_expected()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._blanks = {}  # What was computed is still compared, from the original content.
            self._reason = "the device has no memory left for copies of the arguments"
        finally:
            self._restore(self._originals)
        self._originals = {name: self._originals[name] for name in self._expected}

    def check(self, config: Any) -> Verdict:
        """Compare a config's results with the expected ones."""
        if not self._expected:
            return Verdict("unchecked", self._reason)
        try:
            difference = self._find_difference(config, self._blanks)
            if difference and difference.is_nan and self._blanks:
                difference = self._reconsider(config, difference)
            return self._judge(difference.evidence) if difference else Verdict("right")
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return Verdict("unchecked", "the device has no memory left to compare results")
        finally:
            self.restore()

    def restore(self) -> None:
        """Give the arguments that are compared their original content again."""
        self._restore(self._originals)

    def _find_difference(self, config: Any, blanks: Mapping[str, Any]) -> _Difference | None:
        repeats = REPEATS if self._options.repeatable else 1
        return next(filter(None, (self._compare(config, blanks) for _ in range(repeats))), None)

    def _reconsider(self, config: Any, difference: _Difference) -> _Difference | None:
        """Compare a config that left NaN in its outputs again, if it adds to what they hold.

        Such a config is right where callers pass zeros, as for sums over a split dimension, even if
        the default overwrites its outputs. Any other config leaves elements out.
        """
        if self._adds_to_outputs(config):
            return self._find_difference(config, {})
        return _Difference(f"{difference.evidence}; its outputs held NaN before", is_nan=True)

    def _adds_to_outputs(self, config: Any) -> bool:
        """Return whether a config adds its results to what its outputs held before the launch."""
        import torch

        self._restore(self._originals)
        sums = {}
        for name, mask in self._blanks.items():
            expected = self._expected[name]
            wide = expected.double() if expected.dtype == torch.float64 else expected.float()
            # A number of the results' size, so that adding it loses few of their digits.
            sizes = wide[torch.isfinite(wide) & (wide != 0)].abs()
            offset = float(sizes.median()) if sizes.numel() else 1.0
            filled = torch.full_like(wide, offset).to(expected.dtype)
            sums[name] = (wide + offset).to(expected.dtype)
            if mask is not None:
                filled = choose(mask, filled, self._originals[name])
                sums[name] = choose(mask, sums[name], expected)
            self._restore({name: filled})
        with self._launch(config):
            return not any(
                self._describe_difference(name, self._tensors[name], sums[name]) for name in sums
            )

    def _judge(self, evidence: str) -> Verdict:
        """Tell a wrong config from a kernel whose default does not repeat its results either."""
        unrepeatable = (
            None if self._options.reference else self._compare(self._default, self._blanks)
        )
        if unrepeatable:
            reason = f"the default config does not repeat its results: {unrepeatable.evidence}"
            return Verdict("unchecked", reason)
        return Verdict("wrong", evidence)

    def _comparable_tensors(self) -> dict[str, Any]:
        """Return the tensors among the arguments, parts of tuples by names such as `outs[0]`."""
        return {
            part: tensor
            for name, value in self._arguments.items()
            if name not in self._options.ignore
            for part, tensor in named_tensors(name, value)
            if is_comparable(tensor)
        }

    def _copy(self, tensors: Mapping[str, Any]) -> None:
        """Copy the tensors, the smallest first, as far as memory reaches."""
        budget = free_memory(tensors) * MEMORY_SHARE
        for name, tensor in sorted(tensors.items(), key=lambda item: size_in_bytes(item[1])):
            budget -= 2 * size_in_bytes(tensor)
            if budget < 0:
                break
            self._tensors[name] = tensor
            self._originals[name] = tensor.detach().clone()

    def _compute_expected(self) -> None:
        """Compute the expected results, and find the contents to compare from.

        What an output held may be the expected result, in part or as a whole. So unwritten
        elements show only if outputs hold something else before a launch.
        """
        with self._run_expected():
            changed = [name for name in self._originals if self._has_changed(name)]
            self._expected = {name: self._tensors[name].detach().clone() for name in changed}
        kept = self._find_rewritten()
        if not changed:  # Integers cannot be asked; a config that changes them is wrong.
            kept += [name for name, held in self._originals.items() if not held.is_floating_point()]
        self._expected.update({name: self._originals[name] for name in kept})
        if self._expected:
            self._blanks = self._find_blanks()
        self._reason = "the default config changes no argument that could be copied"

    @contextmanager
    def _run_expected(self) -> Iterator[None]:
        """Compute what counts as right from what the arguments hold."""
        if self._options.reference is not None:
            self._options.reference(self._arguments)
            yield
        else:
            with self._launch(self._default):
                yield

    def _find_rewritten(self) -> list[str]:
        """Return the outputs that held the expected results before the launch already.

        Outputs are told from inputs by a launch after the last bits of all of them were changed: an
        input keeps the change, an output loses it. This is done only where no changed argument can
        show what a config computes, since another stream may read the inputs meanwhile.
        """
        if any(can_be_probed(self._tensors[name]) for name in self._expected):
            return []
        unchanged = [name for name in self._tensors if name not in self._expected]
        nudged = [name for name in unchanged if self._may_be_rewritten(name)]
        rewritten = self._find_written(unchanged, nudged) if nudged else []
        small = [name for name in nudged if self._tensors[name].numel() <= SMALL]
        for name in [name for name in small if name not in rewritten][:MOST_PROBES]:
            rewritten += self._find_written([name], [name])
        return rewritten

    def _find_written(self, names: Sequence[str], nudged: Sequence[str]) -> list[str]:
        """Return which of some arguments a launch writes.

        Args:
            names: the arguments.
            nudged: arguments whose last bits are changed before the launch.
        """
        numbers = {name: 1 + index % NUDGES for index, name in enumerate(nudged)}
        self._restore(self._originals)
        for name, number in numbers.items():
            with open_for_writes(self._tensors[name]) as tensor:
                nudge(tensor, number)
        with self._run_expected():
            written = [name for name in names if self._is_written(name, numbers.get(name))]
        self._restore(self._originals)
        return written

    def _may_be_rewritten(self, name: str) -> bool:
        import torch

        tensor = self._tensors[name]
        is_weight = isinstance(tensor, torch.nn.Parameter)  # another thread may be reading it
        return not is_weight and can_be_probed(tensor) and not self._overlaps(name)

    def _is_written(self, name: str, number: int | None) -> bool:
        if number is None:
            return self._has_changed(name)
        return not is_nudged(self._tensors[name], self._originals[name], number)

    def _find_blanks(self) -> dict[str, Any]:
        """Return the outputs whose old content the results do not depend on, as `_blanks`."""
        outputs = [name for name in self._expected if can_be_probed(self._tensors[name])]
        if not outputs:
            return {}
        blanks = self._try_blanks(outputs)
        if blanks is None and len(outputs) > 1:
            # If one output is also an input, its NaN spoils the others: each is tried alone.
            tries = ((name, self._try_blanks([name])) for name in outputs[:MOST_PROBES])
            independent = {name: masks for name, masks in tries if masks is not None}
            if len(independent) == 1:
                return next(iter(independent.values()))
            blanks = self._try_blanks(list(independent)) if independent else None
        return blanks or {}

    def _try_blanks(self, names: Sequence[str]) -> dict[str, Any] | None:
        """Fill outputs with NaN; return their `_blanks`, or None if that changes the results."""
        self._restore_outputs(dict.fromkeys(names))
        blanks: dict[str, Any] = {}
        with self._run_expected():
            for name, expected in self._expected.items():
                actual = self._tensors[name]
                if name in names:
                    blanks[name] = None
                    unwritten = self._unwritten_elements(name)
                    if bool(unwritten.any()):
                        blanks[name], actual = ~unwritten, choose(unwritten, expected, actual)
                if self._describe_difference(name, actual, expected):
                    return None
        return blanks

    def _unwritten_elements(self, name: str) -> Any:
        """Return which elements of a blank output the default has not written.

        These keep the original content in comparisons: another config may fill them with what is
        there already, such as zeros in a padding.
        """
        unchanged = equal_bits(self._expected[name], self._originals[name])
        return unchanged & blank_elements(self._tensors[name])

    def _restore_outputs(self, blanks: Mapping[str, Any]) -> None:
        """Fill the outputs before a launch: with NaN where `blanks` says so, else as they were."""
        for name in self._expected:
            if name not in blanks or blanks[name] is not None:
                self._restore({name: self._originals[name]})
        for name, mask in blanks.items():  # last: another output may share its memory
            with open_for_writes(self._tensors[name]) as tensor:
                fill_blank(tensor, mask)

    def _has_changed(self, name: str) -> bool:
        return not have_same_bits(self._tensors[name], self._originals[name])

    def _overlaps(self, name: str) -> bool:
        """Return whether an argument may share memory with another."""
        return any(
            may_overlap(self._tensors[name], tensor)
            for argument, value in self._arguments.items()
            for part, tensor in named_tensors(argument, value)
            if part != name
        )

    def _compare(self, config: Any, blanks: Mapping[str, Any]) -> _Difference | None:
        """Return where a config's results differ; None if they agree."""
        self._restore_outputs(blanks)
        with self._launch(config):
            for name, expected in self._expected.items():
                actual = self._tensors[name]
                evidence = self._describe_difference(name, actual, expected)
                if evidence:
                    is_nan = expected.is_floating_point() and bool(
                        (actual.float().isnan() & ~expected.float().isnan()).any()
                    )
                    return _Difference(f"{name} {evidence}", is_nan)
        return None

    def _describe_difference(self, name: str, actual: Any, expected: Any) -> str:
        return describe_difference(actual, expected, self._tolerance_of(name))

    def _tolerance_of(self, name: str) -> float | None:
        tolerance = self._options.tolerance
        if isinstance(tolerance, Mapping):
            return tolerance.get(name.partition("[")[0])
        return tolerance

    def _restore(self, contents: Mapping[str, Any]) -> None:
        for name, content in contents.items():
            with open_for_writes(self._tensors[name]) as tensor:
                tensor.copy_(content)
