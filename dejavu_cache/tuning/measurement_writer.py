"""Writing measurements down while the next ones are taken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from ..model.record import Measurement

__all__ = ["MeasurementWriter"]


class MeasurementWriter:
    """Hands measurements to a function in a thread of its own, as soon as they come, so that nobody waits for a disk.

    What comes while the function is busy is handed over together. At the end of the `with`, everything is.

    Args:
        keep: is given measurements; what it raises is raised at the end of the `with`.
    """

    def __init__(self, keep: Callable[[Sequence[Measurement]], None]) -> None:
        self._keep = keep
        self._queued: list[Measurement] = []
        self._changed = threading.Condition()
        self._closing = self._busy = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="dejavu-cache keeper", daemon=True)

    def __call__(self, measurement: Measurement) -> None:
        """Queues a measurement."""
        with self._changed:
            self._queued.append(measurement)
            self._changed.notify_all()

    def drain(self) -> None:
        """Waits until all that was queued is handed over."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._queued or self._busy))

    def __enter__(self) -> MeasurementWriter:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queued or self._closing)
                queued, self._queued = self._queued, []
                self._busy = bool(queued)
            if not queued:
                return
            # Of two measurements of one config the later one counts.
            try:
                self._keep(list({each.config: each for each in queued}.values()))
            except Exception as error:
                self._error = error
            with self._changed:
                self._busy = False
                self._changed.notify_all()
