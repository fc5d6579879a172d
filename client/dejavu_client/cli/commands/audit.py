"""`audit`: compare the results of recorded winners with the default configs'."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from ..options import JsonOption, StoreOption, open_chosen_store, parse_assignments
from ..output import say, show_json

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(audit)


def audit(
    suite: Annotated[
        str, typer.Argument(metavar="MODULE[:SUITE]", help="The suite, or FILE.py[:SUITE].")
    ],
    store: StoreOption = "",
    preset: Annotated[str, typer.Option(help="Short for --option preset=…")] = "",
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="An option of the suite; may repeat."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check on this GPU that recorded winners compute what the default configs compute.

    A winner whose results differ is recorded as wrong, and is no longer used. Exits with 1 if there
    is one.
    """
    from dejavu_cache.sweep.audit import audit_winners
    from dejavu_cache.sweep.suite import load_suite

    options = parse_assignments(option, "--option")
    if preset:
        options["preset"] = preset
    outcomes: Counter[str] = Counter()
    rows = []
    with open_chosen_store(store) as chosen:
        for winner in audit_winners(load_suite(suite).load_cases(options), chosen):
            outcomes[winner.verdict.outcome] += 1
            rows.append({**winner._asdict(), "verdict": winner.verdict._asdict()})
            if winner.verdict.outcome != "right" and not as_json:
                evidence = f"({winner.config}): {winner.verdict.evidence}"
                say(f"{winner.verdict.outcome}: {winner.kernel}{winner.scenario} {evidence}")
    if as_json:
        show_json({"winners": rows, **outcomes})
    else:
        amounts = [f"{outcomes[kind]} {kind}" for kind in ("right", "wrong", "unchecked")]
        say(f"{outcomes.total()} winners audited: {', '.join(amounts)}")
    if outcomes["wrong"]:
        raise typer.Exit(1)
