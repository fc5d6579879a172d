"""Whether winners' results were compared, for the pages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
compatible_since = "0006"


def upgrade() -> None:
    """Add the column; what was not noted counts as not compared."""
    op.add_column("summaries", sa.Column("compared", sa.Boolean, nullable=True))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("summaries", "compared")
