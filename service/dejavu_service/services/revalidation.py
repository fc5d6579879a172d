"""Revalidation of the copies that a machine has of records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from dejavu_cache.model.merge import part_digests
from dejavu_cache.model.record import Record

from ..errors import TooLargeError
from ..storage import contexts, recalls
from ..storage.database import Database
from .read_through import RecordView, iter_texts, join_revisions

__all__ = ["ContextCopy", "Copies", "revalidate", "tag_of"]

_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{24}$")]
_MOST_BYTES = 64 * 2**20
"""Bytes of the records in an answer, below those that clients read, unless one is larger."""
_Tag = Annotated[str, Field(max_length=16)]


class ContextCopy(BaseModel):
    """A client's copies of records of one context.

    Attributes:
        revision: The revision as of the client's last revalidation; empty if there was none.
        scenarios: The tag of the record that the client got last, by the digest of its scenario;
            empty if it got none.
    """

    model_config = ConfigDict(extra="forbid")

    revision: str = Field(default="", max_length=64)
    scenarios: dict[_Digest, _Tag] = Field(min_length=1, max_length=100_000)


class Copies(BaseModel):
    """A client's copies by the digest of their context."""

    model_config = ConfigDict(extra="forbid")

    contexts: dict[_Digest, ContextCopy] = Field(max_length=1000)


def tag_of(text: str) -> str:
    """Return the tag of a record's canonical JSON."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def revalidate(
    database: Database,
    views: Sequence[RecordView],
    copies: Copies,
    limit: int,
    note_use: Callable[[contexts.ContextKey], None],
) -> str:
    """Compare copies with the records.

    Args:
        database: The server's database.
        views: What whoever asks may read of the contexts of `copies`, in the same namespaces.
        copies: What the client has.
        limit: The largest number of copies.
        note_use: Called with each context that the client uses.

    Returns:
        JSON with the contexts that have changed: for each its revision, the records whose tag
        differs, the scenarios that have no record, and the recalled parts of the scenarios. Records
        beyond `_MOST_BYTES` are left out, and the revision is empty, so that a client asks again.

    Raises:
        TooLargeError: There are more than `limit` copies.
    """
    count = sum(len(copy.scenarios) for copy in copies.contexts.values())
    if count > limit:
        raise TooLargeError(f"{count} copies in one request: send at most {limit} at a time")
    changes: list[str] = []
    room = _MOST_BYTES
    with database.read() as connection:
        revisions = _revisions(connection, views)
        for view in views:
            copy, revision = copies.contexts[view.context], revisions[view]
            for namespace in view.namespaces if revision else ():
                note_use((namespace, view.context))
            if not revision or revision != copy.revision:
                change = _changes(connection, view, revision, copy, room)
                changes.append(f'"{view.context}": {change}')
                room = max(room - len(change), 0)
    return f'{{"contexts": {{{", ".join(changes)}}}}}'


def _revisions(connection: Connection, views: Sequence[RecordView]) -> dict[RecordView, str]:
    """Return the revision of each view; empty if its context does not exist."""
    by_namespace: dict[str, dict[str, str]] = {}
    for namespace in {namespace for view in views for namespace in view.namespaces}:
        digests = [view.context for view in views]
        by_namespace[namespace] = contexts.load_revisions(connection, namespace, digests)
    joined = {}
    for view in views:
        revisions = [by_namespace[name].get(view.context) for name in view.namespaces]
        joined[view] = join_revisions(revisions) if any(revisions) else ""
    return joined


def _changes(
    connection: Connection, view: RecordView, revision: str, copy: ContextCopy, room: int
) -> str:
    wanted = sorted(copy.scenarios)
    parts: dict[str, set[str]] = {}
    for namespace in view.namespaces:
        for digest, recall in recalls.load(connection, namespace, view.context, wanted).items():
            parts.setdefault(digest, set()).update(recall.parts)
    gone: set[str] = set(wanted)
    changed: list[str] = []
    for texts in iter_texts(connection, view, wanted):
        gone -= texts.keys()
        for digest in parts.keys() & texts.keys():
            # What one namespace has recalled may stand in the other.
            parts[digest] -= part_digests(Record.model_validate_json(texts[digest]))
        differing = [
            text for digest, text in texts.items() if tag_of(text) != copy.scenarios[digest]
        ]
        size = sum(map(len, differing))
        if room < _MOST_BYTES and size > room:
            revision = ""
            continue
        changed += differing
        room -= size
    recalled = {digest: sorted(recall) for digest, recall in sorted(parts.items()) if recall}
    return (
        f'{{"revision": {json.dumps(revision)}, "records": [{", ".join(changed)}], '
        f'"gone": {json.dumps(sorted(gone))}, "recalls": {json.dumps(recalled)}}}'
    )
