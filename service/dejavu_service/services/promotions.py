"""Promotion of records from one namespace to another, where they replace others."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from sqlalchemy import Connection, select

from dejavu_cache.model.scenario import Context, canonical_json

from ..errors import InvalidRequestError, NotFoundError
from ..storage import contexts, records
from ..storage.contexts import LockedContext
from ..storage.database import Database
from ..storage.records import Act, StoredRecord
from ..storage.tables import contexts as stored
from ..storage.tables import parts
from . import merging
from .access import Principal
from .log import write_log

__all__ = ["promote"]

_TOKEN_ID = re.compile(r" \([0-9a-f]{16}\)$")
"""What a sender's name ends with, since names of tokens may be equal."""
_PART = 100
"""Records that are promoted at a time."""


def promote(
    database: Database,
    principal: Principal,
    source: str,
    target: str,
    kernel: str | None,
    digests: Sequence[str] | None,
    writers: Sequence[str] | None = None,
) -> int:
    """Copy records to another namespace, where their measurements and winners replace others.

    Args:
        database: The server's database.
        principal: Who promotes; needs the role `admin` in both namespaces.
        source: The namespace to copy from.
        target: The namespace to copy to.
        kernel: The name of the only kernel to copy, or None for all.
        digests: The digests of the only contexts to copy, or None for all.
        writers: The names of the only tokens whose measurements and winners may be among them, or
            None for all.

    Returns:
        The number of records copied.

    Raises:
        AccessDeniedError: The principal lacks the role `admin` in one of the namespaces.
        InvalidRequestError: Source and target are the same namespace, or others than `writers`
            wrote what would be copied; of a context that they wrote to, nothing is.
        NotFoundError: The source has no such records.
    """
    principal.require("admin", source)
    principal.require("admin", target)
    if source == target:
        raise InvalidRequestError(
            f"{source!r} cannot be promoted to itself: name another namespace in `to`"
        )
    with database.read() as connection:
        available = contexts.list_digests(connection, source, kernel)
    missing = sorted(set(digests or ()) - set(available))
    if missing or not available:
        subject = ", ".join(missing) or kernel or "any kernel"
        raise NotFoundError(f"namespace {source!r} has no records of {subject}")
    chosen = available if digests is None else sorted(set(digests))
    wanted = canonical_json({"source": source, "kernel": kernel, "contexts": digests})
    act = Act(secrets.token_hex(8), target, "promote", principal.name, wanted)
    if writers is not None:  # so that nothing is copied if something is wrong from the start
        with database.read() as connection:
            for digest in chosen:
                _require_writers(connection, source, digest, writers)
    copied = 0
    for digest in chosen:
        with database.write() as connection:
            copied += _promote_context(connection, principal, source, digest, act, writers)
    return copied


def _require_writers(
    connection: Connection, source: str, digest: str, writers: Sequence[str]
) -> None:
    """Check that nobody else sent the measurements and the winners of a context that stand.

    Raises:
        InvalidRequestError: Somebody did.
    """
    query = (
        select(parts.c.sender.distinct())
        .join(stored, stored.c.id == parts.c.context_id)
        .where(stored.c.namespace == source, stored.c.digest == digest)
        .where(parts.c.stands, parts.c.kind != "pin")
    )
    for sender in sorted(connection.execute(query).scalars()):
        if _TOKEN_ID.sub("", sender) not in writers:
            raise InvalidRequestError(
                f"namespace {source!r} has records of {sender or 'an unknown writer'}, which "
                f"{', '.join(writers)} did not write: nothing of their context is promoted"
            )


def _promote_context(
    connection: Connection,
    principal: Principal,
    source: str,
    digest: str,
    act: Act,
    writers: Sequence[str] | None,
) -> int:
    locked = _lock(connection, source, act.namespace, digest)
    if locked is None:
        return 0
    theirs, ours = locked
    if writers is not None:
        _require_writers(connection, source, digest, writers)
    sender = f"{principal.name} from {source}"
    copied = 0
    available = records.list_scenarios(connection, theirs.id)
    for start in range(0, len(available), _PART):
        scenarios = available[start : start + _PART]
        promoted = records.load(connection, theirs.id, scenarios)
        merged = records.load(connection, ours.id, scenarios, whole=True)
        for scenario, record in promoted.items():
            target = merged.setdefault(scenario, StoredRecord(scenario, record.scenario_text))
            merging.override(target, record, sender, act.id, ours.present)
        limit = merging.MOST_RECORD_CHARACTERS
        records.save(
            connection, ours, merged.values(), principal.name, act=act, most_characters=limit
        )
        copied += len(promoted)
    detail = {"source": source, "context": digest, "records": copied}
    write_log(connection, principal, "promote", act.namespace, ours.kernel, **detail)
    return copied


def _lock(
    connection: Connection, source: str, target: str, digest: str
) -> tuple[LockedContext, LockedContext] | None:
    """Lock the context in both namespaces; None if the source has none any more."""
    text = contexts.load_text(connection, source, digest)
    if text is None:
        return None
    context = Context.model_validate_json(text)
    # All promotions lock in the same order, so that no two wait for each other.
    locked = {
        namespace: contexts.lock(connection, target, context)
        if namespace == target
        else contexts.lock_existing(connection, source, digest)
        for namespace in sorted((source, target))
    }
    theirs, ours = locked[source], locked[target]
    return None if theirs is None or ours is None else (theirs, ours)
