"""`audit`: compare the results of recorded winners with the default configs'."""

from __future__ import annotations

from collections import Counter

import typer

from dejavu_cache.system.notices import counted

from ..chosen_store import open_existing_store
from ..errors import NothingFoundError
from ..options import (
    JsonOption,
    PresetOption,
    StoreOption,
    SuiteArgument,
    SuiteOption,
    parse_suite_options,
)
from ..output import say, show_json

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(audit)


def audit(
    suite: SuiteArgument,
    store: StoreOption = "",
    preset: PresetOption = "",
    option: SuiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check on this GPU that recorded winners compute what the default configs compute.

    A winner whose results differ is recorded as wrong, and is no longer used; one whose results are
    equal is recorded as compared. Exits with 1 if one is wrong, or if there is no winner at all.
    """
    from dejavu_cache.sweep.suite import load_suite
    from dejavu_cache.sweep.winner_verification import audit_winners

    options = parse_suite_options(option, preset)
    outcomes: Counter[str] = Counter()
    rows = []
    with open_existing_store(store, write=True) as chosen:
        next(chosen.contexts(), None)  # raises before the suite is imported if no store answers
        for winner in audit_winners(load_suite(suite).load_all_cases(options), chosen):
            verdict = winner.verdict
            outcomes[verdict.outcome] += 1
            results = {output: entry.model_dump() for output, entry in winner.results.items()}
            rows.append({**winner._asdict(), "verdict": verdict.model_dump(), "results": results})
            if verdict.outcome != "equal" and not as_json:
                outcome = verdict.outcome.replace("_", " ")
                reason = f"({winner.config}): {verdict.reason}"
                say(f"{outcome}: {winner.kernel}{winner.scenario} {reason}")
        url = chosen.url
    if not rows:
        raise NothingFoundError(f"{url} has no winner for a case of {suite} on this GPU")
    if as_json:
        show_json({"winners": rows, **outcomes})
    else:
        kinds = ("equal", "wrong", "not_compared")
        amounts = [f"{outcomes[kind]} {kind.replace('_', ' ')}" for kind in kinds]
        say(f"{counted(outcomes.total(), 'winner')} audited: {', '.join(amounts)}")
    if outcomes["wrong"]:
        raise typer.Exit(1)
