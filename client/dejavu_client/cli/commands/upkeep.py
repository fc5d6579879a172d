"""`gc` and `clear`: removal of records."""

from __future__ import annotations

from typing import Annotated

import typer

from dejavu_cache.model.scenario import Context, is_from_future, now
from dejavu_cache.stores import FileStore, Store
from dejavu_cache.system.plurals import counted

from ..chosen_store import open_existing_store
from ..options import OptionalKernelArgument, StoreOption
from ..output import say
from ..record_queries import contexts_of
from ..step_report import sum_of_steps

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("gc")(collect_garbage)
    app.command()(clear)


def collect_garbage(
    days: Annotated[
        int | None, typer.Option(min=0, help="Also drop contexts last tuned longer ago than this.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    store: StoreOption = "",
) -> None:
    """Drop records of code that has changed since, and files that killed writers left."""
    with open_existing_store(store, write=not dry_run) as target:
        stale = _stale_contexts(target, days)

        def drop(context: Context) -> int:
            count = len(list(target.records(context))) if dry_run else target.delete(context)
            kernel, device = context.kernel, context.environment.device.name
            records = counted(count, "record")
            say(f"{kernel.name} (source {kernel.source[:8]}) on {device}: {records}")
            return count

        describe = _describe_droppable if dry_run else _describe_dropped
        sum_of_steps(sorted(stale, key=lambda context: context.text), drop, describe)
        dropped = counted(len(stale), "context")
        if dry_run:
            say(f"{dropped} would be dropped")
        else:
            leftovers = target.delete_leftovers() if isinstance(target, FileStore) else 0
            say(f"{dropped} dropped, {counted(leftovers, 'left-over file')} removed")


def clear(
    kernel: OptionalKernelArgument = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    store: StoreOption = "",
) -> None:
    """Drop all records, or a kernel's."""
    with open_existing_store(store, write=True) as target:
        if not kernel and next(target.contexts(), None) is None:
            say(f"{target.url} has no records")
            return
        contexts = contexts_of(target, kernel)
        if not yes:
            kernels = sorted({context.kernel.name for context in contexts})
            typer.confirm(
                f"Drop {counted(len(contexts), 'context')} of {', '.join(kernels)} "
                f"from {target.url}?",
                abort=True,
            )
        dropped = sum_of_steps(contexts, target.delete, _describe_dropped)
        say(_describe_dropped(dropped))


def _describe_dropped(records: int) -> str:
    return f"{counted(records, 'record')} dropped"


def _describe_droppable(records: int) -> str:
    return f"{counted(records, 'record')} would be dropped"


def _stale_contexts(store: Store, days: int | None) -> set[Context]:
    """Return the contexts of earlier versions of a kernel's code, and those tuned too long ago.

    Launches that are recorded apart from measurements are of no date, and may have another hash
    than the tuned kernel, whose heuristics count. They go with their code, or with all that was
    tuned of their kernel. So does what only a clock that is ahead has dated.
    """
    dates: dict[Context, float] = {}
    undated: list[Context] = []
    for context in store.contexts():
        date = _last_tuned(store, context)
        if date is None:
            undated.append(context)
        else:
            dates[context] = date
    newest: dict[str, tuple[float, str]] = {}
    for context, date in dates.items():
        kernel = context.kernel
        newest[kernel.name] = max(newest.get(kernel.name, (date, "")), (date, kernel.source))
    superseded = {
        context.kernel
        for context in dates
        if context.kernel.source != newest[context.kernel.name][1]
    }
    present = now().timestamp()
    stale = {
        context
        for context, date in dates.items()
        if context.kernel in superseded or (days is not None and present - date > days * 86_400)
    }
    remaining = {context.kernel.name for context in dates.keys() - stale}
    return stale.union(
        context
        for context in undated
        if context.kernel in superseded or context.kernel.name in newest.keys() - remaining
    )


def _last_tuned(store: Store, context: Context) -> float | None:
    """Return when the last measurement was made that is not from the future, in seconds."""
    return max(
        (
            measurement.at.timestamp()
            for record in store.records(context)
            for measurement in record.measurements
            if not is_from_future(measurement.at)
        ),
        default=None,
    )
