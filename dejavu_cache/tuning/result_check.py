"""Compare what a config computes with what the default config computes, before it may win.

A config can be fast because it is wrong: a tile that does not divide the problem, or a race between
programs. Timing cannot tell, so the results of the prospective winner are compared with the
default's on the launch that is tuned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..model.record import (
    ALL_OUTPUTS,
    BEHIND_POINTERS,
    HELD_BEFORE,
    NO_WORK,
    NOT_REPEATABLE,
    OutputVerdict,
)
from .argument_snapshot import LACKS_MEMORY, ArgumentSnapshot, Filler
from .compile_ahead import is_out_of_memory
from .expected_results import Output, find_outputs

if TYPE_CHECKING:
    from ..triton_internals.argument_access import Accesses

__all__ = ["CheckOptions", "ResultChecker"]

EQUAL = OutputVerdict(outcome="equal")

_HELD_BEFORE = f"{HELD_BEFORE}: nothing shows whether the launch writes the results that are there"

_NO_WORK = f"{NO_WORK}: the default config changes no argument"

_BEHIND_POINTERS = f"{BEHIND_POINTERS}: the default config writes to no argument"


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
        outputs: the arguments that hold results; only these are compared then. They may hold
            anything before a launch, integers too: a lock, or an index that is read, is no output.
    """

    tolerance: float | Mapping[str, float] | None = None
    ignore: Sequence[str] = ()
    reference: Callable[[Mapping[str, Any]], None] | None = None
    repeatable: bool = True
    outputs: Sequence[str] | None = None


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
        accesses: Callable[[Any], Accesses | None] = lambda config: None,
    ) -> None:
        """Set up the comparison for one launch; nothing is launched yet.

        Args:
            arguments: the launch's arguments by name.
            launch: launches a config; its results stand while the context is open.
            default: the config whose results count as right.
            options: declarations of the kernel's author.
            accesses: returns what a config's code does with the arguments, as far as that is known
                by then: at the latest after its first launch.
        """
        self._arguments = arguments
        self._launch = launch
        self._default = default
        self._options = options
        self._accesses = accesses
        self._snapshot = ArgumentSnapshot(arguments, options.ignore)
        self._outputs: dict[str, Output] = {}
        self._uncompared: dict[str, str] = {}
        """Why some outputs are not compared."""

    def prepare(self) -> None:
        """Compute the expected results.

        It comes before anything else of the launch runs: afterwards the arguments hold what some
        config wrote, and a config that writes nothing would look right.
        """
        try:
            found = find_outputs(
                self._snapshot,
                self._run_expected,
                lambda: self._accesses(self._default),
                self._tolerance_of,
                self._options.outputs,
            )
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._uncompared = {ALL_OUTPUTS: LACKS_MEMORY}
            return
        finally:
            self.restore()
        accesses = self._accesses(self._default)
        self._outputs = {name: output for name, output in found.items() if output.is_visible}
        self._uncompared = {
            name: reason
            for name, reason in self._snapshot.uncopied.items()
            if accesses is None or name in accesses.written
        }
        lacks_memory = LACKS_MEMORY in self._uncompared.values()
        is_known = accesses is not None and bool(self._uncompared)
        if not (self._outputs or lacks_memory or is_known):
            is_elsewhere = accesses is not None and accesses.elsewhere
            self._uncompared[ALL_OUTPUTS] = _BEHIND_POINTERS if is_elsewhere else _NO_WORK
        if accesses is None and self._options.outputs is None:  # the others may be inputs
            for name in found.keys() - self._outputs.keys():
                self._snapshot.forget(name)
        else:
            self._uncompared |= dict.fromkeys(found.keys() - self._outputs.keys(), _HELD_BEFORE)

    def check(self, config: Any) -> dict[str, OutputVerdict]:
        """Compare a config's results with the expected ones; return a verdict for each output."""
        reasons: dict[str, str] = {}
        evidence: dict[str, str] = {}
        try:
            evidence, unseen = self._find_differences(config)
            reasons |= dict.fromkeys(unseen - evidence.keys(), _HELD_BEFORE)
            if evidence and self._options.reference is None:
                for name, other in self._compare(self._default, self._fillers(config)).items():
                    reasons[name] = f"{NOT_REPEATABLE}: by the default config, {name} {other}"
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            reasons |= dict.fromkeys(self._outputs, LACKS_MEMORY)
        finally:
            self.restore()
        verdicts = self.trust_default()
        verdicts |= {name: _verdict("wrong", text) for name, text in evidence.items()}
        return verdicts | {name: _verdict("not_compared", text) for name, text in reasons.items()}

    def trust_default(self) -> dict[str, OutputVerdict]:
        """Return the verdicts on the default config itself."""
        verdicts = dict.fromkeys(self._outputs, EQUAL)
        reasons = self._uncompared.items()
        return verdicts | {name: _verdict("not_compared", text) for name, text in reasons}

    def restore(self) -> None:
        """Give the arguments that are compared their original content again."""
        self._snapshot.restore()

    def release(self) -> None:
        """Let go of the arguments and of all copies."""
        self._snapshot.release()
        self._outputs.clear()
        self._arguments = {}

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

    def _find_differences(self, config: Any) -> tuple[dict[str, str], set[str]]:
        """Launch a config on what the program passed, and on filled outputs.

        A race need not show in the first launch.

        Returns:
            How outputs differ, and those that a config that writes nothing would leave right.
        """
        evidence = self._compare(config, {}) if self._options.repeatable else {}
        fillers = self._fillers(config)
        for name, difference in self._compare(config, fillers).items():
            held = f"; it held {fillers[name]} before" if name in fillers else ""
            evidence.setdefault(name, difference + held)
        unseen = {
            name
            for name, output in self._outputs.items()
            if name not in fillers and output.needs_filling
        }
        return evidence, unseen

    def _fillers(self, config: Any) -> dict[str, Filler]:
        """Return what a config may find in the outputs.

        A config may read what the default does not, as sums over a split dimension do, whose
        callers pass zeros. Where its code does not tell, it is not given invented integers.
        """
        accesses = self._accesses(config)
        return {
            name: output.filler
            for name, output in self._outputs.items()
            if output.filler is not None
            and (
                name not in accesses.read
                if accesses is not None
                else output.filler.is_nan or self._options.outputs is not None
            )
        }

    def _compare(self, config: Any, fillers: Mapping[str, Filler]) -> dict[str, str]:
        """Launch a config once; return how each output differs that does."""
        self._snapshot.begin()
        for name, filler in fillers.items():  # last: another output may share its memory
            self._outputs[name].fill(filler)
        with self._launch(config):
            found = {
                name: output.describe_difference(self._tolerance_of(name), fillers.get(name))
                for name, output in self._outputs.items()
            }
        return {name: difference for name, difference in found.items() if difference}


def _verdict(outcome: Literal["not_compared", "wrong"], reason: str) -> OutputVerdict:
    return OutputVerdict(outcome=outcome, reason=reason[:2000])
