"""Compare what a config computes with what the default config computes, before it may win.

A config can be fast because it is wrong: a tile that does not divide the problem, or a race between
programs. Timing cannot tell, so the results of the prospective winner are compared with the
default's on the launch that is tuned.

*Which arguments may be outputs?* Those that the author declared, or else those that the default's
code writes, or all where the code does not tell.

*What may a config write beside them?* Scratch memory, which is restored; no input of the default.

*Which of them are filled before a launch, with what no launch computes?* Those that the code writes
and never reads; where it does not tell, those that the author declared. An integer that is read may
be an index, an address, or a lock for which a kernel waits.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from ..errors import NothingComparedError, UncomparedResultsError
from ..model.record import (
    ALL_OUTPUTS,
    BEHIND_POINTERS,
    HELD_BEFORE,
    NO_DEFAULT,
    NO_WORK,
    NOT_COPYABLE,
    NOT_REPEATABLE,
    SWITCHED_OFF,
    Failure,
    Measurement,
    OutputVerdict,
    Results,
    has_reason,
    reasons_not_compared,
    sum_up,
)
from ..system.background_threads import dropping_errors
from ..system.notices import logger, warn_once
from ..triton_internals.argument_access import Accesses, accesses_of_kernel, watch_interpreter
from ..triton_internals.compilation import compile_config
from ..triton_internals.config_names import describe
from ..triton_internals.environment import is_interpreting
from .compile_ahead import compile_failure_of, failed_measurement, is_out_of_memory
from .expected_results import LACKS_MEMORY, Output, copy_of, copyable_tensors, spans_of_arguments
from .measurement_marks import MeasurementMark
from .tuner import CandidateLaunch, ConfigLaunch

EQUAL = OutputVerdict(outcome="equal")

_HELD_BEFORE = f"{HELD_BEFORE}: nothing shows whether the launch writes the results that are there"

_NO_WORK = f"{NO_WORK}: the default config changes no argument"

_IDLE_REFERENCE = "the reference of the author changes no argument"

_BEHIND_POINTERS = f"{BEHIND_POINTERS}: the default config may write memory that is no argument"

_DEFAULT_FAILS = f"{NO_DEFAULT}: the default config cannot run on this device"


def _verdict(outcome: Literal["not_compared", "wrong"], reason: str) -> OutputVerdict:
    return OutputVerdict(outcome=outcome, reason=reason[:2000])


def _not_compared(reason: str) -> dict[str, OutputVerdict]:
    return {ALL_OUTPUTS: _verdict("not_compared", reason)}


SWITCHED_OFF_BY_AUTHOR = _not_compared(f"{SWITCHED_OFF} by check=False or DEJAVU_CACHE_CHECK=0")
"""What is recorded of a winner where nothing is to be compared."""

_NO_STANDARD = _not_compared(_DEFAULT_FAILS)


Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A relative difference."""


@dataclass(frozen=True)
class CheckOptions:
    """Declarations of a kernel's author about comparing results; a decorator checks them.

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

    tolerance: Share | Mapping[str, Share] | None = None
    ignore: Sequence[str] = ()
    reference: Callable[[Mapping[str, Any]], None] | None = None
    repeatable: bool = True
    outputs: Sequence[str] | None = None

    def _leaves_out(self, name: str) -> bool:
        """Return whether the author wants a tensor's content not to be compared."""
        argument, outputs = name.partition("[")[0], self.outputs  # of a part such as `outs[0]`
        return argument in self.ignore or not (outputs is None or argument in outputs)

    def tolerance_of(self, name: str) -> float | None:
        """Return the largest relative difference in a tensor; None for that of its dtype."""
        if isinstance(self.tolerance, Mapping):
            return self.tolerance.get(name.partition("[")[0])
        return self.tolerance


