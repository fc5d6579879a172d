"""Compare what a config computes with what the default config computes, before it may win.

A config can be fast because it is wrong: a tile that does not divide the problem, or a race between
programs. Timing cannot tell, so the results of the prospective winner are compared with the
default's on the launch that is tuned.

*Which arguments may be outputs?* Those that the author declared, or else those that the default's
code writes, or all where the code does not tell.

*Which of them are filled before a launch, with what no launch computes?* Those that the code writes
and never reads; where it does not tell, those that the author declared. An integer that is read may
be an index, an address, or a lock for which a kernel waits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..errors import NothingComparedError, SettingsError, UncomparedResultsError
from ..model.record import (
    ALL_OUTPUTS,
    BEHIND_POINTERS,
    HELD_BEFORE,
    NO_DEFAULT,
    NO_WORK,
    NOT_REPEATABLE,
    SWITCHED_OFF,
    Failure,
    Measurement,
    OutputVerdict,
    Results,
    may_win,
    reasons_not_compared,
    sum_up,
)
from ..model.scenario import Config
from ..system.background_threads import is_from_signal_handler
from ..system.notices import logger, warn_once
from ..triton_internals.argument_access import Accesses, accesses_of_kernel, watch_interpreter
from ..triton_internals.compilation import compile_config
from ..triton_internals.config_names import describe
from ..triton_internals.environment import is_interpreting
from .compile_ahead import (
    compile_failure_of,
    device_failure_of,
    failed_measurement,
    is_out_of_memory,
)
from .expected_results import (
    LACKS_MEMORY,
    Output,
    copyable_tensors,
    spans_of_arguments,
)

if TYPE_CHECKING:
    from torch import Tensor

    from .tuner import CandidateLaunch

__all__ = [
    "SWITCHED_OFF_BY_AUTHOR",
    "CheckOptions",
    "CheckedLaunches",
    "ResultCheck",
    "recording_crash",
    "refuse_uncompared",
]

EQUAL = OutputVerdict(outcome="equal")

_HELD_BEFORE = f"{HELD_BEFORE}: nothing shows whether the launch writes the results that are there"

_NO_WORK = f"{NO_WORK}: the default config changes no argument"

_BEHIND_POINTERS = f"{BEHIND_POINTERS}: the default config writes to no argument"

_DEFAULT_FAILS = f"{NO_DEFAULT}: the default config cannot run on this device"


def _verdict(outcome: Literal["not_compared", "wrong"], reason: str) -> OutputVerdict:
    return OutputVerdict(outcome=outcome, reason=reason[:2000])


def _not_compared(reason: str) -> Results:
    return {ALL_OUTPUTS: _verdict("not_compared", reason)}


SWITCHED_OFF_BY_AUTHOR = _not_compared(f"{SWITCHED_OFF} by check=False or DEJAVU_CACHE_CHECK=0")
"""What is recorded of a winner where nothing is to be compared."""


@dataclass(frozen=True)
class CheckOptions:
    """Declarations of a kernel's author about comparing results.

    Attributes:
        tolerance: the largest relative difference, for all tensors or by argument; the default
            depends on the dtype, see `expected_results.TOLERANCES`.
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

    def __post_init__(self) -> None:
        """Check the values; the names are checked where a kernel is decorated.

        Raises:
            SettingsError: one of them is of another kind, or a negative tolerance.
        """
        for option, names in (("ignore", self.ignore), ("outputs", self.outputs)):
            if isinstance(names, str):
                raise SettingsError(f"check: {option}={names!r}: give a list of arguments")
        tolerance = self.tolerance
        for share in tolerance.values() if isinstance(tolerance, Mapping) else (tolerance,):
            is_share = share is None or (isinstance(share, (int, float)) and 0 <= share < math.inf)
            if not is_share:
                raise SettingsError(
                    f"check: tolerance={tolerance!r}: give a number of 0 or more, or one for each "
                    "of some arguments"
                )

    def tolerance_of(self, name: str) -> float | None:
        """Return the largest relative difference in a tensor; None for that of its dtype."""
        if isinstance(self.tolerance, Mapping):
            return self.tolerance.get(_argument(name))
        return self.tolerance


def _argument(name: str) -> str:
    """Return the argument that a tensor such as `outs[0]` belongs to."""
    return name.partition("[")[0]


