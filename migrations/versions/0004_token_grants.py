"""Roles of a token that differ by namespace."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
compatible_since = "0001"


def upgrade() -> None:
    """Add the column; tokens without it have their role in all their namespaces."""
    op.add_column("tokens", sa.Column("grants", sa.Text, nullable=True))


def downgrade() -> None:
    """Drop the column: a token then has the lowest of its roles in all its namespaces."""
    op.drop_column("tokens", "grants")
