"""A team's server as a store that never holds up the program that asks it."""

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
from typing import Any, TypeVar

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
"""How long a tuner that died keeps the others from a scenario."""

LOOK_AGAIN = 2.0
"""Seconds between two looks at whether a lease has ended without a record."""

LAST_WORDS = 2.0
"""Seconds that the end of a process, or of a lease, gives the queue; what is left then is spooled."""


def open_remote(url: str) -> RemoteStore:
    """Opens `https://host[:port][/path][?namespace=NAME]` with this process's token, namespace and wait."""
    settings = current_settings()
    base, namespace = split_server_url(url, settings.namespace)
    return RemoteStore(
        ProtocolClient(base, token=settings.token, namespace=namespace), wait=settings.wait
    )


class RemoteStore(Store):
    """A namespace of a server.

    Reading asks once per context, for all its records. It waits `wait` seconds at the most, whatever the
    server does; then the circuit opens, and until a background thread has seen the server answer again,
    every call raises `UnreachableError` at once. `put` queues and returns; `put_now` waits. The server keeps the
    first claim about a config, so `on_conflict` only ever matters as `"fail"`.

    Args:
        wait: seconds that a call may take.
        spool: where records wait while the server is away.
        lease_seconds: after which a lease that is not renewed ends.
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
        self.url = f"{client.url}?namespace={client.namespace}"
        self.client = client
        self.wait = wait
        self.circuit = CircuitBreaker()
        self.spool = Spool(self.url) if spool is None else spool  # an empty one is false
        self.sender = Sender(client, self.circuit, self.spool)
        self._lease_seconds = lease_seconds
        self._known: dict[Context, tuple[str, dict[Scenario, Record]]] = {}
        _opened.add(self)
        # A store that is dropped unclosed leaves no connections behind; the end of the process flushes first.
        weakref.finalize(self, _let_go, self.sender, client).atexit = False
        if len(self.spool):
            self.sender.wake()

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        record = self._records_of(context, fresh=fresh).get(scenario)
        return Found(record, self.url) if record else None

    def records(self, context: Context) -> Iterator[Record]:
        held = self._records_of(context, fresh=True).values()
        return iter(sorted(held, key=lambda record: record.scenario.text))

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        self._settle()
        found = self._ask(lambda: list(self.client.contexts(kernel)))
        return iter(sorted(found, key=lambda context: context.text))

    def put(
        self, context: Context, records: Iterable[Record], on_conflict: OnConflict = "newest"
    ) -> None:
        records = list(records)
        if on_conflict == "fail":
            known = self._records_of(context, fresh=True)
            for record in records:
                merge_records(known.get(record.scenario, record), record, "fail")
        self.sender.put(context, _unpinned(records))
        for record in records:
            if record.pin is not None:
                self._pin(context, record)

    def put_now(self, context: Context, records: Iterable[Record]) -> None:
        whole = RecordSet(context=context, records=_unpinned(records))
        self._ask(lambda: self.client.send(whole))
        self._known.pop(context, None)

    def _pin(self, context: Context, record: Record) -> None:
        """Pins are for admins, who want to know whether it worked: this waits and raises."""
        pin = record.pin
        assert pin is not None
        self.sender.flush(LAST_WORDS)
        self.client.pin(context, record.scenario, pin.config, pin.by or whoami())
        self._known.pop(context, None)

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        self._settle()
        self._known.pop(context, None)
        return self.client.delete(context, scenarios)

    def miss(self, context: Context, scenario: Scenario) -> None:
        self.sender.miss(context, scenario)

    @contextmanager
    def lease(self, context: Context, scenario: Scenario, *, wait: float) -> Iterator[bool]:
        try:
            lease = self._acquire(context, scenario, time.monotonic() + wait)
        except RemoteError:  # nobody to ask: everybody may tune
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

    def _acquire(self, context: Context, scenario: Scenario, until: float) -> str | None:
        holder = f"{whoami()}:{os.getpid()}:{threading.get_ident()}"
        while True:
            lease = self._ask(
                lambda: self.client.lease(context, scenario, holder, self._lease_seconds)
            )
            left = until - time.monotonic()
            if lease is not None or left <= 0:
                return lease
            # Wakes when the record is there; its tuner lets go of the lease right after.
            patience = min(left, LOOK_AGAIN)
            if self._ask(
                partial(self.client.record, context, scenario, patience), self.wait + patience
            ):
                time.sleep(min(left, 0.1))

    def _renew(self, lease: str, done: threading.Event) -> None:
        while not done.wait(self._lease_seconds / 3):
            with suppress(RemoteError):
                self.client.renew(lease, self._lease_seconds)

    def close(self) -> None:
        """Sends what is queued, or spools it if that takes longer than two seconds."""
        idle = self._settle()
        self.sender.stop()
        if idle:  # else a thread still waits for an answer, and closing would fail it
            self.client.close()

    def _settle(self) -> bool:
        idle = self.sender.flush(LAST_WORDS)
        if not idle:
            self.sender.spool_rest()
        return idle

    def _records_of(self, context: Context, *, fresh: bool) -> dict[Scenario, Record]:
        known = self._known.get(context)
        if known is None or fresh or self.sender.holds(context):
            until = time.monotonic() + self.wait
            if self.circuit.closed:
                self.sender.flush(self.wait)  # what this process wrote, it reads
            known = self._load(context, known, max(until - time.monotonic(), 0.0))
        return known[1]

    def _load(
        self, context: Context, known: tuple[str, dict[Scenario, Record]] | None, wait: float
    ) -> tuple[str, dict[Scenario, Record]]:
        def ask() -> tuple[str, dict[Scenario, Record]]:
            bulk: Bulk | None = self.client.bulk(context, known[0] if known else "")
            fetched = known if bulk is None else (bulk.etag, merge_into({}, bulk.records))
            assert fetched is not None
            self._known[context] = fetched  # also when whoever asked has stopped waiting
            return fetched

        try:
            return self._ask(ask, wait)
        except RemoteError:
            if known is None:
                raise
            return known

    def _ask(self, question: Callable[[], T], wait: float | None = None) -> T:
        """Asks the server, and stops waiting when the time is over, even if the server goes on dripping.

        Args:
            wait: another time than this store's.

        Raises:
            RemoteError: the circuit is open, or this opened it.
        """
        if not self.circuit.closed:
            self.sender.wake()
            raise UnreachableError(
                f"{self.client.url} did not answer; it is asked again in the background"
            )
        try:
            return _within(self.wait if wait is None else wait, question)
        except TimeoutError:
            self._give_up()
            raise UnreachableError(
                f"{self.client.url} did not answer within {self.wait:g} s"
            ) from None
        except UnreachableError:
            self._give_up()
            raise
        except RemoteError as error:
            if not hasattr(error, "status"):
                self._give_up()
            raise

    def _give_up(self) -> None:
        self.circuit.failed()
        self.sender.wake()


def _within(seconds: float, question: Callable[[], T]) -> T:
    """The answer to a question, if it comes in time; the thread that asked may go on alone."""
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


def _unpinned(records: Iterable[Record]) -> tuple[Record, ...]:
    return tuple(record.model_copy(update={"pin": None}) for record in records)


def _let_go(sender: Sender, client: ProtocolClient) -> None:
    sender.stop()
    client.close()


_opened: weakref.WeakSet[RemoteStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in _opened:
        store.circuit = store.sender._circuit = CircuitBreaker()
        store.sender.reset()
        store.client.forget()


@atexit.register
def _at_exit() -> None:
    for store in list(_opened):
        store.close()


os.register_at_fork(after_in_child=_after_fork)
