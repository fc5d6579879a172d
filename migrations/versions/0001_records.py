"""Contexts, records, measurements and tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_identity = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Create the tables of contexts, records, measurements and tokens."""
    op.create_table(
        "contexts",
        sa.Column("id", _identity, nullable=False),
        sa.Column("namespace", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(24), nullable=False),
        sa.Column("kernel", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("revision", sa.String(16), nullable=False),
        sa.Column("records", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("used_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_contexts"),
        sa.UniqueConstraint("namespace", "digest", name="uq_contexts_namespace_digest"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_contexts_namespace_kernel_digest", "contexts", ["namespace", "kernel", "digest"]
    )
    op.create_index("ix_contexts_used_at", "contexts", ["used_at"])
    op.create_table(
        "records",
        sa.Column("context_id", _identity, nullable=False),
        sa.Column("scenario", sa.String(24), nullable=False),
        sa.Column("scenario_text", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("pinned", sa.Boolean, nullable=False),
        sa.Column("promoted", sa.Boolean, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("context_id", "scenario", name="pk_records"),
        sa.ForeignKeyConstraint(
            ["context_id"], ["contexts.id"], name="fk_records_context_id", ondelete="CASCADE"
        ),
    )
    op.create_table(
        "measurements",
        sa.Column("id", _identity, nullable=False),
        sa.Column("context_id", _identity, nullable=False),
        sa.Column("scenario", sa.String(24), nullable=False),
        sa.Column("config", sa.String(24), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("stands", sa.Boolean, nullable=False),
        sa.Column("sender", sa.Text, nullable=False),
        sa.Column("received_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_measurements"),
        sa.ForeignKeyConstraint(
            ["context_id", "scenario"],
            ["records.context_id", "records.scenario"],
            name="fk_measurements_context_id_scenario",
            ondelete="CASCADE",
        ),
        sa.UniqueConstraint(
            "context_id", "scenario", "digest", name="uq_measurements_context_id_scenario_digest"
        ),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("role", sa.String(8), nullable=False),
        sa.Column("namespaces", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=True),
        sa.Column("revoked_at", sa.Double, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
    )


def downgrade() -> None:
    """Drop the tables of contexts, records, measurements and tokens, with their rows."""
    op.drop_table("tokens")
    op.drop_table("measurements")
    op.drop_table("records")
    op.drop_table("contexts")
