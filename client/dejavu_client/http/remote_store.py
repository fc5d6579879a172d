"""Store on a team's server; no call takes longer than its configured wait."""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from dejavu_cache.model.merge import merge_into
from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.model.scenario import Context, Scenario
from dejavu_cache.settings import current_settings
from dejavu_cache.stores import Found, Store
from dejavu_cache.stores.base import CopyChanges
from dejavu_cache.system.background_threads import FLUSH_SECONDS
from dejavu_cache.system.notices import whoami

from .circuit_breaker import CircuitBreaker
from .copy_check import CopyCheck
from .errors import BusyError, RemoteError
from .protocol_client import ProtocolClient, split_server_url
from .scenario_listings import ScenarioListings
from .sender import Sender
from .server_calls import BUSY_SECONDS, ServerCalls
from .server_lease import LEASE_SECONDS, ServerLease
from .spool import Spool
from .token_source import TokenSource

__all__ = ["RemoteStore", "open_remote"]

CONTEXT_SECONDS = 60.0
"""Silence, and length, that a download of a whole context may have; no launch waits for one."""

MOST_ANSWERS = 1000
"""Records and misses of a context that are remembered."""


def open_remote(url: str) -> RemoteStore:
    """Open a server's URL with the token, namespace and wait of this process's settings.

    Args:
        url: `https://host[:port][/path][?namespace=NAME]`.
    """
    settings = current_settings()
    base, namespace = split_server_url(url, settings.namespace)
    token = TokenSource(settings.token, settings.token_file)
    return RemoteStore(ProtocolClient(base, token=token, namespace=namespace), wait=settings.wait)


