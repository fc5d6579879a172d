"""Tables of the database; times are seconds since 1970 by its clock, on which replicas agree."""

import sqlalchemy as sa

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite generates ids only for a key of type INTEGER.
_Identity = sa.BigInteger().with_variant(sa.Integer, "sqlite")


contexts = sa.Table(
    "contexts",
    metadata,
    sa.Column("id", _Identity, primary_key=True),
    sa.Column("namespace", sa.String(64), nullable=False),
    sa.Column("digest", sa.String(24), nullable=False),
    sa.Column("kernel", sa.Text, nullable=False),
    sa.Column("device", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    # A new random value in each transaction that changes a record: the ETag of the bulk read.
    sa.Column("revision", sa.String(16), nullable=False),
    sa.Column("records", sa.Integer, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("used_at", sa.Double, nullable=False),
    # Who changed the records last; null where nobody did, as when they were copied.
    sa.Column("changed_at", sa.Double),
    sa.Column("changed_by", sa.Text),
    # Answers with records to machines that had none of them.
    sa.Column("fetches", sa.BigInteger, nullable=False, server_default="0"),
    sa.UniqueConstraint("namespace", "digest"),
    sa.Index(None, "namespace", "kernel", "digest"),
    sa.Index(None, "used_at"),
    sqlite_autoincrement=True,
)

# What took parts of records from readers: a deletion or a quarantine.
acts = sa.Table(
    "acts",
    metadata,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("namespace", sa.String(64), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    # What it was to take, as JSON.
    sa.Column("wanted", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("undone_at", sa.Double),
    sa.Index(None, "namespace", "kind"),
)

# The records that readers get, made of the parts that stand. The row of a record stays when all of
# its parts are hidden, without what is null then. Long texts are last, so that SQLite reads only
# the beginning of a row for what the pages list.
records = sa.Table(
    "records",
    metadata,
    sa.Column("context_id", sa.ForeignKey("contexts.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("scenario", sa.String(24), primary_key=True),
    sa.Column("scenario_text", sa.Text, nullable=False),
    sa.Column("pinned", sa.Boolean, nullable=False),
    sa.Column("promoted", sa.Boolean, nullable=False),
    sa.Column("changed_at", sa.Double, nullable=False),
    # When it was deleted last: what is older does not come back.
    sa.Column("deleted_at", sa.Double),
    # The config that readers get, as JSON, and its median in milliseconds.
    sa.Column("chosen", sa.Text),
    sa.Column("median", sa.Double),
    sa.Column("best", sa.Double),
    sa.Column("slowest", sa.Double),
    sa.Column("configs", sa.Integer),
    sa.Column("failed", sa.Integer),
    # The cost of all measurements.
    sa.Column("seconds", sa.Double),
    # True if the winner's results were compared, or null.
    sa.Column("compared", sa.Boolean),
    # A list as JSON; null where no launch was recorded.
    sa.Column("launches", sa.Text),
    # The record's JSON as readers get it, so that a bulk read only joins texts.
    sa.Column("text", sa.Text),
    # What the pages sum up of all records.
    sa.Index(None, "context_id", "changed_at", "seconds", "scenario"),
)

# Measurements, winners and pins as they came. None is deleted but by age: a row that an act has
# hidden keeps its digest from coming again.
parts = sa.Table(
    "parts",
    metadata,
    sa.Column("id", _Identity, primary_key=True),
    sa.Column("context_id", _Identity, nullable=False),
    sa.Column("scenario", sa.String(24), nullable=False),
    # `measurement`, `winner` or `pin`.
    sa.Column("kind", sa.String(12), nullable=False),
    # The digest of its config; empty for a pin that was taken back.
    sa.Column("config", sa.String(24), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    # Empty once its record was deleted.
    sa.Column("text", sa.Text, nullable=False),
    # Whether it is in the record that readers get.
    sa.Column("stands", sa.Boolean, nullable=False),
    sa.Column("hidden_by", sa.ForeignKey("acts.id")),
    # The digest of the promoted part that replaced it, for as long as nothing hides that one.
    sa.Column("replaced_by", sa.String(64)),
    sa.Column("sender", sa.Text, nullable=False),
    # User and host of a measurement.
    sa.Column("measured_by", sa.Text, nullable=False),
    sa.Column("received_at", sa.Double, nullable=False),
    sa.ForeignKeyConstraint(
        ["context_id", "scenario"], ["records.context_id", "records.scenario"], ondelete="CASCADE"
    ),
    sa.UniqueConstraint("context_id", "scenario", "digest"),
    # All that finds and counts what somebody wrote, without reading the rows.
    sa.Index(
        "ix_parts_writers",
        "context_id",
        "sender",
        "measured_by",
        "kind",
        "hidden_by",
        "received_at",
    ),
    sa.Index(
        "ix_parts_hidden_by",
        "hidden_by",
        sqlite_where=sa.text("hidden_by IS NOT NULL"),
        postgresql_where=sa.text("hidden_by IS NOT NULL"),
    ),
    sqlite_autoincrement=True,
)

# How often programs of a namespace missed a scenario, and how often machines that had no copy got
# records, by day: what is missed is gone once it is tuned.
days = sa.Table(
    "days",
    metadata,
    sa.Column("namespace", sa.String(64), primary_key=True),
    # Days since 1970, in UTC.
    sa.Column("day", sa.Integer, primary_key=True),
    sa.Column("missed", sa.BigInteger, nullable=False),
    sa.Column("reused", sa.BigInteger, nullable=False),
)

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    # Roles by namespace, as JSON.
    sa.Column("grants", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double),
    sa.Column("revoked_at", sa.Double),
)

misses = sa.Table(
    "misses",
    metadata,
    sa.Column("context_id", sa.ForeignKey("contexts.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("scenario", sa.String(24), primary_key=True),
    sa.Column("scenario_text", sa.Text, nullable=False),
    sa.Column("count", sa.BigInteger, nullable=False),
    sa.Column("first_seen", sa.Double, nullable=False),
    sa.Column("last_seen", sa.Double, nullable=False),
    # What each launch would save by a tune, in milliseconds, and the seconds that a tune takes, as
    # last predicted; null if nobody has.
    sa.Column("expected", sa.Double),
    sa.Column("at_least", sa.Double),
    sa.Column("takes", sa.Double),
    # The principal that says so: nobody can check it before the tune.
    sa.Column("said_by", sa.Text),
    sa.Index(None, "last_seen"),
)

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("namespace", sa.String(64), primary_key=True),
    sa.Column("context", sa.String(24), primary_key=True),
    sa.Column("scenario", sa.String(24), primary_key=True),
    sa.Column("id", sa.String(32), nullable=False),
    sa.Column("holder", sa.Text, nullable=False),
    # The principal on whose behalf the holder asked.
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("expires_at", sa.Double, nullable=False),
    sa.UniqueConstraint("id"),
)

log_entries = sa.Table(
    "log_entries",
    metadata,
    sa.Column("id", _Identity, primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("action", sa.String(32), nullable=False),
    # Empty where an action concerns the whole server, as a token does.
    sa.Column("namespace", sa.String(64), nullable=False),
    sa.Column("kernel", sa.Text, nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Index(None, "namespace", "id"),
    sa.Index(None, "at"),
    sqlite_autoincrement=True,
)
