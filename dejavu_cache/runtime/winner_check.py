"""Check a prospective winner's results on the launch for which a scenario is tuned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from ..errors import NothingComparedError, UncomparedResultsError
from ..model.record import Failure, Measurement, OutputVerdict
from ..model.scenario import Config
from ..system.notices import logger, warn_once
from ..system.signal_handlers import is_from_signal_handler
from ..triton_internals.argument_access import Accesses, accesses_of_kernel, watch_interpreter
from ..triton_internals.config_names import describe
from ..triton_internals.environment import is_interpreting
from ..triton_internals.loaded_kernels import compile_config
from ..tuning.argument_snapshot import NO_MEMORY, ArgumentSnapshot
from ..tuning.config_failures import compile_failure_of, device_failure_of, failed_measurement
from ..tuning.result_check import CheckOptions, Obstacle, ResultChecker, sum_up
from .request import Request

__all__ = ["WinnerCheck", "recording_crash"]


class WinnerCheck:
    """Compares results with the default config's, as a kernel's options say.

    Args:
        request: the launch whose results are compared.
        options: declarations of the kernel's author; None: nothing is compared.
        mark: returns a context in which a config is launched.

    Attributes:
        verdicts: what comparisons have shown of each config's outputs, by their names.
        obstacle: why nothing can be compared, once `prepare` has found out.
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
        if options is not None:
            arguments = {**request.autotuner.nargs, **request.kwargs}
            launches = CheckedLaunches(request, arguments, mark)
            self._checker = ResultChecker(
                arguments, launches.launch, request.default, options, launches.accesses
            )
        self._is_prepared = False
        self.verdicts: dict[Config, dict[str, OutputVerdict]] = {}
        self.obstacle: Obstacle | None = None

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
            self.obstacle = self._checker.prepare()
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
        self._is_prepared = True

    def refuse_tune(self) -> None:
        """Check that there is something to compare, unless that is switched off.

        Raises:
            NothingComparedError: there is not.
        """
        if self.obstacle is not None:
            raise NothingComparedError(self.obstacle.kind, self.obstacle.reason)

    def refuse_uncompared(self, best: Config) -> None:
        """Check that a config is the default, or that one of its outputs was found to be equal.

        Raises:
            NothingComparedError: it may not win.
        """
        verdict = sum_up(self.verdicts.get(best, {}))
        if self._checker is not None and verdict.outcome != "equal":
            kind = "memory" if NO_MEMORY in verdict.reason else "hidden"
            raise NothingComparedError(kind, verdict.reason)

    def check(self, config: Any) -> dict[str, OutputVerdict]:
        """Return verdicts on what a `triton.Config` computes, by output; none without comparison.

        Raises:
            Exception: as `prepare` does, if nothing has called it yet.
        """
        self.prepare()  # Where nothing was measured, no config has been launched yet.
        if self._checker is None:
            return {}
        is_default = config is self._request.default
        verdicts = self._checker.trusted() if is_default else self._checker.check(config)
        self.verdicts[describe(config)] = verdicts
        for output, verdict in verdicts.items():
            if verdict.outcome == "not_compared":
                name = self._request.context.kernel.name
                launch = f"{name}{self._request.scenario}"
                logger.info("%s: %s is not compared: %s", launch, output, verdict.reason)
        return verdicts

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

    def find_wrong_results(self, best: Config) -> Measurement | None:
        """Return the failure of a config whose results are wrong, or None."""
        start = time.perf_counter()
        verdict = sum_up(self.check(self._request.declared[best]))
        if verdict.outcome != "wrong":
            return None
        name = self._request.context.kernel.name
        warn_once(
            f"wrong {name} {best}",
            f"{name}{self._request.scenario}: ({best}) is fast but wrong, and is not used: "
            f"{verdict.reason}",
        )
        failure = Failure(kind="wrong", reason=verdict.reason)
        return failed_measurement(best, failure, time.perf_counter() - start)


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
        """Return what a config's code does; under the interpreter, once it was launched."""
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
