"""`gc` and `clear`: removal of records."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime
from typing import Annotated

import typer

from dejavu_cache.model.scenario import Context, now
from dejavu_cache.stores import FileStore, Store, tiers_of
from dejavu_cache.system.notices import counted

from ..chosen_store import open_existing_store
from ..options import OptionalKernelArgument, StoreOption
from ..output import say
from ..record_queries import NEVER, contexts_of, last_measured
from ..step_report import sum_of_steps

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("gc")(collect_garbage)
    app.command()(clear)


def collect_garbage(
    days: Annotated[
        int | None,
        typer.Option(min=0, help="Also delete contexts last tuned longer ago than this."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    store: StoreOption = "",
) -> None:
    """Delete records of code that has changed since, and files that killed writers left.

    What a program tunes meanwhile stays in a local store; of a server this cannot be told.
    """
    with open_existing_store(store, write=not dry_run) as target:
        revisions = {context: _revision(target, context) for context in target.contexts()}
        stale = _stale_contexts(target, days)
        changed: list[Context] = []

        def delete(context: Context) -> int:
            kernel, device = context.kernel, context.environment.device.name
            origin = f"{kernel.name} (source {kernel.source[:8]}) on {device}"
            if _revision(target, context) != revisions.get(context):
                changed.append(context)
                say(f"{origin}: kept, since it has changed meanwhile")
                return 0
            count = len(list(target.records(context))) if dry_run else target.delete(context)
            say(f"{origin}: {counted(count, 'record')}")
            return count

        describe = _describe_deletable if dry_run else _describe_deleted
        sum_of_steps(sorted(stale, key=lambda context: context.text), delete, describe)
        deleted = counted(len(stale) - len(changed), "context")
        if dry_run:
            say(f"{deleted} would be deleted")
        else:
            folders = [tier for tier in tiers_of(target) if isinstance(tier, FileStore)]
            leftovers = sum(folder.delete_leftovers() for folder in folders if not folder.read_only)
            say(f"{deleted} deleted, {counted(leftovers, 'left-over file')} removed")


def clear(
    kernel: OptionalKernelArgument = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    store: StoreOption = "",
) -> None:
    """Delete all records, or a kernel's."""
    with open_existing_store(store, write=True) as target:
        if not kernel and next(target.contexts(), None) is None:
            say(f"{target.url} has no records")
            return
        contexts = contexts_of(target, kernel)
        if not yes:
            kernels = sorted({context.kernel.name for context in contexts})
            typer.confirm(
                f"Delete {counted(len(contexts), 'context')} of {', '.join(kernels)} "
                f"from {target.url}?",
                abort=True,
            )
        deleted = sum_of_steps(contexts, target.delete, _describe_deleted)
        say(_describe_deleted(deleted))


def _revision(store: Store, context: Context) -> Hashable:
    """Return what tells that a local store's records have changed; a server cannot tell."""
    return None if store.remote else store.revision(context)


def _describe_deleted(records: int) -> str:
    return f"{counted(records, 'record')} deleted"


def _describe_deletable(records: int) -> str:
    return f"{counted(records, 'record')} would be deleted"


def _stale_contexts(store: Store, days: int | None) -> set[Context]:
    """Return the contexts of earlier versions of a kernel's code, and those tuned too long ago.

    Launches that are recorded apart from measurements are of no date, and may have another hash
    than the tuned kernel, whose heuristics count. They go with their code, or with all that was
    tuned of their kernel.
    """
    dates: dict[Context, datetime] = {}
    undated: list[Context] = []
    for context in store.contexts():
        date = last_measured(store.records(context))
        if date == NEVER:
            undated.append(context)
        else:
            dates[context] = date
    newest: dict[str, tuple[datetime, str]] = {}
    for context, date in dates.items():
        kernel = context.kernel
        newest[kernel.name] = max(newest.get(kernel.name, (date, "")), (date, kernel.source))
    superseded = {
        context.kernel
        for context in dates
        if context.kernel.source != newest[context.kernel.name][1]
    }
    stale = {
        context
        for context, date in dates.items()
        if context.kernel in superseded or (days is not None and (now() - date).days >= days)
    }
    remaining = {context.kernel.name for context in dates.keys() - stale}
    return stale.union(
        context
        for context in undated
        if context.kernel in superseded or context.kernel.name in newest.keys() - remaining
    )
