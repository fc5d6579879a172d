"""Tables of the database; times are seconds since 1970 by its clock, on which replicas agree."""

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
    text,
)

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
    # Who changed the records last; null where nobody did, as when they were copied.
    Column("changed_at", Double),
    Column("changed_by", Text),
    # Answers with records to machines that had none of them.
    Column("fetches", BigInteger, nullable=False, server_default="0"),
    UniqueConstraint("namespace", "digest"),
    Index(None, "namespace", "kernel", "digest"),
    Index(None, "used_at"),
    sqlite_autoincrement=True,
)

# What took parts of records from readers: a deletion or a quarantine.
acts = Table(
    "acts",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("namespace", String(64), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("actor", Text, nullable=False),
    # What it was to take, as JSON.
    Column("wanted", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("undone_at", Double),
    Index(None, "namespace", "kind"),
)

# The records that readers get, made of the parts that stand. The row of a record stays when all of
# its parts are hidden, without what is null then. Long texts are last, so that SQLite reads only
# the beginning of a row for what the pages list.
records = Table(
    "records",
    metadata,
    Column("context_id", ForeignKey("contexts.id", ondelete="CASCADE"), primary_key=True),
    Column("scenario", String(24), primary_key=True),
    Column("scenario_text", Text, nullable=False),
    Column("pinned", Boolean, nullable=False),
    Column("promoted", Boolean, nullable=False),
    Column("changed_at", Double, nullable=False),
    # When it was deleted last: what is older does not come back.
    Column("deleted_at", Double),
    # The config that readers get, as JSON, and its median in milliseconds.
    Column("chosen", Text),
    Column("median", Double),
    Column("best", Double),
    Column("slowest", Double),
    Column("configs", Integer),
    Column("failed", Integer),
    # The cost of all measurements.
    Column("seconds", Double),
    # True if the winner's results were compared, or null.
    Column("compared", Boolean),
    # A list as JSON; null where no launch was recorded.
    Column("launches", Text),
    # The record's JSON as readers get it, so that a bulk read only joins texts.
    Column("text", Text),
    # What the pages sum up of all records.
    Index(None, "context_id", "changed_at", "seconds", "scenario"),
)

# Measurements, winners and pins as they came. None is deleted but by age: a row that an act has
# hidden keeps its digest from coming again.
parts = Table(
    "parts",
    metadata,
    Column("id", _Identity, primary_key=True),
    Column("context_id", _Identity, nullable=False),
    Column("scenario", String(24), nullable=False),
    # `measurement`, `winner` or `pin`.
    Column("kind", String(12), nullable=False),
    # The digest of its config; empty for a pin that was taken back.
    Column("config", String(24), nullable=False),
    Column("digest", String(64), nullable=False),
    # Empty once its record was deleted.
    Column("text", Text, nullable=False),
    # Whether it is in the record that readers get.
    Column("stands", Boolean, nullable=False),
    Column("hidden_by", ForeignKey("acts.id")),
    # The digest of the promoted part that replaced it, for as long as nothing hides that one.
    Column("replaced_by", String(64)),
    Column("sender", Text, nullable=False),
    # User and host of a measurement.
    Column("measured_by", Text, nullable=False),
    Column("received_at", Double, nullable=False),
    ForeignKeyConstraint(
        ["context_id", "scenario"], ["records.context_id", "records.scenario"], ondelete="CASCADE"
    ),
    UniqueConstraint("context_id", "scenario", "digest"),
    # All that finds and counts what somebody wrote, without reading the rows.
    Index(
        "ix_parts_writers",
        "context_id",
        "sender",
        "measured_by",
        "kind",
        "hidden_by",
        "received_at",
    ),
    Index(
        "ix_parts_hidden_by",
        "hidden_by",
        sqlite_where=text("hidden_by IS NOT NULL"),
        postgresql_where=text("hidden_by IS NOT NULL"),
    ),
    sqlite_autoincrement=True,
)

# How often programs of a namespace missed a scenario, and how often machines that had no copy got
# records, by day: what is missed is gone once it is tuned.
days = Table(
    "days",
    metadata,
    Column("namespace", String(64), primary_key=True),
    # Days since 1970, in UTC.
    Column("day", Integer, primary_key=True),
    Column("missed", BigInteger, nullable=False),
    Column("reused", BigInteger, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("name", Text, nullable=False),
    Column("digest", String(64), nullable=False),
    # Roles by namespace, as JSON.
    Column("grants", Text, nullable=False),
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
    # What each launch would save by a tune, in milliseconds, and the seconds that a tune takes, as
    # last predicted; null if nobody has.
    Column("expected", Double),
    Column("at_least", Double),
    Column("takes", Double),
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
    # The principal on whose behalf the holder asked.
    Column("owner", Text, nullable=False),
    Column("expires_at", Double, nullable=False),
    UniqueConstraint("id"),
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
