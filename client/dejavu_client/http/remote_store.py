"""Store on a team's server; no call takes longer than its configured wait."""

from __future__ import annotations

import hashlib
import os
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from dejavu_cache.model.merge import merge_into
from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.model.scenario import Context, Scenario, canonical_json
from dejavu_cache.model.worth import ONCE, MissCount
from dejavu_cache.settings import current_settings
from dejavu_cache.stores import Found, Store, one_look
from dejavu_cache.stores.base import CopyChanges
from dejavu_cache.system import background_threads
from dejavu_cache.system.notices import whoami

from .circuit import BUSY_SECONDS, ServerCalls, jitter
from .errors import BusyError, RefusedError, RemoteError, UnreachableError
from .protocol_client import ChangedCopies, ProtocolClient, split_server_url
from .sender import Sender, Spool
from .transport import TokenSource

CONTEXT_SECONDS = 60.0
"""Silence that a download of a whole context may have; no launch waits for one."""

MOST_ANSWERS = 1000
"""Records and misses of a context that are remembered."""

LEASE_SECONDS = 30.0
"""Lifetime of a lease that is not renewed, and so the delay after a tuner has died."""

ASK_SECONDS = 1.0
"""Seconds, on average, after which a waiting process asks again whether the record is there."""

ASKS_FOR_LEASE = 3
"""Of so many questions one is for the lease, which may have ended without a record."""

RESTART_SECONDS = 60.0
"""Absence of the server through which a process waits for another one's tune."""

MOST_COPIES = 1_000
"""Copies that one request asks about."""

REPEATED_SECONDS = 60.0
"""Time for which recalls are repeated, at least once: look-ups from before them end within it."""


def open_remote(url: str) -> RemoteStore:
    """Open `https://host[:port][/path][?namespace=NAME]` by the settings of this process."""
    settings = current_settings()
    base, namespace = split_server_url(url, settings.namespace)
    token = TokenSource(settings.token, settings.token_file)
    return RemoteStore(ProtocolClient(base, token=token, namespace=namespace), wait=settings.wait)


