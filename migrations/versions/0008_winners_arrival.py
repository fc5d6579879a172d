"""When each record's winner came."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
compatible_since = "0006"


def upgrade() -> None:
    """Add the column; of earlier winners the record's last change is the best that is known."""
    op.add_column("records", sa.Column("winner_received_at", sa.Double, nullable=True))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("records", "winner_received_at")