class CheckedLaunches:
    """Launches of a kernel whose results are compared, and what the configs' code does.

    Args:
        launch: the launch that is tuned.
        default: the `triton.Config` whose results count as right.
        mark: returns a context in which a config is launched.
    """

    def __init__(
        self,
        launch: CandidateLaunch,
        default: Any,
        mark: Callable[[Config], AbstractContextManager[None]] = lambda config: nullcontext(),
    ) -> None:
        """Launch nothing yet."""
        self.arguments: Mapping[str, Any] = {**launch.autotuner.nargs, **launch.kwargs}
        self.default = default
        self._launch = launch
        self._mark = mark
        self._accesses: dict[int, Accesses | None] = {}

    def accesses(self, config: Any) -> Accesses | None:
        """Return what a config's code does; under the interpreter, once it was launched.

        Nothing is known where a hook after the launch may complete the results.
        """
        if self._launch.autotuner.user_defined_post_hook:
            return None
        if id(config) not in self._accesses and not is_interpreting():
            launch, known = self._launch, None
            try:
                kernel = compile_config(launch.autotuner, config, launch.args, launch.kwargs)
                known = accesses_of_kernel(kernel)
            except Exception as error:  # the launch will raise it, too
                if is_from_signal_handler(error):
                    raise
            self._accesses[id(config)] = known
        return self._accesses.get(id(config))

    @contextmanager
    def launch(self, config: Any) -> Iterator[None]:
        """Launch a config under its mark; an error of the device shows when results are read."""
        seen: list[Accesses] = []
        with self._mark(describe(config)), ExitStack() as watch:

            def begin() -> None:
                nonlocal seen
                if is_interpreting() and id(config) not in self._accesses:
                    spans = spans_of_arguments(self.arguments)
                    seen = watch.enter_context(watch_interpreter(spans))

            with self._launch.launched(config, begin, watch.close):
                if seen:
                    (self._accesses[id(config)],) = seen
                yield


