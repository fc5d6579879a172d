"""Revalidation of the copies that a machine has of records."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from ..errors import TooLargeError
from ..storage import contexts, recalls, records
from ..storage.database import Database
from .access import Principal

__all__ = ["ContextCopy", "Copies", "revalidate", "tag_of"]

_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{24}$")]
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
    database: Database, principal: Principal, namespace: str, copies: Copies, limit: int
) -> str:
    """Compare copies with the records.

    Args:
        database: The server's database.
        principal: Who asks; needs the role `read`.
        namespace: The namespace of the records.
        copies: What the client has.
        limit: The largest number of copies.

    Returns:
        JSON with the contexts that have changed: for each its revision, the records whose tag
        differs, the scenarios that have no record, and the recalled parts of the scenarios.

    Raises:
        AccessDeniedError: The principal lacks the role `read`.
        TooLargeError: There are more than `limit` copies.
    """
    principal.require("read", namespace)
    count = sum(len(copy.scenarios) for copy in copies.contexts.values())
    if count > limit:
        raise TooLargeError(f"{count} copies in one request: send at most {limit} at a time")
    changes = []
    with database.read() as connection:
        revisions = contexts.load_revisions(connection, namespace, list(copies.contexts))
        for digest, copy in copies.contexts.items():
            revision = revisions.get(digest, "")
            if not revision or revision != copy.revision:
                change = _changes(connection, namespace, digest, revision, copy)
                changes.append(f'"{digest}": {change}')
    return f'{{"contexts": {{{", ".join(changes)}}}}}'


def _changes(
    connection: Connection, namespace: str, context: str, revision: str, copy: ContextCopy
) -> str:
    wanted = sorted(copy.scenarios)
    texts = records.load_texts(connection, namespace, context, wanted)
    recalled = recalls.load(connection, namespace, context, wanted)
    parts = {digest: sorted(recall.parts) for digest, recall in recalled.items() if recall.parts}
    gone = [digest for digest in wanted if digest not in texts]
    changed = [text for digest, text in texts.items() if tag_of(text) != copy.scenarios[digest]]
    return (
        f'{{"revision": {json.dumps(revision)}, "records": [{", ".join(changed)}], '
        f'"gone": {json.dumps(gone)}, "recalls": {json.dumps(parts)}}}'
    )
