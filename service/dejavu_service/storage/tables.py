"""Tables of the database; times are seconds since 1970 by its clock, on which replicas agree."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    func,
)

__all__ = [
    "compatibility",
    "contexts",
    "leases",
    "log_entries",
    "measurements",
    "metadata",
    "misses",
    "quarantined",
    "quarantines",
    "recalls",
    "records",
    "summaries",
    "tokens",
    "winner_arrival",
]

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite generates ids only for a key of type INTEGER.
_Identity = BigInteger().with_variant(Integer, "sqlite")


contexts = Table(
    "contexts",
    metadata,
    Column("id", _Identity, primary_key=True),
    Column("namespace", String(64), nullable=False),
    Column("digest", String(24), nullable=False),
    Column("kernel", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("text", Text, nullable=False),
    # A new random value in each transaction that changes a record: the ETag of the bulk read.
    Column("revision", String(16), nullable=False),
    Column("records", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("used_at", Double, nullable=False),
    # Who changed the records last; null where that was before the server noted it.
    Column("changed_at", Double),
    Column("changed_by", Text),
    # Answers with records to machines that had none of them.
    Column("fetches", BigInteger, nullable=False, server_default="0"),
    UniqueConstraint("namespace", "digest"),
    Index(None, "namespace", "kernel", "digest"),
    Index(None, "used_at"),
    sqlite_autoincrement=True,
)

records = Table(
    "records",
    metadata,
    Column("context_id", ForeignKey("contexts.id", ondelete="CASCADE"), primary_key=True),
    Column("scenario", String(24), primary_key=True),
    Column("scenario_text", Text, nullable=False),
    # The record's JSON as readers get it, so that a bulk read only joins texts.
    Column("text", Text, nullable=False),
    Column("pinned", Boolean, nullable=False),
    Column("promoted", Boolean, nullable=False),
    Column("updated_at", Double, nullable=False),
    # Who sent the winner, and when; null where nobody knows.
    Column("winner_sender", Text),
    Column("winner_received_at", Double),
    # Winners that one replaced which others had compared, or whose results were called wrong, as
    # JSON: one stands again without who said so.
    Column("displaced_winners", Text),
)

winner_arrival = func.coalesce(records.c.winner_received_at, records.c.updated_at)
"""When a winner came. One from before the server noted that came with the last change at latest."""

# What the pages list of a record, so that they need not parse its text.
summaries = Table(
    "summaries",
    metadata,
    Column("context_id", _Identity, primary_key=True),
    Column("scenario", String(24), primary_key=True),
    # The config that readers get, as JSON, and its median in milliseconds.
    Column("chosen", Text),
    Column("median", Double),
    Column("best", Double),
    Column("slowest", Double),
    Column("configs", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    # The cost of all measurements.
    Column("seconds", Double, nullable=False),
    Column("pinned", Boolean, nullable=False),
    Column("changed_at", Double, nullable=False),
    # True if the winner's results were compared, or null.
    Column("compared", Boolean),
    ForeignKeyConstraint(
        ["context_id", "scenario"], ["records.context_id", "records.scenario"], ondelete="CASCADE"
    ),
    Index(None, "context_id", "changed_at", "seconds"),
)

measurements = Table(
    "measurements",
    metadata,
    Column("id", _Identity, primary_key=True),
    Column("context_id", _Identity, nullable=False),
    Column("scenario", String(24), nullable=False),
    Column("config", String(24), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("text", Text, nullable=False),
    # Whether readers get this measurement; one that contradicts it is stored and not shown.
    Column("stands", Boolean, nullable=False),
    Column("sender", Text, nullable=False),
    Column("received_at", Double, nullable=False),
    ForeignKeyConstraint(
        ["context_id", "scenario"], ["records.context_id", "records.scenario"], ondelete="CASCADE"
    ),
    UniqueConstraint("context_id", "scenario", "digest"),
    sqlite_autoincrement=True,
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("name", Text, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("role", String(8), nullable=False),
    Column("namespaces", Text, nullable=False),
    # Roles by namespace as JSON, where they differ; `role` is the lowest of them.
    Column("grants", Text),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
)

misses = Table(
    "misses",
    metadata,
    Column("context_id", ForeignKey("contexts.id", ondelete="CASCADE"), primary_key=True),
    Column("scenario", String(24), primary_key=True),
    Column("scenario_text", Text, nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("first_seen", Double, nullable=False),
    Column("last_seen", Double, nullable=False),
    # Who said that they would tune it.
    Column("claimed_by", Text),
    Column("claimed_at", Double),
    Index(None, "last_seen"),
)

leases = Table(
    "leases",
    metadata,
    Column("namespace", String(64), primary_key=True),
    Column("context", String(24), primary_key=True),
    Column("scenario", String(24), primary_key=True),
    Column("id", String(32), nullable=False),
    Column("holder", Text, nullable=False),
    Column("expires_at", Double, nullable=False),
    UniqueConstraint("id"),
)

# Parts of records that were served once and are not any more. They are keyed by digests and not by
# a context's id, because they outlast the context.
recalls = Table(
    "recalls",
    metadata,
    Column("namespace", String(64), primary_key=True),
    Column("context", String(24), primary_key=True),
    Column("scenario", String(24), primary_key=True),
    # The digest of a measurement or a pin; empty where the whole record was deleted.
    Column("part", String(64), primary_key=True),
    Column("recalled_at", Double, nullable=False),
    Index(None, "recalled_at"),
)

quarantines = Table(
    "quarantines",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("namespace", String(64), nullable=False),
    Column("actor", Text, nullable=False),
    # Whose measurements and winners it took, as JSON.
    Column("wanted", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("undone_at", Double),
    Index(None, "namespace"),
)

quarantined = Table(
    "quarantined",
    metadata,
    Column("id", _Identity, primary_key=True),
    Column("quarantine", ForeignKey("quarantines.id", ondelete="CASCADE"), nullable=False),
    Column("context_id", ForeignKey("contexts.id", ondelete="CASCADE"), nullable=False),
    Column("scenario_text", Text, nullable=False),
    # Whether it is a record's winner; a measurement otherwise.
    Column("is_winner", Boolean, nullable=False),
    Column("text", Text, nullable=False),
    Column("sender", Text, nullable=False),
    Index(None, "quarantine"),
    Index(None, "context_id"),
    sqlite_autoincrement=True,
)

log_entries = Table(
    "log_entries",
    metadata,
    Column("id", _Identity, primary_key=True),
    Column("at", Double, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", String(32), nullable=False),
    # Empty where an action concerns the whole server, as a token does.
    Column("namespace", String(64), nullable=False),
    Column("kernel", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Index(None, "namespace", "id"),
    Index(None, "at"),
    sqlite_autoincrement=True,
)

# One row: the schema's revision, and the oldest revision whose code can serve it.
compatibility = Table(
    "compatibility",
    metadata,
    Column("revision", String(32), primary_key=True),
    Column("since", String(32), nullable=False),
)