class RemoteStore(Store):
    """One namespace of a server.

    A launch asks for one record by its key, and the answer is remembered. If the server is silent
    for `wait` seconds, the circuit opens: calls raise `UnreachableError` at once, except for one
    after each pause. This process's own work and a busy machine are not counted. A server that
    answers 429 or 503 with `Retry-After` is left alone for that long: where a launch would tune or
    fail otherwise, it waits, for up to `BUSY_SECONDS`. `put` queues the records and returns, unless
    it is told to wait. The server keeps the first measurement of a config.

    Args:
        client: the connection to the namespace.
        wait: seconds for which the server may be silent, while a connection is set up and again
            while it answers.
        spool: where records wait while the server is unreachable; by default in the user's cache.
    """

    remote = True
    wait = property(attrgetter("calls.wait"), lambda self, wait: setattr(self.calls, "wait", wait))

    def __init__(self, client: ProtocolClient, *, wait: float, spool: Spool | None = None) -> None:
        """Open the namespace, and send in the background what an earlier process spooled."""
        self.url = f"{client.url}?namespace={client.namespace}"
        self.client = client
        self.calls = ServerCalls(client, wait)
        self.spool = Spool(self.url) if spool is None else spool  # an empty spool is falsy
        self.sender = Sender(self.calls, self.spool)
        self._answers: dict[Context, dict[Scenario, Record | None]] = {}
        self._listings: dict[Context, list[str]] = {}
        self._copy_check = CopyCheck()
        # A store that is garbage-collected without `close` must leave no thread. Not at exit: what
        # is queued is sent first.
        weakref.finalize(self, self.sender.interrupt).atexit = False
        if len(self.spool):
            self.sender.wake()

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        """Return a scenario's record; without `fresh`, as the server last answered."""
        answers = self._answers.get(context, {})
        record, is_sending = answers.get(scenario), self.sender.is_sending(context)
        if fresh or is_sending or scenario not in answers:
            if is_sending and self.calls.closed:
                self.sender.flush(self.calls.wait)  # so that this process reads what it wrote
            try:
                # Who asks anew would otherwise tune or fail: it waits for a busy server.
                record = self._fetch_record(context, scenario, BUSY_SECONDS if fresh else 0.0)
            except RemoteError:
                if scenario not in answers:
                    raise
        return Found(record, self.url) if record else None

    def _fetch_record(self, context: Context, scenario: Scenario, patience: float) -> Record | None:
        record = self.calls.ask_patiently(lambda client: client.record(context, scenario), patience)
        answers = self._answers.setdefault(context, {})
        if len(answers) >= MOST_ANSWERS:
            answers.clear()
        answers[scenario] = record
        return record

    def _forget(self, context: Context) -> None:
        self._answers.pop(context, None)
        self._listings.pop(context, None)

    def records(self, context: Context) -> Iterator[Record]:
        """Return all of the server's records of a context, after sending what is queued."""
        self.sender.flush(background_threads.FLUSH_SECONDS)
        stored = self.calls.ask(lambda client: client.records(context), CONTEXT_SECONDS)
        return iter(sorted(merge_into({}, stored).values(), key=attrgetter("scenario.text")))

    def scenario_texts(self, context: Context) -> Iterator[str]:
        """Return a context's scenarios as last listed; `revalidate` lists a changed one again."""
        if self.sender.is_sending(context):
            self.sender.flush(self.calls.wait)
            self._forget(context)
        if context not in self._listings:
            self._listings[context] = self.calls.ask(lambda client: client.scenario_texts(context))
        return iter(self._listings.get(context, []))

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        """Return the contexts that the server has, after sending what is queued."""
        self.sender.flush(min(background_threads.FLUSH_SECONDS, self.calls.wait))
        contexts = self.calls.ask(lambda client: list(client.contexts(kernel)))
        return iter(sorted(contexts, key=lambda context: context.text))

    def put(self, context: Context, records: Iterable[Record], *, now: bool = False) -> None:
        """Queue records for the background sender; set their pins before returning.

        With `now`, send them without their pins, and return once the server has confirmed them.
        """
        records = list(records)
        unpinned = tuple(record.model_copy(update={"pin": None}) for record in records)
        if now:
            record_set = RecordSet(context=context, records=unpinned)
            with one_look():  # for which the launch's is over, if it has one
                self.calls.ask(lambda client: client.send(record_set))
            self._forget(context)
            return
        # A pin alone is not queued: if it is refused, nothing may be left in the spool.
        measured = [
            record for record in unpinned if record.measurements or record.winner or record.launches
        ]
        if measured:
            self.sender.put(context, measured)
        self._forget(context)
        for record in records:
            if (pin := record.pin) is not None:  # the admin who pins must see a failure
                self.sender.flush(background_threads.FLUSH_SECONDS)
                self.client.pin(context, record.scenario, pin.config, pin.by or whoami())
                self._forget(context)

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        """Delete records on the server, after sending what is queued; return their number."""
        self.sender.flush(background_threads.FLUSH_SECONDS)
        self._forget(context)
        return self.client.delete(context, scenarios)

    def revalidate(
        self, copies: Mapping[Context, Collection[Scenario]]
    ) -> dict[Context, CopyChanges]:
        """Return what has changed on the server of the records that this machine has copies of."""
        changes = self.calls.ask(
            lambda client: self._copy_check.changes(client, copies), CONTEXT_SECONDS
        )
        for context in changes:
            is_listed = context in self._listings
            self._forget(context)
            if is_listed:  # here, where no launch waits for it
                with suppress(RemoteError):  # what has changed must not be lost
                    self.scenario_texts(context)
        return changes

    def miss(self, context: Context, scenario: Scenario, missed: MissCount = ONCE) -> None:
        """Queue launches for the server's worklist."""
        self.sender.miss(context, scenario, missed)

    @contextmanager
    def lease(self, context: Context, scenario: Scenario, *, wait: float) -> Iterator[bool]:
        """Hold the server's lease on a scenario and renew it in a thread of its own.

        Without a server every process may tune. One that has too many clients is alive, and its
        records must not be tuned again: nobody gets the lease from it.
        """
        lease = _ServerLease(self, context, scenario)
        try:
            if scenario not in self._answers.get(context, {}):
                self._fetch_record(context, scenario, min(wait, BUSY_SECONDS))
            is_leased, is_alone = lease.acquire(wait), False
        except RemoteError as error:
            is_leased, is_alone = False, not (isinstance(error, BusyError) and error.status == 429)
        if not is_leased:
            yield is_alone
            return
        with lease.keep_alive():
            yield True

    def close(self) -> None:
        """Send what is queued; if that takes longer than `FLUSH_SECONDS`, it waits on disk."""
        self.sender.finish(background_threads.FLUSH_SECONDS)
        self.sender.interrupt()