@dataclass(eq=False)
class ResultCheck:
    """Compares the results of a launch's configs with the default's, as a kernel's options say.

    The arguments have their original content again after each comparison.

    Args:
        launch: the launch that is tuned.
        default: the `triton.Config` whose results count as right.
        mark: says which config touches the device.
        options: declarations of the kernel's author; None: nothing is compared.
        is_wanted: whether the author wants results to be compared. If so, and nothing is, the
            default config cannot run.
        title: what is tuned, for people.

    Attributes:
        known: what is said of each output before another config than the default is compared.
    """

    launch: CandidateLaunch
    default: Any
    mark: MeasurementMark
    options: CheckOptions | None
    is_wanted: bool = True
    title: str = ""

    def __post_init__(self) -> None:
        """Launch nothing yet."""
        self.known = _NO_STANDARD if self.is_wanted else SWITCHED_OFF_BY_AUTHOR
        self._options, self._compares = self.options or CheckOptions(), self.options is not None
        self._is_prepared = self._runs_reference = False
        self._arguments = {**self.launch.autotuner.nargs, **self.launch.kwargs}
        self._spans: Mapping[str, tuple[int, int]] = {}
        self._seen: dict[int, Accesses | None] = {}
        """What configs' code does, by the config's id."""
        self._tensors: Mapping[str, Any] = {}
        self._outputs: dict[str, Output] = {}
        """The tensors that have a copy; those that are visible are compared."""
        self._uncompared: dict[str, str] = {}
        """Why some outputs are not compared."""

    def close(self) -> None:
        """Undo what launches have written; let go of the arguments and of all copies of them."""
        with dropping_errors():  # The device may be lost.
            self._restore()
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
            if failure is None or self._runs_reference:
                raise
            if failure.kind == "skipped":
                raise UncomparedResultsError(
                    f"the default config's results cannot be computed now: {failure.reason}"
                ) from error
            logger.debug("%s: the default's results: %r", self.title, error)
            self.close()
            self.known = _not_compared(f"{_DEFAULT_FAILS}: {failure.reason}")
        self._is_prepared = True

    def keep(self, config: Any) -> None:
        """Copy what the default does not write, before a config that does is launched.

        What the default reads is an input, which must not change.
        """
        accesses, standard = self.accesses(config), self.accesses(self.default)
        if not self._compares or accesses is None or standard is None:
            return
        mine = accesses.written - standard.written - self._outputs.keys()
        for name in mine & self._tensors.keys():
            if (original := copy_of(self._tensors[name])) is not None:
                self._outputs[name] = output = Output(self._tensors[name], original)
                output.expect_present(was_filled=False)
                output.is_visible = name in standard.read

    def compare(self, config: Any) -> tuple[Results, Measurement | None]:
        """Compare the results of a `triton.Config` with the default's, output by output.

        Returns:
            What that shows, and the config's failure if its results are wrong.

        Raises:
            NothingComparedError: nothing shows whether they are right, though that is wanted.
            Exception: as `prepare` does, if nothing has called it yet.
        """
        self.prepare()  # Where nothing was measured, no config has been launched yet.
        start, results = time.perf_counter(), self.known
        if self._compares and config is not self.default:
            results = self.verdicts(config)
            for reason in reasons_not_compared(results):
                logger.info("%s: not compared: %s", self.title, reason)
        verdict = sum_up(results)
        if verdict.outcome != "wrong":
            # At least one output has to be equal, but where nothing is to be compared, or can run.
            if verdict.outcome != "equal" and not has_reason(results, SWITCHED_OFF, NO_DEFAULT):
                raise NothingComparedError("; ".join(reasons_not_compared(results)), results)
            return results, None
        described = describe(config)
        warn_once(
            f"wrong {self.title} {described}",
            f"{self.title}: ({described}) is fast but wrong, and is not used: {verdict.reason}",
        )
        failure = Failure(kind="wrong", reason=verdict.reason)
        return results, failed_measurement(described, failure, time.perf_counter() - start)

    def verdicts(self, config: Any) -> dict[str, OutputVerdict]:
        """Launch a config and judge each output; twice, since a race need not show at first."""
        self.keep(config)  # It may be another process's winner, which nothing has launched here.
        verdicts = dict(self.known)
        evidence: dict[str, str] = {}
        try:
            for _ in range(2 if self._options.repeatable else 1):
                filled, differences = self._launch_and_compare(config)
                for name, difference in differences.items():
                    held = "; it held something else before" if name in filled else ""
                    evidence.setdefault(name, difference + held)
            for name, output in self._outputs.items():
                if name in evidence:
                    verdicts[name] = _verdict("wrong", evidence[name])
                elif output.is_visible and output.holds_results and name not in filled:
                    # A config that writes nothing would leave it right.
                    verdicts[name] = _verdict("not_compared", _HELD_BEFORE)
            if evidence and self._options.reference is None:
                for name, other in self._launch_and_compare(self.default)[1].items():
                    reason = f"{NOT_REPEATABLE}: by the default config, {name} {other}"
                    verdicts[name] = _verdict("not_compared", reason)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            for name, output in self._outputs.items():
                if output.is_visible:
                    verdicts[name] = _verdict("not_compared", LACKS_MEMORY)
        finally:
            self._restore()
        return verdicts

    def _launch_and_compare(self, config: Any) -> tuple[Collection[str], dict[str, str]]:
        """Launch a config once; return the outputs that were filled, and how those differ that do.

        By the interpreter, a first launch shows what the code does, and a second one is compared.
        """
        accesses = self.accesses(config)
        filled = self._fillable(accesses)
        self._restore(filled)
        differences = {}
        with self.launched(config):
            for name, output in self._outputs.items():
                tolerance = self._options.tolerance_of(name)
                if output.is_visible and (
                    difference := output.describe_difference(tolerance, name in filled)
                ):
                    differences[name] = difference
        if self.accesses(config) != accesses:
            return self._launch_and_compare(config)
        return filled, differences

    def _restore(self, filled: Collection[str] = ()) -> None:
        """Give the outputs what they hold before a launch, some of them filled."""
        for output in self._outputs.values():
            output.restore()
        for name in filled:  # last: another output may share its memory
            self._outputs[name].restore(filled=True)

    def accesses(self, config: Any) -> Accesses | None:
        """Return what a config's code does; under the interpreter, once it was launched.

        Nothing is known where a hook after the launch may complete the results.
        """
        launch = self.launch
        if launch.autotuner.user_defined_post_hook:
            return None
        if id(config) not in self._seen and not is_interpreting():
            self._seen[id(config)] = None
            with dropping_errors():  # the launch will raise them, too
                kernel = compile_config(launch.autotuner, config, launch.args, launch.kwargs)
                self._seen[id(config)] = accesses_of_kernel(kernel)
        return self._seen.get(id(config))

    @contextmanager
    def launched(self, config: Any) -> Iterator[None]:
        """Launch a config under its mark; its results stand while the context is open.

        A hook that restores arguments would erase the results, so it runs when the context ends;
        any other one may complete them, so it runs before. An error of the device shows when
        results are read.
        """
        launch, restores = ConfigLaunch(self.launch, config), self.launch.autotuner.restore_value
        with self.mark.around(describe(config)):
            launch.begin()
            if is_interpreting() and id(config) not in self._seen:
                with watch_interpreter(self._spans) as seen:
                    launch.run()
                (self._seen[id(config)],) = seen
            else:
                launch.run()
            if not restores:
                launch.end()
            try:
                yield
            finally:
                if restores:
                    launch.end()

    def _find_outputs(self) -> None:
        """Launch the default config, keep what it writes, and say of what else nothing is known."""
        tensors, self._uncompared = copyable_tensors(self._arguments, self._options.ignore)
        self._tensors, self._spans = tensors, spans_of_arguments(self._arguments)
        accesses, declared = self.accesses(self.default), self._options.outputs
        is_told = declared is not None or accesses is not None
        try:
            for name in sorted(tensors, key=lambda name: tensors[name].numel()):
                if (accesses and name not in accesses.written) or self._options._leaves_out(name):
                    continue
                # Where neither code nor author tells, most of these are inputs, and may be large.
                original = copy_of(tensors[name], may_use_host=is_told)
                if original is None:
                    self._uncompared[name] = LACKS_MEMORY
                    continue
                self._outputs[name] = output = Output(tensors[name], original)
                start, end = self._spans[name]
                output.may_be_filled = True
                for other, (other_start, other_end) in self._spans.items():
                    if other != name and start < other_end and other_start < end:
                        output.may_be_filled = False
            if self._outputs or accesses is None:  # else a launch would change what is not restored
                self._expect_results()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            for output in self._outputs.values():
                output.is_visible = False
            self.known = _not_compared(LACKS_MEMORY)
            return
        finally:
            self._restore()
        self._explain()

    def _expect_results(self) -> None:
        """Expect what a launch of the default, or the author's reference, leaves in the outputs.

        By the interpreter, a first launch shows what the code does, and a second one is expected.
        """
        autotuner, reference, is_known = self.launch.autotuner, self._options.reference, False
        hook = autotuner.user_defined_pre_hook or getattr(self.default, "pre_hook", None)
        while not is_known:
            accesses = self.accesses(self.default)
            filled = self._fillable(accesses)
            self._restore(filled)
            with nullcontext() if reference else self.launched(self.default):
                if reference is not None:
                    self._runs_reference = True
                    reference(self._arguments)
                    self._runs_reference = False
                is_known = self.accesses(self.default) == accesses
                for name, output in list(self._outputs.items()) if is_known else ():
                    is_read = accesses is not None and name in accesses.read
                    is_updated = is_read and not (hook or name in autotuner.reset_to_zero)
                    if not output.expect_present(name in filled, is_updated=is_updated):
                        self._uncompared[name] = LACKS_MEMORY
                        self._outputs.pop(name).restore()

    def _fillable(self, accesses: Accesses | None) -> list[str]:
        """Return the outputs that may hold anything before a launch of code with these accesses.

        A config may read what the default does not, as sums over a split dimension do, whose
        callers pass zeros.
        """
        fillable = []
        for name, output in self._outputs.items():
            is_read = self._options.outputs is None if accesses is None else name in accesses.read
            if output.may_be_filled and not (is_read and output.held_zeros):
                fillable.append(name)
        return fillable

    def _explain(self) -> None:
        """Say what is known of each output, once the default's launch has shown all."""
        accesses, reasons = self.accesses(self.default), self._uncompared
        if accesses is not None:
            for name in reasons.keys() - accesses.written:
                del reasons[name]
            for name in accesses.written - self._spans.keys():
                if not self._options._leaves_out(name):
                    reasons.setdefault(name, f"{NOT_COPYABLE}: it is no tensor")
            if accesses.written and all(map(self._options._leaves_out, accesses.written)):
                reasons[ALL_OUTPUTS] = "the author wants none of what the default writes compared"
        visible = {name: output for name, output in self._outputs.items() if output.is_visible}
        is_elsewhere = accesses is not None and accesses.elsewhere
        if not (visible or (reasons if accesses else LACKS_MEMORY in reasons.values())):
            idle = _IDLE_REFERENCE if self._options.reference else _NO_WORK
            reasons[ALL_OUTPUTS] = _BEHIND_POINTERS if is_elsewhere else idle
        elif is_elsewhere:
            reasons["other memory"] = _BEHIND_POINTERS
        if accesses is None and self._options.outputs is None:
            self._outputs = visible  # what no launch shows to be an output may be an input
        for name in self._outputs.keys() - visible.keys():
            if accesses is None or name in accesses.written:
                reasons[name] = _HELD_BEFORE
            else:  # an input, which must not change
                self._outputs[name].is_visible = name in accesses.read
        self.known = dict.fromkeys(visible, EQUAL)
        for name, reason in reasons.items():
            self.known[name] = _verdict("not_compared", reason)
