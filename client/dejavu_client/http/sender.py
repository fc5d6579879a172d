"""Background thread that sends records and misses, so that no launch waits for the server."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from dejavu_cache.model.merge import merge_into
from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.model.scenario import Context, Scenario
from dejavu_cache.notices import warn_once

from .circuit_breaker import CircuitBreaker
from .errors import BusyError, RefusedError, RemoteError
from .protocol_client import ProtocolClient
from .spool import Spool

__all__ = ["Sender"]

IDLE = 5.0
"""Seconds between checks of the spool while the queue is empty."""


class Sender:
    """Queue of records, misses and lease releases, and the thread that sends them in order.

    Records that cannot be sent go to the spool, and the thread probes an unreachable server until
    it answers. Once `flush` has returned True, all queued records are on the server or in the
    spool. A process that is killed earlier loses them, which is why a local store is asked first.
    A sweep may hold the only copy and therefore uses `RemoteStore.put_now` instead.

    Args:
        client: the connection to the server.
        circuit: opened when sending fails, closed when a probe succeeds.
        spool: where records wait while the server is unreachable.
    """

    def __init__(self, client: ProtocolClient, circuit: CircuitBreaker, spool: Spool) -> None:
        """Set up an empty queue; the thread starts with the first `wake`."""
        self._client = client
        self._circuit = circuit
        self._spool = spool
        self.reset()

    def reset(self) -> None:
        """Clear all state; after a fork the parent still sends what was queued."""
        self._condition = threading.Condition()
        self._queue: dict[Context, dict[Scenario, Record]] = {}
        self._misses: Counter[tuple[Context, Scenario]] = Counter()
        self._leases: list[str] = []
        self._in_flight: dict[Context, dict[Scenario, Record]] = {}
        self._busy = False
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._write_refused = False

    def put(self, context: Context, records: Iterable[Record]) -> None:
        """Queue records and return at once."""
        if self._write_refused:
            return
        with self._condition:
            self._queue[context] = merge_into(self._queue.get(context, {}), records)
        self.wake()

    def miss(self, context: Context, scenario: Scenario) -> None:
        """Queue a miss and return at once."""
        with self._condition:
            self._misses[context, scenario] += 1
        self.wake()

    def release(self, lease: str) -> None:
        """Queue a lease's release behind the records, which its next holder must find."""
        with self._condition:
            self._leases.append(lease)
        self.wake()

    def wake(self) -> None:
        """Make the thread process the queue now; start it if it is not running."""
        with self._condition:
            self._stopping = False
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="dejavu-cache sender", daemon=True
                )
                self._thread.start()
            self._condition.notify_all()

    def is_sending(self, context: Context) -> bool:
        """Whether records of a context are queued or being sent."""
        return context in self._queue or context in self._in_flight

    def flush(self, wait: float) -> bool:
        """Wait until the queue is sent or spooled; return False if `wait` seconds are too short."""
        with self._condition:
            return self._condition.wait_for(lambda: not (self._pending or self._busy), wait)

    @property
    def _pending(self) -> bool:
        return bool(self._queue or self._misses or self._leases)

    def stop(self) -> None:
        """End the thread and its connections once the queue is empty; `wake` starts another."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()

    def spool_rest(self) -> None:
        """Spool the records that the server has not confirmed, because the process ends."""
        with self._condition:
            rest = [*self._queue.items(), *self._in_flight.items()]
            self._queue = {}
        for context, records in rest:
            self._spool.add(RecordSet(context=context, records=tuple(records.values())))

    def drain(self) -> int:
        """Send the spool in the calling thread and return the number of record sets sent."""
        return self._spool.drain(self._send_or_drop)

    def _run(self) -> None:
        while True:
            with self._condition:
                if self._stopping and not self._pending:
                    self._thread = None
                    break
                if not self._pending:
                    self._condition.wait(
                        IDLE if self._circuit.closed else max(self._circuit.probe_due_in, 0.05)
                    )
                queued, self._queue = self._queue, {}
                misses, self._misses = self._misses, Counter()
                leases, self._leases = self._leases, []
                self._in_flight, self._busy = queued, True
            try:
                self._send_batch(queued, misses, leases)
            finally:
                with self._condition:
                    self._in_flight, self._busy = {}, False
                    self._condition.notify_all()
        # The store may have been closed or dropped before this thread sent the last of its queue.
        self._client.close()

    def _send_batch(
        self,
        queued: dict[Context, dict[Scenario, Record]],
        misses: Counter[tuple[Context, Scenario]],
        leases: Iterable[str],
    ) -> None:
        if not self._circuit.closed and self._circuit.probe_due_in <= 0:
            self._try(self._client.check_ready)
        for context, records in queued.items():
            record_set = RecordSet(context=context, records=tuple(records.values()))
            if not (self._circuit.closed and self._try(partial(self._send_or_drop, record_set))):
                self._spool.add(record_set)
        for lease in leases:
            if self._circuit.closed:  # a lease that is not released expires
                self._try(partial(self._client.release, lease))
        if misses and self._circuit.closed:
            self._try(partial(self._client.report_misses, misses))
        if self._circuit.closed and len(self._spool):
            self._try(self.drain)

    def _try(self, action: Callable[[], object]) -> bool:
        """Run an action, and return False after opening the circuit if the server failed."""
        if self._circuit.busy:
            return False
        try:
            action()
        except RefusedError as error:
            warn_once(f"refused {self._client.url}", str(error))
        except BusyError as error:
            self._circuit.record_busy(error)
            return False
        except RemoteError:
            self._circuit.record_failure()
            return False
        except Exception as error:  # `flush` waits for this thread, so it must not end here
            warn_once(
                f"sender {self._client.url}", f"{self._client.url}: {type(error).__name__}: {error}"
            )
            self._circuit.record_failure()
            return False
        self._circuit.record_success()
        return True

    def _send_or_drop(self, record_set: RecordSet) -> None:
        """Send a record set; drop one that the server refuses, so that it cannot block the rest."""
        try:
            self._client.send(record_set)
        except RefusedError as error:
            self._write_refused = error.status in (401, 403)
            about = (
                "is read-only for this token"
                if self._write_refused
                else "does not take some records"
            )
            warn_once(f"refused {self._client.url}", f"{self._client.url} {about}: {error}")
