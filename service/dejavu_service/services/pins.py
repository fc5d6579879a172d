"""Pins: a person's choice of a config, which overrides the measurements."""

from __future__ import annotations

from dejavu_cache.model.merge import part_digest
from dejavu_cache.model.scenario import Config, canonical_json

from ..errors import NotFoundError
from ..storage import contexts, recalls, records
from ..storage.clock import database_time
from ..storage.database import Database
from .access import Principal
from .log import write_log
from .merging import pin

__all__ = ["set_pin"]


def set_pin(
    database: Database,
    principal: Principal,
    namespace: str,
    context: str,
    scenario: str,
    config: Config | None,
    by: str,
) -> str:
    """Pin a config, or remove the pin.

    Args:
        database: The server's database.
        principal: Who asks; needs the role `admin`.
        namespace: The namespace of the record.
        context: The digest of the record's context.
        scenario: The digest of the record's scenario.
        config: The config that readers shall get, or None to remove the pin.
        by: Who chose it; the principal's name if empty.

    Returns:
        The record as JSON.

    Raises:
        AccessDeniedError: The principal lacks the role `admin`.
        NotFoundError: There is no record of the scenario.
    """
    principal.require("admin", namespace)
    with database.write() as connection:
        context_id = contexts.lock_existing(connection, namespace, context)
        stored = {} if context_id is None else records.load(connection, context_id, [scenario])
        if context_id is None or scenario not in stored:
            raise NotFoundError("there is no record of this scenario: post one before pinning it")
        record = stored[scenario]
        if config is None and record.pinned is None:
            return canonical_json(record)
        pinned = pin(record, config, by or principal.name, database_time(connection))
        records.save(connection, context_id, [pinned])
        contexts.bump_revision(connection, context_id, by=principal.name)
        if record.pin is not None:
            replaced = {scenario: [part_digest(record.pin)]}
            recalls.add_parts(connection, namespace, context, replaced)
        write_log(
            connection,
            principal,
            "pin" if config else "unpin",
            namespace,
            contexts.kernel_of(connection, context_id),
            context=context,
            scenario=str(record.scenario),
            config=str(config or record.pinned),
            by=by,
        )
        return canonical_json(pinned)
