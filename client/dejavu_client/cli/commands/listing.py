"""`ls` and `show`: what is tuned, and what won."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.record import Measurement, Record
from dejavu_cache.model.scenario import Context, Scenario
from dejavu_cache.model.selection import winner
from dejavu_cache.stores import Store

from ..output import JsonOption, StoreOption, open_chosen_store, say, show_json, show_table

__all__ = ["assignments", "matching", "register", "winning"]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("ls")(ls)
    app.command()(show)


def ls(store: StoreOption = "", as_json: JsonOption = False) -> None:
    """List the kernels, and where each is tuned."""
    with open_chosen_store(store) as held:
        rows = [_summary(held, context) for context in held.contexts()]
    if as_json:
        show_json(rows)
    elif not rows:
        say(f"{held.url} holds no records")
    else:
        columns = [
            "kernel",
            "source",
            "device",
            "triton",
            "method",
            "scenarios",
            "configs",
            "last tuned",
        ]
        show_table(columns, [[row[column] for column in columns] for row in rows])


def show(
    kernel: Annotated[
        str, typer.Argument(help="The kernel's module and qualified name, or the end of it.")
    ],
    where: Annotated[
        list[str],
        typer.Option(
            "--scenario", metavar="NAME=VALUE", help="Only scenarios with this value; may repeat."
        ),
    ] = [],
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show a kernel's scenarios: winner, runner-up, failures."""
    with open_chosen_store(store) as held:
        found = matching(held, kernel, where)
    if as_json:
        show_json(
            [
                {"context": c.model_dump(mode="json"), "record": r.model_dump(mode="json")}
                for c, r in found
            ]
        )
    else:
        for context in dict.fromkeys(context for context, _ in found):
            _show_context(context, [record for each, record in found if each == context])
    if not found:
        if not as_json:
            say(f"{held.url} has no such record of {kernel}; `dejavu-cache ls` lists the kernels")
        raise typer.Exit(1)


def matching(store: Store, kernel: str, where: Iterable[str]) -> list[tuple[Context, Record]]:
    """The records of a kernel, by its name or the end of it, whose scenarios have the values that `where` names."""
    wanted = assignments(where, "--scenario")
    return [
        (context, record)
        for context in store.contexts()
        if context.kernel.name == kernel or context.kernel.name.endswith(f".{kernel}")
        for record in store.records(context)
        if all(_shown(record.scenario, name) == value for name, value in wanted.items())
    ]


def assignments(texts: Iterable[str], option: str) -> dict[str, str]:
    """`NAME=VALUE` texts as a dictionary.

    Raises:
        SettingsError: one has no `=`.
    """
    for text in texts:
        if "=" not in text:
            raise SettingsError(f"{option} {text!r}: write NAME=VALUE")
    return dict(text.split("=", 1) for text in texts)


def winning(record: Record) -> Measurement | None:
    """The measurement of the config that a record's own list of configs gives."""
    config = record.pinned or winner(record, set(record.by_config))
    return record.by_config.get(config) if config else None


def _summary(store: Store, context: Context) -> dict[str, Any]:
    records = list(store.records(context))
    configs = {measurement.config for record in records for measurement in record.measurements}
    last = max(
        (measurement.at for record in records for measurement in record.measurements), default=None
    )
    return {
        "kernel": context.kernel.name,
        "source": context.kernel.source[:8],
        "device": context.environment.device.name,
        "triton": context.environment.triton,
        "method": context.problem.method,
        "scenarios": len(records),
        "configs": len(configs),
        "last tuned": last.isoformat(timespec="seconds") if last else None,
        "context": context.digest,
    }


def _show_context(context: Context, records: list[Record]) -> None:
    device = context.environment.device
    say(
        f"{context.kernel.name} (source {context.kernel.source[:8]}) on {device.name}, {device.arch},"
    )
    say(
        f"Triton {context.environment.triton}, {context.environment.codegen}, {context.problem.method}"
    )
    for name, bucket in context.problem.buckets.items():
        options = {
            key: value for key, value in vars(bucket).items() if key != "kind" and value is not None
        }
        say(
            f"  {name} in buckets: {type(bucket).__name__}({', '.join(f'{k}={v}' for k, v in options.items())})"
        )
    columns = ["scenario", "winner", "median ms", "runner-up", "x slower", "failed"]
    show_table(columns, [_row(record) for record in records])


def _row(record: Record) -> list[str]:
    timed = sorted(
        (each for each in record.measurements if each.median is not None),
        key=lambda each: each.median or 0,
    )
    failed = len(record.measurements) - len(timed)
    best = winning(record)
    second = next((each for each in timed if best and each.config != best.config), None)
    return [
        str(record.scenario),
        f"{best.config if best else record.pinned or '-'}{' (pinned)' if record.pinned else ''}",
        f"{best.median:.4g}" if best and best.median is not None else "-",
        str(second.config) if second else "-",
        f"{(second.median or 0) / best.median:.2f}" if second and best and best.median else "-",
        str(failed or "-"),
    ]


def _shown(scenario: Scenario, name: str) -> str | None:
    value = {**scenario.dtypes, **scenario.args}.get(name, ...)
    return None if value is ... else str(value)
