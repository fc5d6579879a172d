"""Comparison of a machine's copies with a server's records, in few requests."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dejavu_cache.model.record import Record
from dejavu_cache.model.scenario import Context, Scenario, canonical_json
from dejavu_cache.stores.base import CopyChanges
from dejavu_cache.system.background_threads import uninterrupted

from .answers import validate
from .errors import RefusedError
from .protocol_client import ProtocolClient

__all__ = ["CopyCheck"]

MOST_COPIES = 1_000
"""Copies that one request asks about."""

REPEATED_SECONDS = 60.0
"""Time for which recalls are repeated, at least once: look-ups from before them end within it."""


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


class CopyCheck:
    """Asks a server what has changed since it was last asked.

    Args:
        client: the connection to the namespace.
    """

    def __init__(self, client: ProtocolClient) -> None:
        """Begin without knowledge of any record."""
        self._client = client
        self._states: dict[Context, _ContextState] = {}
        self._is_supported = True

    def changes(self, copies: Mapping[Context, Collection[Scenario]]) -> dict[Context, CopyChanges]:
        """Return what has changed, and the recalls that the server has told of lately.

        Nothing is returned if the server is of a version that cannot tell.
        """
        changed: dict[Context, list[Record]] = {}
        # Described before the first answer, which renews the revisions.
        requests = [
            (part, {context.digest: self._describe(context, part[context]) for context in part})
            for part in _split(copies)
        ]
        for part, request in requests:
            for context, records in self._ask(part, request).items():
                changed.setdefault(context, []).extend(records)
        return {
            context: CopyChanges(changed.get(context, []), recalls)
            for context in copies
            if (recalls := self._repeat(context)) or context in changed
        }

    def _repeat(self, context: Context) -> dict[str, list[str]]:
        """Return a context's recalls; after some time, for the last time."""
        state = self._states.get(context, _ContextState())
        recalls = dict(state.recalls)
        if time.monotonic() - state.told_at > REPEATED_SECONDS:
            state.recalls.clear()
        return recalls

    def _ask(
        self, part: Mapping[Context, Collection[Scenario]], request: Mapping[str, Any]
    ) -> dict[Context, list[Record]]:
        """Return the changed records of the contexts that have changed."""
        if not self._is_supported:
            return {}
        try:
            answer = self._client.revalidate(request)
        except RefusedError as error:
            if error.status not in (404, 405):
                raise
            self._is_supported = False
            return {}
        return {
            context: self._read(context, answer[context.digest], scenarios)
            for context, scenarios in part.items()
            if context.digest in answer
        }

    def _describe(self, context: Context, scenarios: Collection[Scenario]) -> dict[str, Any]:
        state = self._states.get(context, _ContextState())
        digests = [scenario.digest for scenario in scenarios]
        is_complete = all(digest in state.tags for digest in digests)
        return {
            "revision": state.revision if is_complete else "",
            "scenarios": {digest: state.tags.get(digest, "") for digest in digests},
        }

    def _read(
        self, context: Context, changed: Any, scenarios: Collection[Scenario]
    ) -> list[Record]:
        """Note a context's new state, and return the changed records of the scenarios."""
        changed = changed if isinstance(changed, dict) else {}
        server = self._client.url
        records: list[Record] = validate(list[Record], changed.get("records"), server)
        recalls: dict[str, list[str]] = validate(
            dict[str, list[str]], changed.get("recalls"), server
        )
        state = self._states.setdefault(context, _ContextState())
        gone = set(validate(list[str], changed.get("gone"), server))
        # Only what was asked about is kept, or a server could fill the memory.
        for digest in (scenario.digest for scenario in scenarios):
            state.tags[digest] = "" if digest in gone else state.tags.get(digest, "")
            state.recalls.pop(digest, None)
            if parts := recalls.get(digest):
                state.recalls[digest] = parts
        for record in records:
            with uninterrupted():
                if record.scenario.digest in state.tags:
                    state.tags[record.scenario.digest] = _tag(record)
        state.told_at = time.monotonic()
        state.revision = str(changed.get("revision", ""))[:64]
        return records


def _tag(record: Record) -> str:
    return hashlib.sha256(canonical_json(record).encode()).hexdigest()[:16]


def _split(
    copies: Mapping[Context, Collection[Scenario]],
) -> Iterator[dict[Context, list[Scenario]]]:
    """Divide copies into parts for one request each."""
    part: dict[Context, list[Scenario]] = {}
    count = 0
    for context, scenarios in copies.items():
        for scenario in scenarios:
            part.setdefault(context, []).append(scenario)
            count += 1
            if count == MOST_COPIES:
                yield part
                part, count = {}, 0
    if part:
        yield part
