"""Check a prospective winner's results on the launch for which a scenario is tuned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..notices import logger
from ..tuning.result_check import CheckOptions, ResultChecker, Verdict
from .request import Request

__all__ = ["WinnerCheck"]


class WinnerCheck:
    """Compares results with the default config's, as a kernel's options say."""

    def __init__(self, request: Request, options: CheckOptions | None) -> None:
        """Set up the check of one request; with `options` None it checks nothing."""
        self._request = request
        self._checker: ResultChecker | None = None
        if options is not None:
            arguments = {**request.autotuner.nargs, **request.kwargs}
            self._checker = ResultChecker(arguments, self._launch, request.default, options)
        self._is_prepared = False

    def prepare(self) -> None:
        """Compute the expected results once, before any other config is launched."""
        if self._checker is None or self._is_prepared:
            return
        self._is_prepared = True
        try:
            self._checker.prepare()
        except Exception as error:  # The default may be a config that cannot run on this device.
            logger.debug("%s: the default's results: %r", self._request.context.kernel.name, error)
            self._checker = None

    def check(self, config: Any) -> Verdict:
        """Compare the results of a `triton.Config` with the default's."""
        if self._checker is None or not self._is_prepared:
            return Verdict("unchecked", "results are not compared")
        if config is self._request.default:
            return Verdict("right")
        verdict = self._checker.check(config)
        if verdict.outcome == "unchecked":
            name = self._request.context.kernel.name
            logger.info(
                "%s%s: results are not compared: %s", name, self._request.scenario, verdict.evidence
            )
        return verdict

    @contextmanager
    def _launch(self, config: Any) -> Iterator[None]:
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
