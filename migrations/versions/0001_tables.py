"""The tables of version 0.1.0."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "1.1"
down_revision = None

_identity = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Create all tables."""
    op.create_table(
        "contexts",
        sa.Column("id", _identity, primary_key=True),
        sa.Column("namespace", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(24), nullable=False),
        sa.Column("kernel", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("revision", sa.String(16), nullable=False),
        sa.Column("records", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("used_at", sa.Double, nullable=False),
        sa.Column("changed_at", sa.Double),
        sa.Column("changed_by", sa.Text),
        sa.Column("fetches", sa.BigInteger, nullable=False, server_default="0"),
        sa.UniqueConstraint("namespace", "digest"),
        sa.Index(None, "namespace", "kernel", "digest"),
        sa.Index(None, "used_at"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "acts",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("namespace", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("wanted", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("undone_at", sa.Double),
        sa.Index(None, "namespace", "kind"),
    )
    op.create_table(
        "records",
        sa.Column(
            "context_id",
            _identity,
            sa.ForeignKey("contexts.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("scenario", sa.String(24), primary_key=True),
        sa.Column("scenario_text", sa.Text, nullable=False),
        sa.Column("pinned", sa.Boolean, nullable=False),
        sa.Column("promoted", sa.Boolean, nullable=False),
        sa.Column("changed_at", sa.Double, nullable=False),
        sa.Column("deleted_at", sa.Double),
        sa.Column("chosen", sa.Text),
        sa.Column("median", sa.Double),
        sa.Column("best", sa.Double),
        sa.Column("slowest", sa.Double),
        sa.Column("configs", sa.Integer),
        sa.Column("failed", sa.Integer),
        sa.Column("seconds", sa.Double),
        sa.Column("compared", sa.Boolean),
        sa.Column("launches", sa.Text),
        sa.Column("text", sa.Text),
        sa.Index(None, "context_id", "changed_at", "seconds", "scenario"),
    )
    op.create_table(
        "parts",
        sa.Column("id", _identity, primary_key=True),
        sa.Column("context_id", _identity, nullable=False),
        sa.Column("scenario", sa.String(24), nullable=False),
        sa.Column("kind", sa.String(12), nullable=False),
        sa.Column("config", sa.String(24), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("stands", sa.Boolean, nullable=False),
        sa.Column("hidden_by", sa.String(16), sa.ForeignKey("acts.id")),
        sa.Column("replaced_by", sa.String(64)),
        sa.Column("sender", sa.Text, nullable=False),
        sa.Column("measured_by", sa.Text, nullable=False),
        sa.Column("received_at", sa.Double, nullable=False),
        sa.ForeignKeyConstraint(
            ["context_id", "scenario"],
            ["records.context_id", "records.scenario"],
            ondelete="CASCADE",
        ),
        sa.UniqueConstraint("context_id", "scenario", "digest"),
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
    op.create_table(
        "days",
        sa.Column("namespace", sa.String(64), primary_key=True),
        sa.Column("day", sa.Integer, primary_key=True),
        sa.Column("missed", sa.BigInteger, nullable=False),
        sa.Column("reused", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("grants", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double),
        sa.Column("revoked_at", sa.Double),
    )
    op.create_table(
        "misses",
        sa.Column(
            "context_id",
            _identity,
            sa.ForeignKey("contexts.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("scenario", sa.String(24), primary_key=True),
        sa.Column("scenario_text", sa.Text, nullable=False),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("first_seen", sa.Double, nullable=False),
        sa.Column("last_seen", sa.Double, nullable=False),
        sa.Index(None, "last_seen"),
    )
    op.create_table(
        "leases",
        sa.Column("namespace", sa.String(64), primary_key=True),
        sa.Column("context", sa.String(24), primary_key=True),
        sa.Column("scenario", sa.String(24), primary_key=True),
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.UniqueConstraint("id"),
    )
    op.create_table(
        "log_entries",
        sa.Column("id", _identity, primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("namespace", sa.String(64), nullable=False),
        sa.Column("kernel", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Index(None, "namespace", "id"),
        sa.Index(None, "at"),
        sqlite_autoincrement=True,
    )
