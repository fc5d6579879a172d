"""Background thread that sends records and misses, so that no launch waits for the server."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.model.scenario import Context, Scenario, canonical_json
from dejavu_cache.system.background_threads import (
    Finisher,
    at_program_end,
    program_is_ending,
    start_thread,
    uninterrupted,
)
from dejavu_cache.system.fork_lock import ForkCondition
from dejavu_cache.system.notices import warn_once

from .circuit_breaker import CircuitBreaker
from .errors import BusyError, RefusedError, RemoteError, ServerFaultError
from .protocol_client import ProtocolClient
from .spool import Spool
from .spool_delivery import IN_HAND_SECONDS, Delivery, deliver_documents, deliver_spool
from .uploads import REFUSALS_FOR_GOOD, parse_record_set_json

__all__ = ["Sender"]

IDLE = 5.0
"""Seconds between checks of the spool while the queue is empty."""

PAUSE = 60.0
"""Seconds until records are sent again after the server refused the sender or failed on them."""

SWEEP_EVERY = 600.0
"""Seconds between sweeps of the spool."""


class _Queued(NamedTuple):
    """An encoded record set, and its file in the spool unless the disk is full."""

    context: Context
    text: bytes
    path: Path | None


class Sender(Finisher):
    """Queue of records, misses and lease releases, and the thread that sends them in order.

    `put` writes records to the spool before it returns, and the thread deletes them there once the
    server has confirmed them: however the process ends, they are not lost. The thread probes an
    unreachable server until it answers, and then sends what waits, also what other processes left.

    The thread handles encoded records only. It never parses one into its model, which would be
    unsafe at the program's end: see `dejavu_cache.system.background_threads`.

    Args:
        client: the connection to the server.
        circuit: opened when sending fails, closed when a probe succeeds.
        spool: where records wait until the server has confirmed them.
    """

    def __init__(self, client: ProtocolClient, circuit: CircuitBreaker, spool: Spool) -> None:
        """Set up an empty queue; the thread starts with the first `wake`."""
        self._client = client
        self._circuit = circuit
        self._spool = spool
        self.reset(circuit)
        at_program_end(self)

    def reset(self, circuit: CircuitBreaker) -> None:
        """Clear all state; after a fork the parent still sends what was queued."""
        self._circuit = circuit
        self._condition = ForkCondition()
        self._queue: list[_Queued] = []
        self._misses: Counter[tuple[Context, Scenario]] = Counter()
        self._leases: list[str] = []
        self._in_flight: list[_Queued] = []
        self._busy = False
        self._has_thread = False
        self._stopping = False
        self._is_woken = False
        self._refused_until = 0.0
        self._has_left_behind = False
        """Whether the spool has records of this process that are not in the queue any more."""
        self._failed: dict[Path, float] = {}
        self._background = Delivery()
        self._next_sweep = 0.0

    def put(self, context: Context, records: Iterable[Record]) -> None:
        """Spool records, queue them, and return."""
        with uninterrupted():  # also a daemon thread of the program's own may put records
            text = canonical_json(RecordSet(context=context, records=tuple(records))).encode()
        path = self._spool.write(text)
        with self._condition:
            if path is None or self._may_send:
                self._queue.append(_Queued(context, text, path))
            else:
                self._has_left_behind = True
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
            self._is_woken = True
            if not self._has_thread:
                self._has_thread = start_thread(self._run, "dejavu-cache sender") is not None
            self._condition.notify_all()

    def is_sending(self, context: Context) -> bool:
        """Whether records of a context are queued or being sent."""
        with self._condition:
            return any(entry.context == context for entry in (*self._queue, *self._in_flight))

    def flush(self, wait: float) -> bool:
        """Wait until the queue is sent or spooled; return False if `wait` seconds are too short."""
        with self._condition:
            return self._condition.wait_for(
                lambda: not (self._has_thread and (self._pending or self._busy)), wait
            )

    def finish(self, seconds: float) -> None:
        """Send what is queued, unless the server is known not to answer."""
        if self._circuit.closed:
            self.flush(seconds)

    def interrupt(self) -> None:
        """End the thread, in the middle of a request if need be; what was not sent is spooled."""
        self.stop()
        self._client.interrupt()

    def stop(self) -> None:
        """End the thread and its connections once the queue is empty; `wake` starts another."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()

    def drain(self, delivery: Delivery, wait: float = 0.0) -> None:
        """Send all of the spool in the calling thread.

        Args:
            delivery: where to count what became of the files, also of those that the background
                thread of this process was faster to send.
            wait: seconds to wait while another process sends the spool.

        Raises:
            RemoteError: the server does not answer, or refuses the sender; the rest waits.
            OSError: the spool's folder cannot be written; nothing was sent.
        """
        try:
            deliver_spool(
                self._spool, self._client.send_json, delivery=delivery, wait=wait, in_hand=0.0
            )
        finally:
            delivery.sent += self._background.sent
            delivery.set_aside += self._background.set_aside

    @property
    def _may_send(self) -> bool:
        is_ready = self._circuit.closed and not self._circuit.busy
        return is_ready and time.monotonic() >= self._refused_until

    @property
    def _pending(self) -> bool:
        return bool(self._queue or self._misses or self._leases)

    def _run(self) -> None:
        while True:
            with self._condition:
                if (self._stopping and not self._pending) or program_is_ending():
                    self._has_thread = False
                    self._condition.notify_all()
                    break
                if not (self._pending or self._is_woken):
                    self._condition.wait(
                        IDLE if self._circuit.closed else max(self._circuit.probe_due_in, 0.05)
                    )
                self._is_woken = False
                self._in_flight, self._queue = self._queue, []
                misses, self._misses = self._misses, Counter()
                leases, self._leases = self._leases, []
                self._busy = bool(self._in_flight or misses or leases)
            try:
                self._send_batch(misses, leases)
            finally:
                with self._condition:
                    self._in_flight, self._busy = [], False
                    self._condition.notify_all()
            self._tend_spool()
        # The store may have been closed or dropped before this thread sent the last of its queue.
        self._client.close()

    def _send_batch(self, misses: Counter[tuple[Context, Scenario]], leases: Iterable[str]) -> None:
        if not self._circuit.closed and self._circuit.probe_due_in <= 0:
            self._try(self._client.check_ready)
        if self._in_flight and not (self._may_send and self._try(self._send_queued)):
            self._has_left_behind = True
            for entry in self._in_flight:
                if entry.path is None:  # the disk may have room by now
                    self._spool.write(entry.text)
        for lease in leases:
            self._send_left_behind()
            # A lease that is not released expires, and whoever waits sees the record before that.
            if self._circuit.closed and not self._has_left_behind:
                self._try(partial(self._client.release, lease))
        if misses and self._circuit.closed:
            self._try(partial(self._client.report_misses, misses))

    def _send_left_behind(self) -> None:
        """Send what was spooled while the server was away: a lease's next holder must find it."""
        if self._has_left_behind and self._may_send:
            drain = partial(self._drain_in_background, 0.0, self._is_ending)
            self._has_left_behind = False  # first: `put` may leave more behind meanwhile
            if not self._try(drain) or self._background.locked:
                self._has_left_behind = True

    def _send_queued(self) -> None:
        documents = [parse_record_set_json(entry.text) for entry in self._in_flight]
        deliver_documents(self._spool, self._send_json, documents)
        for entry in self._in_flight:
            if entry.path is not None:
                self._spool.remove(entry.path)

    def _tend_spool(self) -> None:
        is_tried = False
        if self._may_send and not self._should_stop_draining():
            drain = partial(self._drain_in_background, IN_HAND_SECONDS, self._should_stop_draining)
            is_tried = self._try(drain) and self._background.is_complete
        # What the server would still take must not be deleted.
        if (is_tried or not self._may_send) and not self._is_ending():
            self._sweep_spool()

    def _sweep_spool(self) -> None:
        now = time.monotonic()
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_EVERY
            with suppress(OSError):
                self._spool.sweep(self._background.undelivered)

    def _should_stop_draining(self) -> bool:
        return self._pending or self._is_ending()

    def _is_ending(self) -> bool:
        return self._stopping or program_is_ending()

    def _drain_in_background(self, in_hand: float, should_stop: Callable[[], bool]) -> None:
        now = time.monotonic()
        self._failed = {path: until for path, until in self._failed.items() if until > now}
        self._background.failed.clear()
        try:
            deliver_spool(
                self._spool,
                self._send_json,
                skip=self._failed,
                should_stop=should_stop,
                delivery=self._background,
                in_hand=in_hand,
            )
        finally:
            self._failed.update(dict.fromkeys(self._background.failed, now + PAUSE))

    def _send_json(self, text: bytes, records: int) -> None:
        """Send a record set, and pause if the server refuses who sends it."""
        try:
            self._client.send_json(text, records)
        except RefusedError as error:
            if error.status not in REFUSALS_FOR_GOOD:
                self._refused_until = time.monotonic() + PAUSE
                reason = "is read-only for this token" if error.status == 403 else "takes nothing"
                warn_once(
                    f"refused {self._client.url}",
                    f"{self._client.url} {reason}: {error}; records wait in {self._spool.folder}",
                )
            raise

    def _try(self, action: Callable[[], object]) -> bool:
        """Run an action; return whether it succeeded, and open the circuit if the server failed."""
        if self._circuit.busy:
            return False
        try:
            action()
        except (RefusedError, ServerFaultError) as error:  # it answers, and may serve others
            done = False
            if isinstance(error, ServerFaultError):
                warn_once(f"fault {self._client.url}", str(error))
        except BusyError as error:
            self._circuit.record_busy(error)
            return False
        except RemoteError:
            self._circuit.record_failure()
            return False
        except OSError as error:  # this machine's disk, which says nothing of the server
            warn_once(f"disk {self._client.url}", str(error))
            return False
        except Exception as error:  # `flush` waits for this thread, so it must not end here
            warn_once(
                f"sender {self._client.url}", f"{self._client.url}: {type(error).__name__}: {error}"
            )
            self._circuit.record_failure()
            return False
        else:
            done = True
        self._circuit.record_success()
        return done
