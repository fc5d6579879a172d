"""Quarantined measurements and winners, and who sent each record's winner."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
compatible_since = "0006"

_identity = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Create the tables, and add the column; of earlier winners nobody knows who sent them."""
    op.add_column("records", sa.Column("winner_sender", sa.Text, nullable=True))
    op.create_table(
        "quarantines",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("namespace", sa.String(64), nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("wanted", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("undone_at", sa.Double, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_quarantines"),
    )
    op.create_index("ix_quarantines_namespace", "quarantines", ["namespace"])
    op.create_table(
        "quarantined",
        sa.Column("id", _identity, nullable=False),
        sa.Column("quarantine", sa.String(16), nullable=False),
        sa.Column("context_id", _identity, nullable=False),
        sa.Column("scenario_text", sa.Text, nullable=False),
        sa.Column("is_winner", sa.Boolean, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("sender", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(
            ["quarantine"],
            ["quarantines.id"],
            name="fk_quarantined_quarantine_quarantines",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["context_id"],
            ["contexts.id"],
            name="fk_quarantined_context_id_contexts",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_quarantined"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_quarantined_quarantine", "quarantined", ["quarantine"])
    op.create_index("ix_quarantined_context_id", "quarantined", ["context_id"])


def downgrade() -> None:
    """Drop the tables with what is quarantined, and the column."""
    op.drop_table("quarantined")
    op.drop_table("quarantines")
    op.drop_column("records", "winner_sender")
