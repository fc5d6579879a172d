"""Check a prospective winner's results on the launch for which a scenario is tuned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from ..errors import NothingComparedError, UncomparedResultsError
from ..model.record import (
    ALL_OUTPUTS,
    NO_DEFAULT,
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
from ..tuning.argument_snapshot import ArgumentSnapshot
from ..tuning.compile_ahead import compile_failure_of, device_failure_of, failed_measurement
from ..tuning.result_check import CheckOptions, ResultChecker
from .request import Request

__all__ = ["SWITCHED_OFF_BY_AUTHOR", "WinnerCheck", "recording_crash", "refuse_uncompared"]


def _not_compared(reason: str) -> Results:
    return {ALL_OUTPUTS: OutputVerdict(outcome="not_compared", reason=reason[:2000])}


SWITCHED_OFF_BY_AUTHOR = _not_compared(f"{SWITCHED_OFF} by check=False or DEJAVU_CACHE_CHECK=0")
"""What is recorded of a winner where nothing is to be compared."""

_DEFAULT_FAILS = f"{NO_DEFAULT}: the default config cannot run on this device"


class WinnerCheck:
    """Compares results with the default config's, as a kernel's options say.

    Args:
        request: the launch whose results are compared.
        options: declarations of the kernel's author; None: nothing is compared, since the author
            does not want it, or the default config cannot run.
        mark: returns a context in which a config is launched.
    """

    def __init__(
        self,
        request: Request,
        options: CheckOptions | None,
        mark: Callable[[Config], AbstractContextManager[None]] = lambda config: nullcontext(),
    ) -> None:
        """Set up the check; nothing is launched yet."""
        self._request = request
        self._checker: ResultChecker | None = None
        is_wanted = request.check is not None
        self._unchecked = _not_compared(_DEFAULT_FAILS) if is_wanted else SWITCHED_OFF_BY_AUTHOR
        """What is said of every config where there is no checker."""
        if options is not None:
            arguments = {**request.autotuner.nargs, **request.kwargs}
            launches = CheckedLaunches(request, arguments, mark)
            self._checker = ResultChecker(
                arguments, launches.launch, request.default, options, launches.accesses
            )
        self._is_prepared = False

    def close(self) -> None:
        """Let go of the launch's arguments and of all copies of them."""
        if self._checker is not None:
            self._checker.release()
        self._checker = None

    def prepare(self) -> None:
        """Compute the expected results once, before any other config is launched.

        Nothing is compared where the default config cannot run on this device.

        Raises:
            UncomparedResultsError: the machine lacked something to launch the default config.
            Exception: a launch of the default config raises it, and no fault of the config.
        """
        if self._checker is None or self._is_prepared:
            return
        try:
            self._checker.prepare()
        except Exception as error:
            failure = compile_failure_of(error)
            if failure is None:
                raise
            if failure.kind == "skipped":
                raise UncomparedResultsError(
                    f"the default config's results cannot be computed now: {failure.reason}"
                ) from error
            logger.debug("%s: the default's results: %r", self._request.context.kernel.name, error)
            self.close()
            self._unchecked = _not_compared(f"{_DEFAULT_FAILS}: {failure.reason}")
        self._is_prepared = True

    def refuse_tune(self) -> None:
        """Check that there is something to compare, unless that is switched off.

        Raises:
            NothingComparedError: there is not.
        """
        if self._checker is not None:
            refuse_uncompared(self._checker.trust_default())

    def check(self, config: Any) -> Results:
        """Compare the results of a `triton.Config` with the default's, output by output.

        Raises:
            Exception: as `prepare` does, if nothing has called it yet.
        """
        self.prepare()  # Where nothing was measured, no config has been launched yet.
        if self._checker is None:
            return self._unchecked
        is_default = config is self._request.default
        results = self._checker.trust_default() if is_default else self._checker.check(config)
        for reason in [] if is_default else reasons_not_compared(results):
            name = self._request.context.kernel.name
            logger.info("%s%s: not compared: %s", name, self._request.scenario, reason)
        return results

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

    def _restore(self) -> None:
        if self._checker is not None:
            self._checker.restore()

    def compare(self, best: Config) -> tuple[Results, Measurement | None]:
        """Return what comparing a config shows, and its failure if its results are wrong."""
        start = time.perf_counter()
        results = self.check(self._request.declared[best])
        verdict = sum_up(results)
        if verdict.outcome != "wrong":
            return results, None
        name = self._request.context.kernel.name
        warn_once(
            f"wrong {name} {best}",
            f"{name}{self._request.scenario}: ({best}) is fast but wrong, and is not used: "
            f"{verdict.reason}",
        )
        failure = Failure(kind="wrong", reason=verdict.reason)
        return results, failed_measurement(best, failure, time.perf_counter() - start)


class CheckedLaunches:
    """Launches whose results are compared, and what the configs' code does with the arguments.

    Args:
        request: the launch.
        arguments: its arguments by name.
        mark: returns a context in which a config is launched.
    """

    def __init__(
        self,
        request: Request,
        arguments: Mapping[str, Any],
        mark: Callable[[Config], AbstractContextManager[None]],
    ) -> None:
        """Launch nothing yet."""
        self._request = request
        self._arguments = arguments
        self._mark = mark
        self._accesses: dict[int, Accesses | None] = {}

    def accesses(self, config: Any) -> Accesses | None:
        """Return what a config's code does; under the interpreter, once it was launched.

        Nothing is known where a hook after the launch may complete the results.
        """
        if self._request.autotuner.user_defined_post_hook:
            return None
        if id(config) not in self._accesses and not is_interpreting():
            request, known = self._request, None
            try:
                kernel = compile_config(request.autotuner, config, request.args, request.kwargs)
                known = accesses_of_kernel(kernel)
            except Exception as error:  # the launch will raise it, too
                if is_from_signal_handler(error):
                    raise
            self._accesses[id(config)] = known
        return self._accesses.get(id(config))

    @contextmanager
    def launch(self, config: Any) -> Iterator[None]:
        """Launch a config under its mark; an error of the device shows when results are read."""
        with self._mark(describe(config)), self._launch_unmarked(config):
            yield

    @contextmanager
    def _launch_unmarked(self, config: Any) -> Iterator[None]:
        """Launch a config as Triton's benchmark does, hooks included.

        A post hook may complete the results, so it runs first; one that restores arguments would
        erase them, so it runs when the context ends.
        """
        request, autotuner = self._request, self._request.autotuner
        current = {**request.kwargs, **config.all_kwargs()}
        arguments = {**autotuner.nargs, **current}
        if config.pre_hook is not None:
            config.pre_hook(arguments)
        autotuner.pre_hook(arguments)
        try:
            self._run(config, current)
        except Exception as error:
            autotuner.post_hook(arguments, exception=error)
            raise
        if not autotuner.restore_value:
            autotuner.post_hook(arguments, exception=None)
        try:
            yield
        finally:
            if autotuner.restore_value:
                autotuner.post_hook(arguments, exception=None)

    def _run(self, config: Any, current: Mapping[str, Any]) -> None:
        request = self._request
        if not is_interpreting() or id(config) in self._accesses:
            request.autotuner.fn.run(*request.args, **current)
            return
        spans = ArgumentSnapshot(self._arguments, ()).spans
        with watch_interpreter(spans) as seen:
            request.autotuner.fn.run(*request.args, **current)
        (self._accesses[id(config)],) = seen


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
