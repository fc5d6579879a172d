"""Promotion of records from one namespace to another, where they replace others."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlalchemy import Connection

from dejavu_cache.model.scenario import Context

from ..errors import InvalidRequestError, NotFoundError
from ..storage import contexts, copies, misses
from ..storage.clock import database_time
from ..storage.database import Database
from .access import Principal
from .log import write_log
from .merging import override

__all__ = ["promote"]

_TOKEN_ID = re.compile(r" \([0-9a-f]{16}\)$")
"""What a sender's name ends with, since names of tokens may be equal."""


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
        available = list(contexts.iter_digests(connection, source, kernel))
    missing = sorted(set(digests or ()) - set(available))
    if missing or not available:
        subject = ", ".join(missing) or kernel or "any kernel"
        raise NotFoundError(f"namespace {source!r} has no records of {subject}")
    chosen = available if digests is None else sorted(set(digests))
    if writers is not None:
        for digest in chosen:  # so that nothing is copied if something is wrong from the start
            with database.read() as connection:
                _require_writers(connection, source, digest, writers)
    copied = 0
    for digest in chosen:
        with database.write() as connection:
            copied += _promote_context(connection, principal, source, target, digest, writers)
    return copied


def _require_writers(
    connection: Connection, source: str, digest: str, writers: Sequence[str]
) -> None:
    for sender in sorted(copies.list_senders(connection, source, digest)):
        if _TOKEN_ID.sub("", sender) not in writers:
            raise InvalidRequestError(
                f"namespace {source!r} has records of {sender or 'an unknown writer'}, which "
                f"{', '.join(writers)} did not write: nothing of their context is promoted"
            )


def _promote_context(
    connection: Connection,
    principal: Principal,
    source: str,
    target: str,
    digest: str,
    writers: Sequence[str] | None,
) -> int:
    route = _lock(connection, source, target, digest)
    if route is None:
        return 0
    if writers is not None:
        _require_writers(connection, source, digest, writers)
    changed, present = 0, database_time(connection)
    sender = f"{principal.name} from {source}"
    for page in copies.iter_shared(connection, route):
        merged = {pair.scenario: override(pair.current, pair.source, present) for pair in page}
        changed += sum(pair.current != merged[pair.scenario].text for pair in page)
        texts = {scenario: record.text for scenario, record in merged.items()}
        senders = {scenario: sender for scenario, record in merged.items() if record.has_new_winner}
        copies.replace_texts(connection, route, texts, senders)
    added = copies.add_records(connection, route, sender)
    changed += copies.replace_measurements(connection, route, sender)
    misses.drop_all_tuned(connection, route.target)
    if changed or added:
        contexts.bump_revision(connection, route.target, added=added, by=principal.name)
    copied = copies.count_records(connection, route.source)
    kernel = contexts.kernel_of(connection, route.target)
    detail = {"source": source, "context": digest, "records": copied}
    write_log(connection, principal, "promote", target, kernel, **detail)
    return copied


def _lock(connection: Connection, source: str, target: str, digest: str) -> copies.Route | None:
    """Lock the context in both namespaces; None if the source has none any more."""
    text = contexts.load_text(connection, source, digest)
    if text is None:
        return None
    context = Context.model_validate_json(text)
    ids: dict[str, int | None] = {}
    # All promotions lock in the same order, so that no two wait for each other.
    for namespace in sorted((source, target)):
        ids[namespace] = (
            contexts.lock(connection, target, context)
            if namespace == target
            else contexts.lock_existing(connection, source, digest)
        )
    source_id, target_id = ids[source], ids[target]
    if source_id is None or target_id is None:
        return None
    return copies.Route(source_id, target_id)
