"""Who says what a tune of a missed scenario is worth."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "1.3"
down_revision = "1.2"


def upgrade() -> None:
    """Add a column that may be null, since version 1.2 fills none."""
    op.add_column("misses", sa.Column("said_by", sa.Text))
