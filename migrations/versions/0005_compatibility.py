"""The oldest revision whose code can serve the schema, so that replicas of two versions can."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
compatible_since = "0001"


def upgrade() -> None:
    """Create the table that names the oldest revision."""
    op.create_table(
        "compatibility",
        sa.Column("revision", sa.String(32), nullable=False),
        sa.Column("since", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("revision", name="pk_compatibility"),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("compatibility")
