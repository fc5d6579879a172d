"""Misses and leases, which are short-lived: a downgrade may lose them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
compatible_since = "0001"

_identity = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Create the tables of misses and leases."""
    op.create_table(
        "misses",
        sa.Column("context_id", _identity, nullable=False),
        sa.Column("scenario", sa.String(24), nullable=False),
        sa.Column("scenario_text", sa.Text, nullable=False),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("first_seen", sa.Double, nullable=False),
        sa.Column("last_seen", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("context_id", "scenario", name="pk_misses"),
        sa.ForeignKeyConstraint(
            ["context_id"], ["contexts.id"], name="fk_misses_context_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_misses_last_seen", "misses", ["last_seen"])
    op.create_table(
        "leases",
        sa.Column("namespace", sa.String(64), nullable=False),
        sa.Column("context", sa.String(24), nullable=False),
        sa.Column("scenario", sa.String(24), nullable=False),
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "context", "scenario", name="pk_leases"),
        sa.UniqueConstraint("id", name="uq_leases_id"),
    )


def downgrade() -> None:
    """Drop the tables of misses and leases, with their rows."""
    op.drop_table("leases")
    op.drop_table("misses")
