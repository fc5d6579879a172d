"""`diff`: what two stores know differently."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from dejavu_cache.model.record import Record
from dejavu_cache.model.scenario import Context
from dejavu_cache.stores import Store, open_store

from ..output import JsonOption, say, show_json, show_table
from .listing import winning

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(diff)


def diff(
    one: Annotated[str, typer.Argument(metavar="A", help="A store's URL or folder.")],
    two: Annotated[str, typer.Argument(metavar="B", help="Another's.")],
    as_json: JsonOption = False,
) -> None:
    """Compare two stores; exits 1 if they differ.

    For scenarios that both know, `cost` is what B's winner costs by A's own measurements, as a multiple of A's.
    """
    with open_store(one) as left, open_store(two) as right:
        rows = list(_differences(left, right))
    if as_json:
        show_json(rows)
    elif rows:
        show_table(
            ["kernel", "device", "scenario", "what", "A", "B", "cost"],
            [list(row.values()) for row in rows],
        )
    else:
        say("no differences")
    if rows:
        raise typer.Exit(1)


def _differences(left: Store, right: Store) -> Iterator[dict[str, Any]]:
    for context in sorted({*left.contexts(), *right.contexts()}, key=lambda context: context.text):
        ours = {record.scenario: record for record in left.records(context)}
        theirs = {record.scenario: record for record in right.records(context)}
        for scenario in sorted({*ours, *theirs}, key=lambda scenario: scenario.text):
            row = _difference(context, ours.get(scenario), theirs.get(scenario))
            if row:
                yield row


def _difference(
    context: Context, ours: Record | None, theirs: Record | None
) -> dict[str, Any] | None:
    if ours == theirs:
        return None
    one, two = ours and winning(ours), theirs and winning(theirs)
    if ours is None or theirs is None:
        what = "only in A" if ours else "only in B"
    elif one and two and one.config != two.config:
        what = "winner"
    elif ours.by_config.keys() != theirs.by_config.keys():
        what = "configs measured"
    else:
        what = "timings"
    return {
        "kernel": context.kernel.name,
        "device": context.environment.device.name,
        "scenario": str((ours or theirs).scenario),  # type: ignore[union-attr]
        "what": what,
        "A": str(one.config) if one else None,
        "B": str(two.config) if two else None,
        "cost": _cost(ours, one, two) if what == "winner" else None,
    }


def _cost(ours: Record | None, one: Any, two: Any) -> float | None:
    other = ours.by_config.get(two.config) if ours else None
    if other is None or other.median is None or not one.median:
        return None
    return round(float(other.median / one.median), 3)
