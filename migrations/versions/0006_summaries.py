"""Summaries of records for the pages, who changed a context last, and claims of misses."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
# No `compatible_since`: older code would write records without their summaries.

_PAGE = 500

_identity = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Add the columns and the table, and summarize the records that there are."""
    op.add_column("contexts", sa.Column("changed_at", sa.Double))
    op.add_column("contexts", sa.Column("changed_by", sa.Text))
    op.add_column(
        "contexts", sa.Column("fetches", sa.BigInteger, nullable=False, server_default="0")
    )
    op.add_column("misses", sa.Column("claimed_by", sa.Text))
    op.add_column("misses", sa.Column("claimed_at", sa.Double))
    summaries = op.create_table(
        "summaries",
        sa.Column("context_id", _identity, nullable=False),
        sa.Column("scenario", sa.String(24), nullable=False),
        sa.Column("chosen", sa.Text),
        sa.Column("median", sa.Double),
        sa.Column("best", sa.Double),
        sa.Column("slowest", sa.Double),
        sa.Column("configs", sa.Integer, nullable=False),
        sa.Column("failed", sa.Integer, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("pinned", sa.Boolean, nullable=False),
        sa.Column("changed_at", sa.Double, nullable=False),
        sa.ForeignKeyConstraint(
            ["context_id", "scenario"],
            ["records.context_id", "records.scenario"],
            name="fk_summaries_context_id_scenario_records",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("context_id", "scenario", name="pk_summaries"),
    )
    op.create_index(
        "ix_summaries_context_id_changed_at_seconds",
        "summaries",
        ["context_id", "changed_at", "seconds"],
    )
    _summarize(op.get_bind(), summaries)


def _summarize(connection: sa.Connection, summaries: sa.Table) -> None:
    query = sa.text(
        "SELECT context_id, scenario, text, updated_at FROM records"
        " WHERE context_id > :context OR (context_id = :context AND scenario > :scenario)"
        f" ORDER BY context_id, scenario LIMIT {_PAGE}"
    )
    after: dict[str, Any] = {"context": -1, "scenario": ""}
    while rows := connection.execute(query, after).all():
        connection.execute(summaries.insert(), [_summary(*row) for row in rows])
        after = {"context": rows[-1].context_id, "scenario": rows[-1].scenario}


def _summary(context_id: int, scenario: str, text: str, changed_at: float) -> dict[str, Any]:
    record = json.loads(text)
    pinned = record.get("pin", {}).get("config")
    chosen = pinned or record.get("winner", {}).get("config")
    measured = record["measurements"]
    timings = [(item["config"], item["median"]) for item in measured if "median" in item]
    medians = [median for _, median in timings]
    encoded = json.dumps(chosen, sort_keys=True, ensure_ascii=False) if chosen else None
    return {
        "context_id": context_id,
        "scenario": scenario,
        "chosen": encoded,
        "median": next((median for config, median in timings if config == chosen), None),
        "best": min(medians, default=None),
        "slowest": max(medians, default=None),
        "configs": len(measured),
        "failed": len(measured) - len(medians),
        "seconds": sum(item.get("seconds", 0.0) for item in measured),
        "pinned": pinned is not None,
        "changed_at": changed_at,
    }


def downgrade() -> None:
    """Drop the table and the columns, with what they hold."""
    op.drop_table("summaries")
    op.drop_column("misses", "claimed_at")
    op.drop_column("misses", "claimed_by")
    op.drop_column("contexts", "fetches")
    op.drop_column("contexts", "changed_by")
    op.drop_column("contexts", "changed_at")
