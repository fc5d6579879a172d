"""Winners that were displaced when somebody called their results wrong."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
compatible_since = "0006"


def upgrade() -> None:
    """Add the column; winners that were displaced earlier are not known any more."""
    op.add_column("records", sa.Column("displaced_winners", sa.Text, nullable=True))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("records", "displaced_winners")
