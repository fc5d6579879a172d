"""Compare what a config computes with what the default config computes, before it may win.

A config can be fast because it is wrong: a tile that does not divide the problem, or a race between
programs. Timing cannot tell, so the results of the prospective winner are compared with the
default's on the launch that is tuned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .argument_snapshot import ArgumentSnapshot
from .config_failures import is_out_of_memory
from .expected_results import Blanks, ExpectedResults
from .probe_contents import choose

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CheckOptions", "ResultChecker", "Verdict"]

REPEATS = 2
"""Number of times a config's results are computed: a race need not show in the first launch."""


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
        self._snapshot = ArgumentSnapshot(arguments, options.ignore)
        self._expected = ExpectedResults(self._snapshot, self._run_expected, self._tolerance_of)
        self._reason = "the default config was not launched"
        """Why nothing can be compared, while nothing is expected."""

    def prepare(self) -> None:
        """Compute the expected results.

        It comes before anything else of the launch runs: afterwards the arguments hold what some
        config wrote, and a config that writes nothing would look right.
        """
        try:
            self._snapshot.copy()
            self._expected.compute()
            self._reason = "the default config changes no argument that could be copied"
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            # What was computed is still compared, from the original content.
            self._reason = "the device has no memory left for copies of the arguments"
        finally:
            self.restore()
        self._snapshot.keep(self._expected.contents)

    def check(self, config: Any) -> Verdict:
        """Compare a config's results with the expected ones."""
        if not self._expected.contents:
            return Verdict("unchecked", self._reason)
        try:
            difference = self._find_difference(config, self._expected.blanks)
            if difference and difference.is_nan and self._expected.blanks:
                difference = self._reconsider(config, difference)
            if not difference and self._expected.find_more_outputs():
                difference = self._find_difference(config, self._expected.blanks)
            return self._judge(difference.evidence) if difference else Verdict("right")
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return Verdict("unchecked", "the device has no memory left to compare results")
        finally:
            self.restore()

    def restore(self) -> None:
        """Give the arguments that are compared their original content again."""
        self._snapshot.restore()

    @contextmanager
    def _run_expected(self) -> Iterator[None]:
        """Compute what counts as right from what the arguments hold."""
        if self._options.reference is not None:
            self._options.reference(self._arguments)
            yield
        else:
            with self._launch(self._default):
                yield

    def _tolerance_of(self, name: str) -> float | None:
        tolerance = self._options.tolerance
        if isinstance(tolerance, Mapping):
            return tolerance.get(name.partition("[")[0])
        return tolerance

    def _find_difference(self, config: Any, blanks: Blanks) -> _Difference | None:
        """Return where a config's results differ in any of some launches; None if they agree."""
        repeats = REPEATS if self._options.repeatable else 1
        return next(filter(None, (self._compare(config, blanks) for _ in range(repeats))), None)

    def _compare(self, config: Any, blanks: Blanks) -> _Difference | None:
        """Return where the results of one launch differ; None if they agree."""
        self._expected.prepare_outputs(blanks)
        with self._launch(config):
            for name, expected in self._expected.contents.items():
                actual = self._snapshot.tensors[name]
                evidence = self._expected.describe_difference(name, actual, expected)
                if evidence:
                    return _Difference(f"{name} {evidence}", _has_new_nan(actual, expected))
        return None

    def _reconsider(self, config: Any, difference: _Difference) -> _Difference | None:
        """Compare a config that left NaN in its outputs again, if it adds to what they hold.

        Such a config is right where callers pass zeros, as for sums over a split dimension, even if
        the default overwrites its outputs. Any other config leaves elements out.
        """
        if self._adds_to_outputs(config):
            return self._find_difference(config, {})
        return _Difference(f"{difference.evidence}; its outputs held NaN before", is_nan=True)

    def _adds_to_outputs(self, config: Any) -> bool:
        """Return whether a config adds its results to a number that its outputs held before."""
        self.restore()
        sums = {}
        for name, mask in self._expected.blanks.items():
            expected, original = self._expected.contents[name], self._snapshot.originals[name]
            number, total = _number_and_total(expected)
            self._snapshot.write(name, choose(mask, number, original))
            sums[name] = choose(mask, total, expected)
        with self._launch(config):
            return not any(
                self._expected.describe_difference(name, self._snapshot.tensors[name], total)
                for name, total in sums.items()
            )

    def _judge(self, evidence: str) -> Verdict:
        """Tell a wrong config from a kernel whose default does not repeat its results either."""
        if self._options.reference is None:
            unrepeatable = self._compare(self._default, self._expected.blanks)
            if unrepeatable:
                reason = f"the default config does not repeat its results: {unrepeatable.evidence}"
                return Verdict("unchecked", reason)
        return Verdict("wrong", evidence)


def _has_new_nan(actual: Tensor, expected: Tensor) -> bool:
    """Return whether NaN stands where a number is expected."""
    return expected.is_floating_point() and bool(
        (actual.float().isnan() & ~expected.float().isnan()).any()
    )


def _number_and_total(expected: Tensor) -> tuple[Tensor, Tensor]:
    """Return a tensor full of one number, and the sum of that and the expected results.

    The number is of the results' size, so that adding it loses few of their digits.
    """
    import torch

    wide = expected.double() if expected.dtype == torch.float64 else expected.float()
    sizes = wide[torch.isfinite(wide) & (wide != 0)].abs()
    number = float(sizes.median()) if sizes.numel() else 1.0
    return torch.full_like(wide, number).to(expected.dtype), (wide + number).to(expected.dtype)