class _ServerLease:
    """The right to tune one scenario of a store's namespace."""

    def __init__(self, store: RemoteStore, context: Context, scenario: Scenario) -> None:
        self._store, self._key = store, (context, scenario)
        self._holder = f"{whoami()}:{os.getpid()}:{threading.get_ident()}"
        self._lease: str | None = None
        self._is_over = threading.Event()
        self._etag, self._has_winner = "", False

    def acquire(self, wait: float) -> bool:
        """Acquire the lease; return False if another holder still has it after `wait` seconds.

        Whoever waits has been answered once. The tune that it waits for goes on while the server
        restarts, so the server may then be away for `RESTART_SECONDS`.

        Raises:
            RemoteError: the server does not answer, or refuses.
        """
        deadline = time.monotonic() + wait
        self._lease = self._store.calls.ask_patiently(self._request, min(wait, BUSY_SECONDS))
        answered, asked = time.monotonic(), 0
        while self._lease is None and (remaining := deadline - time.monotonic()) > 0:
            # The processes of a fleet must not ask all at once.
            time.sleep(min(remaining, ASK_SECONDS * jitter.uniform(0.75, 1.25)))
            asked += 1
            try:
                with one_look(), suppress(BusyError):
                    if not self._is_tuned() and asked % ASKS_FOR_LEASE:
                        continue
                    self._lease = self._store.calls.ask(self._request, at_once=True)
                answered = time.monotonic()
            except UnreachableError:
                if time.monotonic() - answered > RESTART_SECONDS:
                    raise
        return self._lease is not None

    def _request(self, client: ProtocolClient) -> str | None:
        return client.lease(*self._key, self._holder, LEASE_SECONDS)

    def _is_tuned(self) -> bool:
        """Return whether the scenario had a winner when the server was last reached."""
        with suppress(RemoteError):
            answer = self._store.calls.ask(
                lambda client: client.fetch_record(*self._key, self._etag)
            )
            if answer.status != 304:  # a record has hundreds of measurements before its winner
                self._has_winner = bool(self._store.client.read_object(answer.body).get("winner"))
                self._etag = answer.headers.get("etag", "")
        return self._has_winner

    @contextmanager
    def keep_alive(self) -> Iterator[None]:
        """Renew the acquired lease in a thread of its own, and have it released at the end."""
        background_threads.start_thread(self._renew, "dejavu-cache lease", in_turns=True)
        try:
            yield
        finally:
            self._is_over.set()
            self._store.sender.release(str(self._lease))

    def _renew(self) -> bool:
        if self._is_over.wait(LEASE_SECONDS / 3) or background_threads.program_is_ending():
            return False
        with suppress(RemoteError):
            try:
                self._store.client.renew(str(self._lease), LEASE_SECONDS)
            except RefusedError as error:
                if error.status != 404:
                    raise
                # It expired while the server was away; nobody else may have taken it since.
                self._lease = self._request(self._store.client) or self._lease
        return True


@dataclass
class _ContextState:
    """The state of a context's records as the server last told it.

    Attributes:
        revision: the revision of the context.
        tags: the tags of the records by the digest of their scenario; empty without a record.
        recalls: the recalled parts by the digest of their scenario, as long as they are repeated.
        told_at: when the server last told of a change, by the monotonic clock.
    """

    revision: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    recalls: dict[str, list[str]] = field(default_factory=dict)
    told_at: float = 0.0

    def describe(self, scenarios: Collection[Scenario]) -> dict[str, Any]:
        """Return the state of some scenarios as the server is asked about it."""
        digests = [scenario.digest for scenario in scenarios]
        is_complete = all(digest in self.tags for digest in digests)
        return {
            "revision": self.revision if is_complete else "",
            "scenarios": {digest: self.tags.get(digest, "") for digest in digests},
        }

    def note(self, changed: ChangedCopies, scenarios: Collection[Scenario]) -> None:
        """Note what has changed of the scenarios that were asked about."""
        # Nothing else is kept, or a server could fill the memory.
        for digest in (scenario.digest for scenario in scenarios):
            self.tags[digest] = "" if digest in changed.gone else self.tags.get(digest, "")
            self.recalls.pop(digest, None)
            if parts := changed.recalls.get(digest):
                self.recalls[digest] = parts
        for record in changed.records:
            with background_threads.uninterrupted():
                if (digest := record.scenario.digest) in self.tags:
                    text = canonical_json(record).encode()
                    self.tags[digest] = hashlib.sha256(text).hexdigest()[:16]
        self.told_at, self.revision = time.monotonic(), changed.revision

    def repeat(self) -> dict[str, list[str]]:
        """Return the recalls; after some time, for the last time."""
        recalls = dict(self.recalls)
        if time.monotonic() - self.told_at > REPEATED_SECONDS:
            self.recalls.clear()
        return recalls


@dataclass
class CopyCheck:
    """Asks a server what has changed of a machine's copies since it was last asked."""

    _states: dict[Context, _ContextState] = field(default_factory=dict)

    def changes(
        self, client: ProtocolClient, copies: Mapping[Context, Collection[Scenario]]
    ) -> dict[Context, CopyChanges]:
        """Return what has changed, and the recalls that the server has told of lately."""
        changed: dict[Context, list[Record]] = {}
        states = {of: self._states.setdefault(of, _ContextState()) for of in copies}
        # Described before the first answer, which renews the revisions.
        requests = [
            (part, {of.digest: states[of].describe(part[of]) for of in part})
            for part in _split(copies)
        ]
        for part, request in requests:
            answer = client.revalidate(request)
            for context, scenarios in part.items():
                if context.digest in answer:
                    states[context].note(answer[context.digest], scenarios)
                    changed.setdefault(context, []).extend(answer[context.digest].records)
        return {
            context: CopyChanges(changed.get(context, []), recalls)
            for context in copies
            if (recalls := states[context].repeat()) or context in changed
        }


def _split(
    copies: Mapping[Context, Collection[Scenario]],
) -> Iterator[dict[Context, list[Scenario]]]:
    """Divide copies into parts for one request each."""
    pairs = [(context, scenario) for context, of in copies.items() for scenario in of]
    for start in range(0, len(pairs), MOST_COPIES):
        part: dict[Context, list[Scenario]] = {}
        for context, scenario in pairs[start : start + MOST_COPIES]:
            part.setdefault(context, []).append(scenario)
        yield part
