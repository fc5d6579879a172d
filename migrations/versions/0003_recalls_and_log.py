"""Parts of records that are recalled, and the log of what people changed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
compatible_since = "0001"

_identity = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Create the tables of recalls and of the log."""
    op.create_table(
        "recalls",
        sa.Column("namespace", sa.String(64), nullable=False),
        sa.Column("context", sa.String(24), nullable=False),
        sa.Column("scenario", sa.String(24), nullable=False),
        sa.Column("part", sa.String(64), nullable=False),
        sa.Column("recalled_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "context", "scenario", "part", name="pk_recalls"),
    )
    op.create_index("ix_recalls_recalled_at", "recalls", ["recalled_at"])
    op.create_table(
        "log_entries",
        sa.Column("id", _identity, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("namespace", sa.String(64), nullable=False),
        sa.Column("kernel", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_log_entries"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_log_entries_namespace_id", "log_entries", ["namespace", "id"])
    op.create_index("ix_log_entries_at", "log_entries", ["at"])


def downgrade() -> None:
    """Drop the tables of recalls and of the log, with their rows."""
    op.drop_table("log_entries")
    op.drop_table("recalls")