class ResultCheck:
    """Compares the results of a launch's configs with the default's, as a kernel's options say.

    The arguments have their original content again after each comparison.

    Args:
        launches: launches configs.
        options: declarations of the kernel's author; None: nothing is compared.
        is_wanted: whether the author wants results to be compared. If so, and nothing is, the
            default config cannot run.
        title: what is tuned, for people.
    """

    def __init__(
        self,
        launches: CheckedLaunches,
        options: CheckOptions | None,
        *,
        is_wanted: bool = True,
        title: str = "",
    ) -> None:
        """Set up the check; nothing is launched yet."""
        self._launches = launches
        self._options = options or CheckOptions()
        self._title = title
        self._compares = options is not None
        self._reference_failed = False
        self._is_prepared = False
        self._unchecked = _not_compared(_DEFAULT_FAILS) if is_wanted else SWITCHED_OFF_BY_AUTHOR
        """What is said of every config where nothing is compared."""
        self._outputs: dict[str, Output] = {}
        """The tensors that have a copy; those that are visible are compared."""
        self._uncompared: dict[str, str] = {}
        """Why some outputs are not compared."""

    def close(self) -> None:
        """Let go of the launch's arguments and of all copies of them; compare nothing any more."""
        self._compares = False
        self._outputs.clear()

    def prepare(self) -> None:
        """Compute the expected results once, before any other config is launched.

        Afterwards the arguments hold what some config wrote, and a config that writes nothing would
        look right. Nothing is compared where the default config cannot run on this device.

        Raises:
            UncomparedResultsError: the machine lacked something to launch the default config.
            Exception: a launch of the default config raises it, and no fault of the config.
        """
        if self._is_prepared or not self._compares:
            return
        try:
            self._find_outputs()
        except Exception as error:
            failure = compile_failure_of(error)
            if failure is None or self._reference_failed:
                raise
            if failure.kind == "skipped":
                raise UncomparedResultsError(
                    f"the default config's results cannot be computed now: {failure.reason}"
                ) from error
            logger.debug("%s: the default's results: %r", self._title, error)
            self.close()
            self._unchecked = _not_compared(f"{_DEFAULT_FAILS}: {failure.reason}")
        self._is_prepared = True

    def refuse_tune(self) -> None:
        """Check that there is something to compare, unless that is switched off.

        Raises:
            NothingComparedError: there is not.
        """
        if self._compares:
            refuse_uncompared(self.verdicts_on_default())

    def compare(self, config: Any) -> tuple[Results, Measurement | None]:
        """Compare the results of a `triton.Config` with the default's, output by output.

        Returns:
            What that shows, and the config's failure if its results are wrong.

        Raises:
            Exception: as `prepare` does, if nothing has called it yet.
        """
        self.prepare()  # Where nothing was measured, no config has been launched yet.
        if not self._compares:
            return self._unchecked, None
        if config is self._launches.default:
            return self.verdicts_on_default(), None
        start = time.perf_counter()
        results = self.verdicts(config)
        for reason in reasons_not_compared(results):
            logger.info("%s: not compared: %s", self._title, reason)
        verdict = sum_up(results)
        if verdict.outcome != "wrong":
            return results, None
        described = describe(config)
        warn_once(
            f"wrong {self._title} {described}",
            f"{self._title}: ({described}) is fast but wrong, and is not used: {verdict.reason}",
        )
        failure = Failure(kind="wrong", reason=verdict.reason)
        return results, failed_measurement(described, failure, time.perf_counter() - start)

    @contextmanager
    def restoring_arguments(self) -> Iterator[None]:
        """Undo what launches in the context write to the arguments that are compared.

        Kernels that work in place would otherwise work on what benchmarks have left.
        """
        try:
            yield
        except BaseException:
            with suppress(Exception):  # The device may be lost.
                self._restore()
            raise
        self._restore()

    def verdicts_on_default(self) -> dict[str, OutputVerdict]:
        """Return what is known of each output before any other config is compared."""
        return dict.fromkeys(self._visible, EQUAL) | {
            name: _verdict("not_compared", reason) for name, reason in self._uncompared.items()
        }

    def verdicts(self, config: Any) -> dict[str, OutputVerdict]:
        """Launch a config and judge each output; twice, since a race need not show at first."""
        evidence: dict[str, str] = {}
        reasons: dict[str, str] = {}
        try:
            for _ in range(2 if self._options.repeatable else 1):
                filled = self._fillable(self._launches.accesses(config))
                for name, difference in self._launch_and_compare(config, filled).items():
                    held = "; it held something else before" if name in filled else ""
                    evidence.setdefault(name, difference + held)
            reasons = {
                name: _HELD_BEFORE  # a config that writes nothing would leave it right
                for name, output in self._visible.items()
                if output.holds_results and name not in filled and name not in evidence
            }
            if evidence and self._options.reference is None:
                default = self._launches.default
                filled = self._fillable(self._accesses)
                for name, other in self._launch_and_compare(default, filled).items():
                    reasons[name] = f"{NOT_REPEATABLE}: by the default config, {name} {other}"
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            reasons |= dict.fromkeys(self._visible, LACKS_MEMORY)
        finally:
            self._restore()
        verdicts = self.verdicts_on_default()
        verdicts |= {name: _verdict("wrong", text) for name, text in evidence.items()}
        return verdicts | {name: _verdict("not_compared", text) for name, text in reasons.items()}

    def _launch_and_compare(self, config: Any, filled: Collection[str]) -> dict[str, str]:
        """Launch a config once; return how each output differs that does."""
        self._restore(filled)
        with self._launches.launch(config):
            found = {
                name: output.describe_difference(self._options.tolerance_of(name), name in filled)
                for name, output in self._visible.items()
            }
        return {name: difference for name, difference in found.items() if difference}

    def _restore(self, filled: Collection[str] = ()) -> None:
        """Give the outputs what they hold before a launch, some of them filled."""
        for output in self._outputs.values():
            output.restore()
        for name in filled:  # last: another output may share its memory
            self._outputs[name].restore(filled=True)

    @property
    def _visible(self) -> dict[str, Output]:
        return {name: output for name, output in self._outputs.items() if output.is_visible}

    @property
    def _accesses(self) -> Accesses | None:
        """What the default's code does, as far as that is known by now."""
        return self._launches.accesses(self._launches.default)

    @contextmanager
    def _run_expected(self) -> Iterator[None]:
        """Compute what counts as right from what the arguments hold."""
        if self._options.reference is not None:
            try:
                self._options.reference(self._launches.arguments)
            except Exception:
                self._reference_failed = True
                raise
            yield
        else:
            with self._launches.launch(self._launches.default):
                yield

    def _find_outputs(self) -> None:
        """Launch the default config, and keep what it writes."""
        arguments = self._launches.arguments
        tensors, self._uncompared = copyable_tensors(arguments, self._options.ignore)
        is_told = self._options.outputs is not None or self._accesses is not None
        try:
            for name in self._candidates(tensors):
                # Where neither code nor author tells, most of these are inputs, and may be large.
                output = Output.copy(tensors[name], may_use_host=is_told)
                if output is None:
                    self._uncompared[name] = LACKS_MEMORY
                else:
                    self._outputs[name] = output
            self._expect_results()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            for output in self._outputs.values():
                output.is_visible = False
            self._uncompared = {ALL_OUTPUTS: LACKS_MEMORY}
            return
        finally:
            self._restore()
        self._explain_uncompared()

    def _expect_results(self) -> None:
        """Expect what a launch of the default leaves in the outputs.

        By the interpreter, a first launch shows what the code does, and a second one is expected.
        """
        spans = spans_of_arguments(self._launches.arguments)
        for name, output in self._outputs.items():
            start, end = spans[name]
            output.may_be_filled = not any(
                start < other_end and other_start < end
                for other, (other_start, other_end) in spans.items()
                if other != name
            )
        is_known = False
        while not is_known:
            accesses = self._accesses
            filled = self._fillable(accesses)
            self._restore(filled)
            with self._run_expected():
                is_known = self._accesses == accesses
                if is_known:
                    for name, output in list(self._outputs.items()):
                        if not output.expect_present(name in filled):
                            self._uncompared[name] = LACKS_MEMORY
                            self._outputs.pop(name).restore()
            copied = {name: output.tensor for name, output in self._outputs.items()}
            self._outputs = {name: self._outputs[name] for name in self._candidates(copied)}

    def _candidates(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Return the tensors that may be outputs, the smallest first."""
        accesses, declared = self._accesses, self._options.outputs
        names = [
            name
            for name in tensors
            if (accesses is None or name in accesses.written)
            and (declared is None or _argument(name) in declared)
        ]
        return sorted(names, key=lambda name: tensors[name].numel())

    def _fillable(self, accesses: Accesses | None) -> list[str]:
        """Return the outputs that may hold anything before a launch of code with these accesses.

        A config may read what the default does not, as sums over a split dimension do, whose
        callers pass zeros.
        """
        return [
            name
            for name, output in self._outputs.items()
            if output.may_be_filled
            and (
                self._options.outputs is not None if accesses is None else name not in accesses.read
            )
        ]

    def _explain_uncompared(self) -> None:
        """Say why outputs are not compared, once the default's launch has shown all."""
        accesses, visible = self._accesses, self._visible
        if accesses is not None:
            for name in self._uncompared.keys() - accesses.written:
                del self._uncompared[name]
        lacks_memory = LACKS_MEMORY in self._uncompared.values()
        is_known = accesses is not None and bool(self._uncompared)
        if not (visible or lacks_memory or is_known):
            is_elsewhere = accesses is not None and accesses.elsewhere
            self._uncompared[ALL_OUTPUTS] = _BEHIND_POINTERS if is_elsewhere else _NO_WORK
        if accesses is not None or self._options.outputs is not None:
            unseen = self._outputs.keys() - visible.keys()
            self._uncompared |= dict.fromkeys(unseen, _HELD_BEFORE)
        else:  # what no launch shows to be an output may be an input, and needs no copy
            self._outputs = visible


@contextmanager
def recording_crash(config: Config, write: Callable[[Measurement], None]) -> Iterator[None]:
    """Record an error that leaves the device unusable as a config's, and raise it."""
    try:
        yield
    except Exception as error:
        crash = device_failure_of(error)
        if crash is not None:
            write(failed_measurement(config, crash))
        raise


def refuse_uncompared(results: Results) -> None:
    """Check that a config may win by what comparing it has shown.

    Raises:
        NothingComparedError: it may not.
    """
    if not may_win(results):
        raise NothingComparedError("; ".join(reasons_not_compared(results)), results)
