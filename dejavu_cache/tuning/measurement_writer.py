"""Record measurements in a thread while the next ones are taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType

from ..model.record import Measurement
from ..system.background_threads import start_thread, uninterrupted
from ..system.fork_lock import ForkCondition
from ..system.notices import logger

__all__ = ["MeasurementWriter"]

PATIENCE = 40.0
"""Seconds that a tune waits for its store, whose locks are waited for 30 s.

It would wait for ever where an interrupted launch has left a lock of a library taken.
"""


class MeasurementWriter:
    """Passes measurements to a function in a thread, so that no benchmark waits for a disk.

    Measurements that arrive while the function runs are passed on together. At the end of the
    `with` block, all of them have been.

    Args:
        keep: is called with measurements; its errors are raised at the end of the `with` block.
    """

    def __init__(self, keep: Callable[[Sequence[Measurement]], None]) -> None:
        """Set up the thread, which starts with the `with` block."""
        self._keep = keep
        self._queued: list[Measurement] = []
        self._changed = ForkCondition()
        self._closing = self._busy = self._has_thread = False
        self._error: Exception | None = None

    def __call__(self, measurement: Measurement) -> None:
        """Queue a measurement; pass it on at once where no thread can be started any more."""
        if not self._has_thread:
            self._pass_on([measurement])
            return
        with self._changed:
            self._queued.append(measurement)
            self._changed.notify_all()

    def drain(self) -> None:
        """Wait until all queued measurements have been passed on."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._queued or self._busy), PATIENCE)

    def __enter__(self) -> MeasurementWriter:
        """Start the thread."""
        try:
            self._has_thread = start_thread(self._work, "dejavu-cache writer") is not None
        except BaseException:  # of a signal handler, most likely when the thread has started
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Wait for the thread, and raise its error unless the block has raised one."""
        self._close()
        with self._changed:
            if not self._changed.wait_for(lambda: not self._has_thread, PATIENCE):
                logger.warning(
                    "measurements are not written: the store has not answered for %g s", PATIENCE
                )
        if self._error is not None and error is None:
            raise self._error

    def _close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queued or self._closing)
                queued, self._queued = self._queued, []
                self._busy = bool(queued)
                if not queued:
                    self._has_thread = False
                    self._changed.notify_all()
                    return
            with uninterrupted():
                self._pass_on(queued)
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _pass_on(self, queued: Sequence[Measurement]) -> None:
        # The later of two measurements of one config counts.
        latest = {measurement.config: measurement for measurement in queued}
        try:
            self._keep(list(latest.values()))
        except Exception as error:
            self._error = error
