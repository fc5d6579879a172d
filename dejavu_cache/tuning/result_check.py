"""Compare what a config computes with what the default config computes, before it may win.

A config can be fast because it is wrong: a tile that does not divide the problem, or a race between
programs. Timing cannot tell, so the results of the prospective winner are compared with the
default's on the launch that is tuned.

The default config is launched twice for that: on what the program passed, and with contents in its
outputs that no launch computes.

*Which arguments may be outputs?* Those that the author declared, or else those that the default's
code writes, or all where the code does not tell.

*Which of them are filled?* Those that the default's code writes and never reads, whatever their
dtype. Where the code does not tell, those that the first launch changed, unless they are integers:
an integer may be an index, an address, or a lock for which a kernel waits. Then the launch tells
whether results depend on what was filled. An author who declares outputs says that none does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ..errors import NothingComparedError, UncomparedResultsError
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
    Filler,
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

    def tolerance_of(self, name: str) -> float | None:
        """Return the largest relative difference in a tensor; None for that of its dtype."""
        if isinstance(self.tolerance, Mapping):
            return self.tolerance.get(_argument(name))
        return self.tolerance


def _argument(name: str) -> str:
    """Return the argument that a tensor such as `outs[0]` belongs to."""
    return name.partition("[")[0]


class Launches(Protocol):
    """What `ResultCheck` launches: a kernel, with one set of arguments."""

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments by name."""

    @property
    def default(self) -> Any:
        """The config whose results count as right."""

    def launch(self, config: Any) -> AbstractContextManager[None]:
        """Launch a config; its results stand while the context is open."""

    def accesses(self, config: Any) -> Accesses | None:
        """Return what a config's code does, if that is known: at the latest after its launch."""


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
        launches: Launches,
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
            if failure is None:
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

    def check(self, config: Any) -> Results:
        """Compare the results of a `triton.Config` with the default's, output by output.

        Raises:
            Exception: as `prepare` does, if nothing has called it yet.
        """
        self.prepare()  # Where nothing was measured, no config has been launched yet.
        if not self._compares:
            return self._unchecked
        if config is self._launches.default:
            return self.verdicts_on_default()
        results = self.verdicts(config)
        for reason in reasons_not_compared(results):
            logger.info("%s: not compared: %s", self._title, reason)
        return results

    def compare(self, config: Any) -> tuple[Results, Measurement | None]:
        """Return what comparing a `triton.Config` shows, and its failure if results are wrong."""
        start = time.perf_counter()
        results = self.check(config)
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
        """Launch a config on what the program passed, and on filled outputs; judge each output.

        It is launched twice, since a race need not show in the first launch.
        """
        evidence: dict[str, str] = {}
        reasons: dict[str, str] = {}
        try:
            if self._options.repeatable:
                evidence = self._launch_and_compare(config, {})
            fillers = self._fillers(config)
            for name, difference in self._launch_and_compare(config, fillers).items():
                held = f"; it held {fillers[name]} before" if name in fillers else ""
                evidence.setdefault(name, difference + held)
            reasons = {
                name: _HELD_BEFORE  # a config that writes nothing would leave it right
                for name, output in self._visible.items()
                if output.needs_filling and name not in fillers and name not in evidence
            }
            if evidence and self._options.reference is None:
                default = self._launches.default
                for name, other in self._launch_and_compare(default, fillers).items():
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

    def _fillers(self, config: Any) -> dict[str, Filler]:
        """Return what a config may find in the outputs.

        A config may read what the default does not, as sums over a split dimension do, whose
        callers pass zeros. Where its code does not tell, it is not given invented integers.
        """
        accesses = self._launches.accesses(config)
        return {
            name: output.filler
            for name, output in self._visible.items()
            if output.filler is not None
            and (
                name not in accesses.read
                if accesses is not None
                else output.filler.is_nan or self._options.outputs is not None
            )
        }

    def _launch_and_compare(self, config: Any, fillers: Mapping[str, Filler]) -> dict[str, str]:
        """Launch a config once; return how each output differs that does."""
        self._begin(fillers)
        with self._launches.launch(config):
            return self._differences(fillers)

    def _differences(self, fillers: Mapping[str, Filler]) -> dict[str, str]:
        found = {
            name: output.describe_difference(self._options.tolerance_of(name), fillers.get(name))
            for name, output in self._visible.items()
        }
        return {name: difference for name, difference in found.items() if difference}

    def _begin(self, fillers: Mapping[str, Filler]) -> None:
        """Give the outputs what they hold before a launch."""
        for name, output in self._outputs.items():
            if name not in fillers:
                output.begin()
        for name, filler in fillers.items():  # last: another output may share its memory
            self._outputs[name].fill(filler)

    def _restore(self) -> None:
        for output in self._outputs.values():
            output.restore()

    @property
    def _visible(self) -> dict[str, Output]:
        return {name: output for name, output in self._outputs.items() if output.is_visible}

    @property
    def _accesses(self) -> Accesses | None:
        """What the default's code does, as far as that is known by now."""
        return self._launches.accesses(self._launches.default)

    @property
    def _is_told(self) -> bool:
        """Whether the author or the code tells which arguments are outputs."""
        return self._options.outputs is not None or self._accesses is not None

    @contextmanager
    def _run_expected(self) -> Iterator[None]:
        """Compute what counts as right from what the arguments hold."""
        if self._options.reference is not None:
            self._options.reference(self._launches.arguments)
            yield
        else:
            with self._launches.launch(self._launches.default):
                yield

    def _find_outputs(self) -> None:
        """Launch the default config as often as it takes to find what it writes."""
        arguments = self._launches.arguments
        tensors, self._uncompared = copyable_tensors(arguments, self._options.ignore)
        try:
            self._expect_results(tensors)
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

    def _expect_results(self, tensors: Mapping[str, Tensor]) -> None:
        for name in self._candidates(tensors):
            # Where neither code nor author tells, most candidates are inputs, and may be large.
            output = Output.copy(tensors[name], may_use_host=self._is_told)
            if output is None:
                self._uncompared[name] = LACKS_MEMORY
            else:
                self._outputs[name] = output
        with self._run_expected():
            copied = {name: output.tensor for name, output in self._outputs.items()}
            # Under the interpreter, the launch has shown which of them are written.
            self._outputs = {name: self._outputs[name] for name in self._candidates(copied)}
            fillers = self._expect_present()
        if started := self._start_elsewhere():
            self._begin({})
            with self._run_expected():
                fillers = self._expect_present()
            if (accesses := self._accesses) is not None and accesses.is_observed:
                for name in started & self._outputs.keys():
                    self._outputs[name].is_visible = True  # it was written, and is right as it was
        if fillers:
            try:
                self._expect_filled(fillers)
            except Exception as error:  # what was computed is still compared
                if not is_out_of_memory(error):
                    raise

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

    def _expect_present(self) -> dict[str, Filler]:
        """Expect what the default's launch has left, and return what outputs may be filled with."""
        for name, output in list(self._outputs.items()):
            if not output.expect_present():
                self._uncompared[name] = LACKS_MEMORY
                del self._outputs[name]
        accesses, is_told, fillers = self._accesses, self._is_told, {}
        spans = spans_of_arguments(self._launches.arguments)
        for name, output in self._outputs.items():
            if accesses is not None:
                may_fill = name not in accesses.read and not _shares_memory(name, spans)
            else:
                may_fill = output.is_visible or is_told
            filler = output.find_filler(with_integers=is_told) if may_fill else None
            if filler is not None:
                fillers[name] = filler
        return fillers

    def _start_elsewhere(self) -> set[str]:
        """Have outputs start from other content if they are updated in place and have not changed.

        They may hold zeros to which zeros are added. Integers are left as they are: a kernel that
        reads them may take them for an address.
        """
        accesses = self._accesses
        return {
            name
            for name, output in self._outputs.items()
            if accesses is not None
            and name in accesses.read
            and output.tensor.is_floating_point()
            and not output.is_visible
            and output.start_elsewhere()
        }

    def _expect_filled(self, fillers: Mapping[str, Filler]) -> None:
        """Launch from filled outputs, and expect what becomes of those whose results are as before.

        Where neither code nor author says that no results depend on what the filled ones held, none
        is filled later if one of the others differs.
        """
        self._begin(fillers)
        with self._run_expected():
            unlike = {
                name
                for name, output in self._outputs.items()
                if output.describe_difference(self._options.tolerance_of(name), fillers.get(name))
            }
            for name in fillers.keys() - unlike if self._is_told or not unlike else ():
                self._outputs[name].adopt(fillers[name])

    def _explain_uncompared(self) -> None:
        """Say why outputs are not compared, once the default's launches have shown all."""
        accesses, visible = self._accesses, self._visible
        if accesses is not None:
            unwritten = self._uncompared.keys() - accesses.written
            for name in unwritten:
                del self._uncompared[name]
        lacks_memory = LACKS_MEMORY in self._uncompared.values()
        is_known = accesses is not None and bool(self._uncompared)
        if not (visible or lacks_memory or is_known):
            is_elsewhere = accesses is not None and accesses.elsewhere
            self._uncompared[ALL_OUTPUTS] = _BEHIND_POINTERS if is_elsewhere else _NO_WORK
        if self._is_told:
            unseen = self._outputs.keys() - visible.keys()
            self._uncompared |= dict.fromkeys(unseen, _HELD_BEFORE)
        else:  # what no launch shows to be an output may be an input, and needs no copy
            self._outputs = visible


def _shares_memory(name: str, spans: Mapping[str, tuple[int, int]]) -> bool:
    """Return whether a tensor may share memory with another argument, copied or not."""
    start, end = spans[name]
    return any(
        start < other_end and other_start < end
        for other, (other_start, other_end) in spans.items()
        if other != name
    )


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
