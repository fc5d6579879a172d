"""`gc` and `clear`: removal of records."""

from __future__ import annotations

from typing import Annotated

import typer

from dejavu_cache.model.scenario import Context, now
from dejavu_cache.stores import FileStore, Store
from dejavu_cache.system.plurals import counted

from ..chosen_store import open_existing_store
from ..options import OptionalKernelArgument, StoreOption
from ..output import say
from ..record_queries import contexts_of, last_measured
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
        stale = _superseded_contexts(target) | (
            _older_than(target, days) if days is not None else set()
        )

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


def _superseded_contexts(store: Store) -> set[Context]:
    """Return the contexts of a kernel's sources other than the one that was tuned last."""
    newest: dict[str, tuple[float, str]] = {}
    contexts = list(store.contexts())
    for context in contexts:
        kernel = context.kernel
        candidate = _last_tuned(store, context), kernel.source
        newest[kernel.name] = max(newest.get(kernel.name, (0.0, "")), candidate)
    return {
        context for context in contexts if context.kernel.source != newest[context.kernel.name][1]
    }


def _older_than(store: Store, days: int) -> set[Context]:
    present = now().timestamp()
    return {
        context
        for context in store.contexts()
        if present - _last_tuned(store, context) > days * 86_400
    }


def _last_tuned(store: Store, context: Context) -> float:
    """Return the time of a context's newest measurement, in seconds since 1970; 0 without any."""
    moment = last_measured(store.records(context))
    return moment.timestamp() if moment else 0.0
