"""A person's choice of a config over the measurements."""

from __future__ import annotations

from dejavu_cache.model.scenario import Config, canonical_json

from ..problems import ProblemError
from ..storage import contexts, records
from ..storage.database import Database
from .access import Principal
from .merging import pin

__all__ = ["choose"]


def choose(
    database: Database,
    who: Principal,
    namespace: str,
    digest: str,
    scenario: str,
    config: Config | None,
    by: str,
) -> str:
    """Pins a config, or with None takes the pin back; returns the record's text.

    Raises:
        ProblemError: 403, or 404 without a record to pin.
    """
    who.require("admin", namespace)
    with database.write() as connection:
        context_id = contexts.lock_known(connection, namespace, digest)
        known = (
            None
            if context_id is None
            else records.load(connection, context_id, [scenario]).get(scenario)
        )
        if context_id is None or known is None:
            raise ProblemError(
                404, "there is no record of this scenario: post one before pinning it"
            )
        if config is None and known.pinned is None:
            return canonical_json(known)
        chosen = pin(known, config, by or who.name)
        records.save(connection, context_id, [chosen])
        contexts.changed(connection, context_id, 0)
        return canonical_json(chosen)