class RemoteStore(Store):
    """One namespace of a server.

    A launch asks for one record by its key, and the answer is remembered. If the server is silent
    for `wait` seconds, the circuit opens, and every call raises `UnreachableError` at once until a
    background thread has reached the server again; this process's own work and a busy machine are
    not counted. A server that answers 429 or 503 with `Retry-After` is left alone for that long:
    where a launch would tune or fail otherwise, it waits, for up to `BUSY_SECONDS`, and for a
    minute in all. `put` queues the records and returns; `put_now` waits. The server keeps the first
    measurement of a config, so of the values of `on_conflict` only `"fail"` has an effect.

    Args:
        client: the connection to the namespace.
        wait: seconds for which the server may be silent, while a connection is set up and again
            while it answers.
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
        self.circuit = CircuitBreaker()
        self.spool = Spool(self.url) if spool is None else spool  # an empty spool is falsy
        self.sender = Sender(client, self.circuit, self.spool)
        self._lease_seconds = lease_seconds
        self._calls = ServerCalls(client.url, self.circuit, self.sender.wake, wait)
        self._answers: dict[Context, dict[Scenario, Record | None]] = {}
        self._listings = ScenarioListings(client, self._forget)
        self._copy_check = CopyCheck(client)
        self._failures: Counter[Context] = Counter()
        _live_stores.add(self)
        # A store that is garbage-collected without `close` must not leave connections open. Not at
        # exit: what is queued is sent first.
        weakref.finalize(self, _stop_client, self.sender, client).atexit = False
        if len(self.spool):
            self.sender.wake()

    @property
    def wait(self) -> float:
        """Seconds for which the server may be silent; commands set more than launches."""
        return self._calls.wait

    @wait.setter
    def wait(self, seconds: float) -> None:
        self._calls.wait = seconds

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        """Return a scenario's record; without `fresh`, as the server last answered."""
        answers = self._answers.get(context, {})
        if not fresh and scenario in answers and not self.sender.is_sending(context):
            record = answers[scenario]
        else:
            # Who asks anew would otherwise tune or fail: it waits for a busy server.
            record = self._look_up(context, scenario, BUSY_SECONDS if fresh else 0.0)
        return Found(record, self.url) if record else None

    def _look_up(self, context: Context, scenario: Scenario, patience: float) -> Record | None:
        try:
            if self.circuit.closed and self.sender.is_sending(context):
                self.sender.flush(self.wait)  # so that this process reads what it wrote
            return self._ask_for_record(context, scenario, patience)
        except RemoteError:
            answers = self._answers.get(context, {})
            if scenario not in answers:
                self._failures[context] += 1
                raise
            return answers[scenario]

    def _ask_for_record(
        self, context: Context, scenario: Scenario, patience: float
    ) -> Record | None:
        answer = self._calls.ask_patiently(
            partial(self.client.fetch_record, context, scenario), patience
        )
        with self._calls.blaming_nonsense():
            record = self.client.parse_record(scenario, answer)
        answers = self._answers.setdefault(context, {})
        if len(answers) >= MOST_ANSWERS:
            answers.clear()
        answers[scenario] = record
        return record

    def _forget(self, context: Context) -> None:
        self._answers.pop(context, None)

    def records(self, context: Context) -> Iterator[Record]:
        """Return all of the server's records of a context, after sending what is queued."""
        self.sender.flush(FLUSH_SECONDS)
        answer = self._calls.ask(
            partial(self.client.fetch_bulk, context), CONTEXT_SECONDS, limit=CONTEXT_SECONDS
        )
        with self._calls.blaming_nonsense():
            bulk = self.client.parse_bulk(context, answer)
        records = merge_into({}, bulk.records if bulk else ()).values()
        return iter(sorted(records, key=lambda record: record.scenario.text))

    def scenario_texts(self, context: Context) -> Iterator[str]:
        """Return a context's scenarios as last listed; only the first listing is waited for."""
        if self.sender.is_sending(context):
            self.sender.flush(self.wait)
            self._listings.refresh(context, self.wait)
        return iter(self._listings.texts(context, self.wait))

    def revision(self, context: Context) -> Hashable:
        """Return a value that changes when a listing sees other records or a look-up fails."""
        return self._listings.revision(context), self._failures[context]

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        """Return the contexts that the server has, after sending what is queued."""
        self.sender.flush(FLUSH_SECONDS)
        contexts = self._calls.ask(lambda: list(self.client.contexts(kernel)))
        return iter(sorted(contexts, key=lambda context: context.text))

    def put(self, context: Context, records: Iterable[Record]) -> None:
        """Queue records for the background sender; set their pins before returning."""
        records = list(records)
        # A pin alone is not queued: if it is refused, nothing may be left in the spool.
        measured = [record for record in _without_pins(records) if _has_content(record)]
        if measured:
            self.sender.put(context, measured)
        self._forget(context)
        for record in records:
            if record.pin is not None:
                self._pin(context, record)

    def put_now(self, context: Context, records: Iterable[Record]) -> None:
        """Send records without their pins, and return once the server has confirmed them."""
        records = list(records)
        record_set = RecordSet(context=context, records=_without_pins(records))
        self._calls.ask(lambda: self.client.send(record_set))
        self._forget(context)

    def _pin(self, context: Context, record: Record) -> None:
        """Set a pin and wait for the answer: the admin who pins must see a failure."""
        pin = record.pin
        assert pin is not None
        self.sender.flush(FLUSH_SECONDS)
        self.client.pin(context, record.scenario, pin.config, pin.by or whoami())
        self._forget(context)

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        """Delete records on the server, after sending what is queued; return their number."""
        self.sender.flush(FLUSH_SECONDS)
        self._forget(context)
        return self.client.delete(context, scenarios)

    def revalidate(
        self, copies: Mapping[Context, Collection[Scenario]]
    ) -> dict[Context, CopyChanges]:
        """Return what has changed on the server of the records that this machine has copies of."""
        changes = self._calls.ask(
            lambda: self._copy_check.changes(copies), CONTEXT_SECONDS, limit=CONTEXT_SECONDS
        )
        for context in changes:
            self._forget(context)
        return changes

    def miss(self, context: Context, scenario: Scenario) -> None:
        """Queue a miss for the server's worklist."""
        self.sender.miss(context, scenario)

    @contextmanager
    def lease(self, context: Context, scenario: Scenario, *, wait: float) -> Iterator[bool]:
        """Hold the server's lease on a scenario and renew it in a thread of its own.

        Without a server every process may tune. One that has too many clients is alive, and its
        records must not be tuned again: nobody gets the lease from it.
        """
        lease = ServerLease(self.client, self._calls, context, scenario, self._lease_seconds)
        try:
            if scenario not in self._answers.get(context, {}):
                self._ask_for_record(context, scenario, min(wait, BUSY_SECONDS))
            is_leased, is_alone = lease.acquire(wait), False
        except RemoteError as error:
            is_alone = not (isinstance(error, BusyError) and error.status == 429)
            is_leased = False
        if not is_leased:
            yield is_alone
            return
        with lease.keep_alive(self.sender.release):
            yield True

    def close(self) -> None:
        """Send what is queued; if that takes longer than `FLUSH_SECONDS`, it waits on disk."""
        self.sender.finish(FLUSH_SECONDS)
        self.sender.stop()
        self.client.close()


def _without_pins(records: Iterable[Record]) -> tuple[Record, ...]:
    return tuple(record.model_copy(update={"pin": None}) for record in records)


def _has_content(record: Record) -> bool:
    return bool(record.measurements or record.winner or record.launches)


def _stop_client(sender: Sender, client: ProtocolClient) -> None:
    sender.stop()
    client.close()


_live_stores: weakref.WeakSet[RemoteStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in _live_stores:
        store.circuit = CircuitBreaker()
        store._calls.reset(store.circuit)
        store._listings = ScenarioListings(store.client, store._forget)
        store.sender.reset(store.circuit)
        store.client.abandon_connections()


os.register_at_fork(after_in_child=_after_fork)
