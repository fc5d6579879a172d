"""What a tune of a missed scenario is worth."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "1.2"
down_revision = "1.1"


def upgrade() -> None:
    """Add columns that may be null, since version 1.1 fills none."""
    for name in ("expected", "at_least", "takes"):
        op.add_column("misses", sa.Column(name, sa.Double))
