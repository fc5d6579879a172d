"""Background thread that sends records and misses, so that no launch waits for the server."""

from __future__ import annotations

import os
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

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
from dejavu_cache.system.safe_files import read_file

from .circuit import CircuitBreaker
from .errors import RefusedError, RemoteError, ServerFaultError
from .protocol_client import ProtocolClient
from .spool import (
    REFUSALS_FOR_GOOD,
    Document,
    Spool,
    encode,
    join,
    parse_record_set_json,
    upload,
)

__all__ = ["IN_HAND", "Delivery", "Sender"]

IDLE = 5.0
"""Seconds between checks of the spool while the queue is empty."""

IN_HAND = 5.0
"""Seconds for which a file is left to the process that wrote it and is about to send it."""

BATCH_FILES = 100
"""Most files that are read at once and sent together."""

PAUSE = 60.0
"""Seconds until records are sent again after the server refused the sender or failed on them."""

TRIM_EVERY = 600.0
"""Seconds between two looks at the size of the spool."""


@dataclass
class _Queued:
    """A record set's file in the spool, or the encoded set if the disk is full."""

    context: Context
    path: Path | None
    text: bytes


@dataclass
class Delivery:
    """What became of a spool's files.

    Attributes:
        sent: how many record sets the server confirmed altogether.
        problems: why files wait.
    """

    sent: int = 0
    problems: list[str] = field(default_factory=list)


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
        self._reset()
        at_program_end(self)
        _senders.add(self)

    def _reset(self) -> None:
        """Clear all state; after a fork the parent still sends what was queued."""
        self._condition = ForkCondition()
        self._queue: list[_Queued] = []
        self._unsent: list[_Queued] = []
        """What could not be sent when it was queued; leases are not released before it."""
        self._misses: Counter[tuple[Context, Scenario]] = Counter()
        self._leases: list[str] = []
        self._is_busy = False
        self._has_thread = False
        self._is_stopping = False
        self._is_woken = False
        self._refused_until = 0.0
        self._delivery = Delivery()
        self._next_drain = self._next_trim = 0.0

    def put(self, context: Context, records: Iterable[Record]) -> None:
        """Spool records, queue them, and return."""
        with uninterrupted():  # also a daemon thread of the program's own may put records
            text = canonical_json(RecordSet(context=context, records=tuple(records))).encode()
        path = self._spool.write(text)
        with self._condition:
            self._queue.append(_Queued(context, path, b"" if path else text))
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
            self._is_stopping = False
            self._is_woken = True
            if not self._has_thread:
                self._has_thread = start_thread(self._run, "dejavu-cache sender") is not None
            self._condition.notify_all()

    def is_sending(self, context: Context) -> bool:
        """Whether records of a context are queued or being sent."""
        with self._condition:
            return any(entry.context == context for entry in self._queue)

    def flush(self, wait: float) -> bool:
        """Wait until the queue is sent or spooled; return False if `wait` seconds are too short."""
        with self._condition:
            return self._condition.wait_for(
                lambda: not (self._has_thread and (self._has_work or self._is_busy)), wait
            )

    def finish(self, seconds: float) -> None:
        """Send what is queued, unless the server is known not to answer."""
        if self._circuit.closed:
            self.flush(seconds)

    def interrupt(self) -> None:
        """End the thread, whose request is interrupted too; what was not sent is spooled."""
        self.stop()

    def stop(self) -> None:
        """End the thread once the queue is empty; `wake` starts another."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify_all()

    def drain(self, wait: float = 0.0, in_hand: float = 0.0) -> Delivery:
        """Send all of the spool in the calling thread.

        Args:
            wait: seconds to wait while another process sends the spool.
            in_hand: files that are younger, in seconds, are left alone.

        Returns:
            What became of the files, also of those that the background thread of this process was
            faster to send.
        """
        delivery = Delivery()
        try:
            self._send_spool(delivery, wait, in_hand)
        except RemoteError as error:
            delivery.problems.append(str(error))
        except OSError as error:
            delivery.problems.append(f"{error.filename}: {error.strerror}")
        delivery.sent += self._delivery.sent
        return delivery

    @property
    def _may_send(self) -> bool:
        is_ready = self._circuit.closed and not self._circuit.busy
        return is_ready and time.monotonic() >= self._refused_until

    @property
    def _has_work(self) -> bool:
        return bool(self._queue or self._misses or self._leases)

    def _run(self) -> None:
        while True:
            with self._condition:
                if (self._is_stopping and not self._has_work) or program_is_ending():
                    self._has_thread = False
                    self._condition.notify_all()
                    return
                if not (self._has_work or self._is_woken):
                    self._condition.wait(
                        IDLE if self._circuit.closed else max(self._circuit.probe_due_in, 0.05)
                    )
                self._is_woken = False
                queued = list(self._queue)
                misses, self._misses = self._misses, Counter()
                leases, self._leases = self._leases, []
                self._is_busy = bool(queued or misses or leases)
            try:
                self._send_batch(queued, misses, leases)
            finally:
                with self._condition:
                    del self._queue[: len(queued)]
                    self._is_busy = False
                    self._condition.notify_all()
            self._tend_spool()

    def _send_batch(
        self,
        queued: list[_Queued],
        misses: Counter[tuple[Context, Scenario]],
        leases: Iterable[str],
    ) -> None:
        if not self._circuit.closed and self._circuit.probe_due_in <= 0:
            self._try(self._client.check_ready)
        self._unsent += queued
        if self._unsent and self._may_send and self._try(self._send_unsent):
            self._unsent.clear()
        for entry in self._unsent:
            if entry.path is None:  # the disk may have room by now
                entry.path = self._spool.write(entry.text)
        for lease in leases:
            # A lease that is not released expires, and whoever waits sees the record before that.
            if self._circuit.closed and not self._unsent:
                self._try(partial(self._client.release, lease))
        if misses and self._circuit.closed:
            self._try(partial(self._client.report_misses, misses))

    def _send_unsent(self) -> None:
        paths = [entry.path for entry in self._unsent if entry.path is not None]
        self._send_files(paths, self._delivery)
        self._send_documents(
            parse_record_set_json(entry.text) for entry in self._unsent if entry.path is None
        )

    def _tend_spool(self) -> None:
        now = time.monotonic()
        if self._delivery.problems:
            self._delivery.problems.clear()
            self._next_drain = now + PAUSE
        is_due = self._may_send and now >= self._next_drain and not self._should_stop_draining()
        if is_due and len(self._spool):
            self._try(
                partial(self._send_spool, self._delivery, 0.0, IN_HAND, self._should_stop_draining)
            )
        if now >= self._next_trim and not self._is_ending():
            self._next_trim = now + TRIM_EVERY
            self._spool.trim()

    def _should_stop_draining(self) -> bool:
        return self._has_work or self._is_ending()

    def _is_ending(self) -> bool:
        return self._is_stopping or program_is_ending()

    def _send_spool(
        self,
        delivery: Delivery,
        wait: float,
        in_hand: float,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Send the spool's files, the oldest first, and delete those that the server confirms.

        Raises:
            RemoteError: the server does not answer, or refuses the sender; the files stay.
            OSError: the spool's folder cannot be written; nothing was sent.
        """
        if not self._spool.waiting():
            return
        with self._spool.exclusive(wait) as is_ours:
            if not is_ours:
                delivery.problems.append("another process is sending it")
                return
            now = time.time()  # a clock that was put back makes files of the future: not in hand
            paths = [
                file.path
                for file in self._spool.waiting()
                if not now - in_hand < file.written <= now
            ]
            for start in range(0, len(paths), BATCH_FILES):
                if should_stop():
                    return
                self._send_files(paths[start : start + BATCH_FILES], delivery)

    def _send_files(self, paths: Iterable[Path], delivery: Delivery) -> None:
        """Send some of the spool's files together, whoever else sends them too."""
        documents: dict[Path, Document] = {}
        for path in paths:
            try:
                if (text := self._spool.read(path)) is not None:
                    documents[path] = parse_record_set_json(text)
            except OSError as error:
                delivery.problems.append(f"{path}: {error.strerror}")
            except ValueError as error:
                self._put_damaged_aside(path, f"{path.name} is damaged: {error}", delivery)
        try:
            refused = self._send_documents(documents.values())
        except (ServerFaultError, RecursionError, OSError) as error:
            if len(documents) == 1:
                delivery.problems.append(str(error))
                return
            # One of them makes the server fail, is nested too deeply, or is refused and cannot be
            # set aside; the others do not wait for it.
            for path in documents:
                self._send_files([path], delivery)
            return
        # Counted first: who finds the spool empty reads the counts.
        delivery.sent += max(len(documents) - refused, 0)
        for path in documents:
            self._spool.remove(path)

    def _send_documents(self, documents: Iterable[Document]) -> int:
        """Send record sets, set aside what is refused for good, and return how many that are.

        Raises:
            RemoteError: the server does not answer, or refuses the sender.
            OSError: what was refused cannot be written.
        """
        count = 0
        for document in join(documents):
            for refusal in upload(document, self._send_json):
                self._spool.put_aside(encode(refusal.part), str(refusal.error))
                count += 1
        return count

    def _put_damaged_aside(self, path: Path, reason: str, delivery: Delivery) -> None:
        """Set a damaged file aside; one that cannot be moved there waits where it is."""
        try:
            self._spool.put_aside(read_file(path), reason)
        except OSError as error:
            delivery.problems.append(str(error))
        else:
            self._spool.remove(path)

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
        """Run an action that sends requests, unless the server is busy; return whether it did."""
        if self._circuit.busy:
            return False
        try:
            with self._circuit.watching():
                action()
        except RemoteError as error:
            if isinstance(error, ServerFaultError):
                warn_once(f"fault {self._client.url}", str(error))
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
        return True


_senders: weakref.WeakSet[Sender] = weakref.WeakSet()


def _after_fork() -> None:
    for sender in _senders:
        sender._reset()


os.register_at_fork(after_in_child=_after_fork)
