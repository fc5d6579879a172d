"""`ls`, `show` and `explain`: what a store holds, and why."""

import json
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any

import typer

from dejavu_cache.model.record import Record
from dejavu_cache.model.scenario import Context
from dejavu_cache.model.selection import evidence_lines

from .. import options, queries, tables
from ..application import app
from ..chosen_store import open_existing_store, worklist
from ..output import note, say, say_indented, show_json, show_json_items


@app.command("ls")
def list_kernels(
    kernel: options.OptionalKernelArgument = "",
    device: options.DeviceOption = "",
    triton: options.TritonOption = "",
    store: options.StoreOption = "",
    as_json: options.JsonOption = False,
) -> None:
    """List the kernels, where each is tuned, and how long that took."""
    with open_existing_store(store) as source:
        contexts = queries.contexts_of(source, kernel) if kernel else list(source.contexts())
        rows = [
            tables.summarize_context(source, context)
            for context in contexts
            if queries.context_matches(context, "", device, triton)
        ]
    if as_json:
        show_json(rows)
    elif not rows:
        wanted = queries.describe_filters(device, triton)
        say(f"{source.url} holds no records{f' of {wanted}' if wanted else ''}")
    else:
        tables.show_kernels(rows)


@app.command()
def show(
    kernel: options.OptionalKernelArgument = "",
    where: options.WhereOption = None,
    device: options.DeviceOption = "",
    triton: options.TritonOption = "",
    misses: Annotated[
        bool,
        typer.Option("--misses", help="Show what programs asked a server for and nobody tuned."),
    ] = False,
    store: options.StoreOption = "",
    as_json: options.JsonOption = False,
) -> None:
    """Show scenarios: the winner, its time and the runner-up.

    What is the same in all scenarios stands above them. --json has all measurements. --misses
    lists at most 1000 scenarios: by the seconds that a tune would have saved, with a bound (95%),
    where that is more than it takes; then those of which nothing is known; then the others.
    """
    if misses:
        missed = worklist(store, kernel)
        chosen = tables.select_misses(missed, where or (), device, triton)
        if as_json:
            show_json([miss.model_dump(mode="json", exclude_none=True) for miss in chosen])
        elif not chosen:
            say("nothing was missed" if not missed else "nothing that was missed fits")
        else:
            tables.show_misses(chosen)
        return
    with open_existing_store(store) as source:
        matches = queries.matching_records(source, kernel, where or (), device, triton)
        shown = [
            (context, tables.scenario_rows((record for _, record in group), context.problem.keys))
            for context, group in groupby(matches, key=itemgetter(0))
        ]
    if not as_json:
        for context, rows in shown:
            tables.say_context(context)
            tables.show_scenarios(rows)
        return
    show_json_items(
        {"context": context.model_dump(mode="json"), "record": json.loads(row.json)}
        for context, rows in shown
        for row in rows
    )


@app.command()
def explain(
    kernel: options.KernelArgument,
    where: options.WhereOption = None,
    device: options.DeviceOption = "",
    triton: options.TritonOption = "",
    limit: Annotated[
        int, typer.Option(metavar="NUMBER", min=0, help="Records at most; 0 is all.")
    ] = 5,
    store: options.StoreOption = "",
    as_json: options.JsonOption = False,
) -> None:
    """Say why records name their configs.

    A record tells its config's time, the runner-up, its age and author; those of the code that was
    tuned last come first. `kernel.explain(*args)` in a program also knows what a launch does
    without a record, and which configs the kernel declares today.
    """
    with open_existing_store(store) as source:
        matches = queries.matching_records(source, kernel, where or (), device, triton)
        groups = [list(group) for _, group in groupby(matches, key=itemgetter(0))]
    groups.sort(key=lambda pairs: queries.last_measured(map(itemgetter(1), pairs)), reverse=True)
    found = [pair for pairs in groups for pair in pairs]
    shown = found[:limit] if limit else found
    if as_json:
        show_json([_explanation(*pair) for pair in shown])
    else:
        for context, pairs in groupby(shown, key=itemgetter(0)):
            tables.say_context(context)
            for pair in pairs:
                _say_explanation(*pair)
    if len(shown) < len(found):
        note(f"{len(found) - len(shown)} more: choose by --where, or raise --limit")


def _explanation(context: Context, record: Record) -> dict[str, Any]:
    """Return what a record says of the config that readers get, as JSON values."""
    config = queries.chosen_config(record)
    return {
        "context": context.model_dump(mode="json"),
        "scenario": record.scenario.model_dump(mode="json"),
        "config": config.model_dump(mode="json") if config else None,
        "not_compared": record.reasons_not_compared(config) if config and not record.pinned else [],
        "evidence": evidence_lines(record, config, record.by_config) if config else [],
    }


def _say_explanation(context: Context, record: Record) -> None:
    say_indented(tables.settings_text(tables.ordered_values(record.scenario, context.problem.keys)))
    config, explanation = queries.chosen_config(record), _explanation(context, record)
    if config is None:
        lines = ["no config is recorded to have run"]
    elif record.is_unfinished:
        lines = [
            "has no winner, so a launch that compares results takes a fallback; the fastest is "
            f"{config}"
        ]
    else:
        lines = [f"{'pinned' if record.pinned else 'recorded winner'}: {config}"]
        lines += [f"not compared: {reason}" for reason in explanation["not_compared"]]
    for line in (*lines, *explanation["evidence"]):
        say_indented(line, indent=4)
