"""Store on a team's server; no call takes longer than its configured wait."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from dejavu_cache.model.merge import OnConflict, merge_into, merge_records
from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.model.scenario import Context, Scenario
from dejavu_cache.provenance import whoami
from dejavu_cache.settings import current_settings
from dejavu_cache.stores import Found, Store

from .circuit_breaker import CircuitBreaker
from .errors import RemoteError, UnreachableError
from .protocol_client import Bulk, ProtocolClient, split_server_url
from .sender import Sender
from .spool import Spool

__all__ = ["RemoteStore", "open_remote"]

T = TypeVar("T")

LEASE_SECONDS = 30.0
"""Lifetime of a lease that is not renewed, and so the delay after a tuner has died."""

LEASE_POLL_SECONDS = 2.0
"""Interval at which a waiting process checks whether a lease has ended without a record."""

FLUSH_SECONDS = 2.0
"""Time for sending the queue when a store or process ends; the rest is spooled."""


def open_remote(url: str) -> RemoteStore:
    """Open a server's URL with the token, namespace and wait of this process's settings.

    Args:
        url: `https://host[:port][/path][?namespace=NAME]`.
    """
    settings = current_settings()
    base, namespace = split_server_url(url, settings.namespace)
    return RemoteStore(
        ProtocolClient(base, token=settings.token, namespace=namespace), wait=settings.wait
    )


class Download(NamedTuple):
    """Records of a context as last downloaded, and the entity tag to ask for changes with."""

    etag: str
    records: dict[Scenario, Record]


class RemoteStore(Store):
    """One namespace of a server.

    Reading downloads all records of a context at once and remembers them. A call waits at most
    `wait` seconds, even if the server keeps sending slowly; then the circuit opens, and every call
    raises `UnreachableError` at once until a background thread has reached the server again. `put`
    queues the records and returns; `put_now` waits. The server keeps the first measurement of a
    config, so of the values of `on_conflict` only `"fail"` has an effect.

    Args:
        client: the connection to the namespace.
        wait: seconds that a call may take.
        spool: where records wait while the server is unreachable; by default in the user's cache.
        lease_seconds: lifetime of a lease that is not renewed.
    """

    remote = True

    def __init__(
        self,
        client: ProtocolClient,
        *,
        wait: float,
        spool: Spool | None = None,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        """Open the namespace, and send in the background what an earlier process spooled."""
        self.url = f"{client.url}?namespace={client.namespace}"
        self.client = client
        self.wait = wait
        self.circuit = CircuitBreaker()
        self.spool = Spool(self.url) if spool is None else spool  # an empty spool is falsy
        self.sender = Sender(client, self.circuit, self.spool)
        self._lease_seconds = lease_seconds
        self._downloads: dict[Context, Download] = {}
        _live_stores.add(self)
        # A store that is garbage-collected without `close` must not leave connections open. Not at
        # exit: `_at_exit` sends the queue first.
        weakref.finalize(self, _stop_client, self.sender, client).atexit = False
        if len(self.spool):
            self.sender.wake()

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        """Return a scenario's record, from the last download of its context unless `fresh`."""
        record = self._records_of(context, fresh=fresh).get(scenario)
        return Found(record, self.url) if record else None

    def records(self, context: Context) -> Iterator[Record]:
        """Return the server's records of a context, downloaded again if they have changed."""
        records = self._records_of(context, fresh=True).values()
        return iter(sorted(records, key=lambda record: record.scenario.text))

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        """Return the contexts that the server has, after sending what is queued."""
        self._flush_or_spool()
        contexts = self._ask(lambda: list(self.client.contexts(kernel)))
        return iter(sorted(contexts, key=lambda context: context.text))

    def put(
        self, context: Context, records: Iterable[Record], on_conflict: OnConflict = "newest"
    ) -> None:
        """Queue records for the background sender; set their pins before returning."""
        records = list(records)
        if on_conflict == "fail":
            existing = self._records_of(context, fresh=True)
            for record in records:
                merge_records(existing.get(record.scenario, record), record, "fail")
        self.sender.put(context, _without_pins(records))
        for record in records:
            if record.pin is not None:
                self._pin(context, record)

    def put_now(self, context: Context, records: Iterable[Record]) -> None:
        """Send records, and return once the server has confirmed them."""
        record_set = RecordSet(context=context, records=_without_pins(records))
        self._ask(lambda: self.client.send(record_set))
        self._downloads.pop(context, None)

    def _pin(self, context: Context, record: Record) -> None:
        """Set a pin and wait for the answer: the admin who pins must see a failure."""
        pin = record.pin
        assert pin is not None
        self.sender.flush(FLUSH_SECONDS)
        self.client.pin(context, record.scenario, pin.config, pin.by or whoami())
        self._downloads.pop(context, None)

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        """Delete records on the server, after sending what is queued; return their number."""
        self._flush_or_spool()
        self._downloads.pop(context, None)
        return self.client.delete(context, scenarios)

    def miss(self, context: Context, scenario: Scenario) -> None:
        """Queue a miss for the server's worklist."""
        self.sender.miss(context, scenario)

    @contextmanager
    def lease(self, context: Context, scenario: Scenario, *, wait: float) -> Iterator[bool]:
        """Hold the server's lease on a scenario and renew it in a thread of its own."""
        try:
            lease = self._acquire(context, scenario, time.monotonic() + wait)
        except RemoteError:  # without a server every process may tune
            yield True
            return
        if lease is None:
            yield False
            return
        done = threading.Event()
        threading.Thread(target=self._renew, args=(lease, done), daemon=True).start()
        try:
            yield True
        finally:
            done.set()
            self.sender.release(lease)

    def _acquire(self, context: Context, scenario: Scenario, deadline: float) -> str | None:
        holder = f"{whoami()}:{os.getpid()}:{threading.get_ident()}"
        while True:
            lease = self._ask(
                lambda: self.client.lease(context, scenario, holder, self._lease_seconds)
            )
            remaining = deadline - time.monotonic()
            if lease is not None or remaining <= 0:
                return lease
            # The server answers as soon as there is a record; its tuner then releases the lease.
            poll = min(remaining, LEASE_POLL_SECONDS)
            if self._ask(partial(self.client.record, context, scenario, poll), self.wait + poll):
                time.sleep(min(remaining, 0.1))

    def _renew(self, lease: str, done: threading.Event) -> None:
        while not done.wait(self._lease_seconds / 3):
            with suppress(RemoteError):
                self.client.renew(lease, self._lease_seconds)

    def close(self) -> None:
        """Send what is queued; spool it if that takes longer than `FLUSH_SECONDS`."""
        self._flush_or_spool()
        self.sender.stop()
        self.client.close()

    def _flush_or_spool(self) -> None:
        if not self.sender.flush(FLUSH_SECONDS):
            self.sender.spool_rest()

    def _records_of(self, context: Context, *, fresh: bool) -> dict[Scenario, Record]:
        download = self._downloads.get(context)
        if download is None or fresh or self.sender.is_sending(context):
            deadline = time.monotonic() + self.wait
            if self.circuit.closed:
                self.sender.flush(self.wait)  # so that this process reads what it wrote
            download = self._download(context, download, max(deadline - time.monotonic(), 0.0))
        return download.records

    def _download(self, context: Context, previous: Download | None, wait: float) -> Download:
        def fetch() -> Download:
            bulk: Bulk | None = self.client.bulk(context, previous.etag if previous else "")
            current = (
                previous if bulk is None else Download(bulk.etag, merge_into({}, bulk.records))
            )
            assert current is not None
            # Stored here and not by the caller, who may have stopped waiting.
            self._downloads[context] = current
            return current

        try:
            return self._ask(fetch, wait)
        except RemoteError:
            if previous is None:
                raise
            return previous

    def _ask(self, question: Callable[[], T], wait: float | None = None) -> T:
        """Run a request and stop waiting at the deadline, even if the server sends byte by byte.

        Args:
            question: the request; runs in a thread of its own.
            wait: seconds to wait; by default this store's `wait`.

        Raises:
            RemoteError: the request failed, or the circuit is open.
        """
        if not self.circuit.closed:
            self.sender.wake()
            raise UnreachableError(
                f"{self.client.url} did not answer; it is asked again in the background"
            )
        try:
            return _call_within(self.wait if wait is None else wait, question)
        except TimeoutError:
            self._open_circuit()
            raise UnreachableError(
                f"{self.client.url} did not answer within {self.wait:g} s"
            ) from None
        except UnreachableError:
            self._open_circuit()
            raise
        except RemoteError as error:
            if not hasattr(error, "status"):
                self._open_circuit()
            raise

    def _open_circuit(self) -> None:
        self.circuit.record_failure()
        self.sender.wake()


def _call_within(seconds: float, question: Callable[[], T]) -> T:
    """Return a function's result if it comes in time; on a timeout its thread runs on."""
    answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put((question(), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=ask, name="dejavu-cache request", daemon=True).start()
    try:
        answer, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return answer  # type: ignore[no-any-return]


def _without_pins(records: Iterable[Record]) -> tuple[Record, ...]:
    return tuple(record.model_copy(update={"pin": None}) for record in records)


def _stop_client(sender: Sender, client: ProtocolClient) -> None:
    sender.stop()
    client.close()


_live_stores: weakref.WeakSet[RemoteStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in _live_stores:
        store.circuit = store.sender._circuit = CircuitBreaker()
        store.sender.reset()
        store.client.abandon_connections()


@atexit.register
def _at_exit() -> None:
    for store in list(_live_stores):
        store.close()


os.register_at_fork(after_in_child=_after_fork)
