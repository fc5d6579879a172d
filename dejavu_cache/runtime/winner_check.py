"""Check a prospective winner's results on the launch for which a scenario is tuned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Literal

from ..errors import UncomparedResultsError
from ..model.record import (
    ALL_OUTPUTS,
    NO_DEFAULT,
    NO_MEMORY,
    SWITCHED_OFF,
    Failure,
    Measurement,
    OutputVerdict,
    Results,
    reasons_not_compared,
)
from ..model.scenario import Config
from ..system.notices import logger, warn_once
from ..triton_internals.config_names import describe
from ..tuning.config_failures import compile_failure_of, device_failure_of, failed_measurement
from ..tuning.result_check import CheckOptions, ResultChecker, Verdict
from .request import Request

__all__ = ["SWITCHED_OFF_BY_AUTHOR", "WinnerCheck", "recording_crash", "wrong_results"]


SWITCHED_OFF_BY_AUTHOR: Results = {
    ALL_OUTPUTS: OutputVerdict(
        outcome="not_compared", reason=f"{SWITCHED_OFF} by check=False or DEJAVU_CACHE_CHECK=0"
    )
}
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
        self._mark = mark
        self._checker: ResultChecker | None = None
        self._reason = _DEFAULT_FAILS
        """Why nothing is compared where something should be, if there is no checker."""
        if options is not None:
            arguments = {**request.autotuner.nargs, **request.kwargs}
            self._checker = ResultChecker(arguments, self._launch, request.default, options)
        self._is_prepared = False

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
            self._checker, self._reason = None, f"{_DEFAULT_FAILS}: {failure.reason}"[:2000]
        self._is_prepared = True

    def check(self, config: Any) -> Results:
        """Compare the results of a `triton.Config` with the default's, output by output.

        Raises:
            Exception: as `prepare` does, if nothing has called it yet.
        """
        self.prepare()  # Where nothing was measured, no config has been launched yet.
        if self._checker is None and self._request.check is None:
            return SWITCHED_OFF_BY_AUTHOR
        if self._checker is None:
            return {ALL_OUTPUTS: OutputVerdict(outcome="not_compared", reason=self._reason)}
        if config is self._request.default:
            return {ALL_OUTPUTS: OutputVerdict(outcome="equal", reason="of the default config")}
        results = _by_output(self._checker.check(config))
        for reason in reasons_not_compared(results):
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
        evidence = wrong_results(results)
        if not evidence:
            return results, None
        name = self._request.context.kernel.name
        warn_once(
            f"wrong {name} {best}",
            f"{name}{self._request.scenario}: ({best}) is fast but wrong, and is not used: "
            f"{evidence}",
        )
        failure = Failure(kind="wrong", reason=evidence)
        return results, failed_measurement(best, failure, time.perf_counter() - start)

    @contextmanager
    def _launch(self, config: Any) -> Iterator[None]:
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
            autotuner.fn.run(*request.args, **current)
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


def wrong_results(results: Results) -> str:
    """Return in which outputs a config is wrong and how far; empty if it is not."""
    wrong = [verdict.reason for verdict in results.values() if verdict.outcome == "wrong"]
    return "; ".join(wrong)[:2000]


def _by_output(verdict: Verdict) -> Results:
    """Return a verdict on a whole launch as that of all its outputs."""
    reason = verdict.evidence
    if verdict.outcome == "unchecked":
        if "no memory" in reason:
            reason = f"{NO_MEMORY}: {reason}"
        return {ALL_OUTPUTS: OutputVerdict(outcome="not_compared", reason=reason[:2000])}
    outcome: Literal["equal", "wrong"] = "equal" if verdict.outcome == "right" else "wrong"
    return {ALL_OUTPUTS: OutputVerdict(outcome=outcome, reason=reason[:2000])}
