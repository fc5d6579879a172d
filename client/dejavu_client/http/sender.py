"""The background thread that sends what a launch must not wait for."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from dejavu_cache.model.merge import merge_into
from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.model.scenario import Context, Scenario
from dejavu_cache.notices import warn_once

from .circuit_breaker import CircuitBreaker
from .errors import RefusedError, RemoteError
from .protocol_client import ProtocolClient
from .spool import Spool

__all__ = ["Sender"]

IDLE = 5.0
"""Seconds between looks at the spool while nothing else happens."""


class Sender:
    """Sends records and misses, keeps them on disk while the server is away, and probes whether it is back.

    What `put` was given is with the server or in the spool once `flush` returns True; a process that is
    killed before loses it here, which is why a local store stands before a remote one. A sweep, whose only copy
    it would be, does not go through here: see `RemoteStore.put_now`.
    """

    def __init__(self, client: ProtocolClient, circuit: CircuitBreaker, spool: Spool) -> None:
        self._client = client
        self._circuit = circuit
        self._spool = spool
        self.reset()

    def reset(self) -> None:
        """Starts afresh: in the child after a fork, whose parent sends what was queued."""
        self._changed = threading.Condition()
        self._queued: dict[Context, dict[Scenario, Record]] = {}
        self._missed: Counter[tuple[Context, Scenario]] = Counter()
        self._leases: list[str] = []
        self._on_the_way: dict[Context, dict[Scenario, Record]] = {}
        self._busy = False
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._refused = False

    def put(self, context: Context, records: Iterable[Record]) -> None:
        """Queues records; returns at once."""
        if self._refused:
            return
        with self._changed:
            self._queued[context] = merge_into(self._queued.get(context, {}), records)
        self.wake()

    def miss(self, context: Context, scenario: Scenario) -> None:
        """Counts a miss; returns at once."""
        with self._changed:
            self._missed[context, scenario] += 1
        self.wake()

    def release(self, lease: str) -> None:
        """Gives a lease back after all that was queued before: its next holder must find what this one measured."""
        with self._changed:
            self._leases.append(lease)
        self.wake()

    def wake(self) -> None:
        """Has the thread look at once at what there is to do."""
        with self._changed:
            self._stopping = False
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="dejavu-cache sender", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def holds(self, context: Context) -> bool:
        """Whether something about a context is still on its way."""
        return context in self._queued or context in self._on_the_way

    def flush(self, wait: float) -> bool:
        """Waits until all that was queued is sent or spooled; False if that takes longer than `wait` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._pending or self._busy), wait)

    @property
    def _pending(self) -> bool:
        return bool(self._queued or self._missed or self._leases)

    def stop(self) -> None:
        """Lets the thread end once it has nothing in hand; `wake` starts another."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def spool_rest(self) -> None:
        """Writes down what is not sent for sure: at the end of a process whose server does not answer."""
        with self._changed:
            rest = [*self._queued.items(), *self._on_the_way.items()]
            self._queued = {}
        for context, records in rest:
            self._spool.keep(RecordSet(context=context, records=tuple(records.values())))

    def drain(self) -> int:
        """Sends the spool now, in the caller's time, and says how many record sets went."""
        return self._spool.drain(self._send_or_drop)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._stopping and not self._pending:
                    self._thread = None
                    return
                if not self._pending:
                    self._changed.wait(
                        IDLE if self._circuit.closed else max(self._circuit.due, 0.05)
                    )
                queued, self._queued = self._queued, {}
                missed, self._missed = self._missed, Counter()
                leases, self._leases = self._leases, []
                self._on_the_way, self._busy = queued, True
            try:
                self._work(queued, missed, leases)
            finally:
                with self._changed:
                    self._on_the_way, self._busy = {}, False
                    self._changed.notify_all()

    def _work(
        self,
        queued: dict[Context, dict[Scenario, Record]],
        missed: Counter[tuple[Context, Scenario]],
        leases: Iterable[str],
    ) -> None:
        if not self._circuit.closed and self._circuit.due <= 0:
            self._try(self._client.alive)
        for context, records in queued.items():
            whole = RecordSet(context=context, records=tuple(records.values()))
            if not (
                self._circuit.closed and self._try(lambda whole=whole: self._send_or_drop(whole))
            ):
                self._spool.keep(whole)
        for lease in leases:
            if self._circuit.closed:  # else it ends by itself
                self._try(lambda lease=lease: self._client.release(lease))
        if missed and self._circuit.closed:
            self._try(lambda: self._client.report_misses(missed))
        if self._circuit.closed and len(self._spool):
            self._try(self.drain)

    def _try(self, action: object) -> bool:
        try:
            action()  # type: ignore[operator]
        except RefusedError as error:
            warn_once(f"refused {self._client.url}", str(error))
        except RemoteError:
            self._circuit.failed()
            return False
        except Exception as error:  # this thread must not die: others wait for it
            warn_once(
                f"sender {self._client.url}", f"{self._client.url}: {type(error).__name__}: {error}"
            )
            self._circuit.failed()
            return False
        self._circuit.succeeded()
        return True

    def _send_or_drop(self, whole: RecordSet) -> None:
        """Sends a set; what the server will never take is dropped, so that it does not stand in the way of the rest."""
        try:
            self._client.send(whole)
        except RefusedError as error:
            self._refused = error.status in (401, 403)
            about = "is read-only for this token" if self._refused else "does not take some records"
            warn_once(f"refused {self._client.url}", f"{self._client.url} {about}: {error}")
