"""`gc` and `clear`: dropping records."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from dejavu_cache.model.scenario import Context, now
from dejavu_cache.stores import FileStore, Store

from ..output import StoreOption, open_chosen_store, say

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(gc)
    app.command()(clear)


def gc(
    days: Annotated[
        int | None, typer.Option(min=0, help="Also drop contexts last tuned longer ago than this.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    store: StoreOption = "",
) -> None:
    """Drop the records of kernels whose code has changed since, and what killed writers left."""
    with open_chosen_store(store) as held:
        stale = _superseded(held) | (_older_than(held, days) if days is not None else set())
        for context in sorted(stale, key=lambda context: context.text):
            count = len(list(held.records(context))) if dry_run else held.delete(context)
            device = context.environment.device.name
            say(
                f"{context.kernel.name} (source {context.kernel.source[:8]}) on {device}: {count} records"
            )
        litter = 0 if dry_run or not isinstance(held, FileStore) else held.sweep()
        say(
            f"{len(stale)} contexts {'would be dropped' if dry_run else f'dropped, {litter} left-over files removed'}"
        )


def clear(
    kernel: Annotated[str, typer.Argument(help="Only this kernel; else everything.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    store: StoreOption = "",
) -> None:
    """Drop all records, or a kernel's."""
    with open_chosen_store(store) as held:
        contexts = list(held.contexts(kernel or None))
        if not contexts:
            say(f"{held.url} has no records{f' of {kernel}' if kernel else ''}")
            raise typer.Exit(1 if kernel else 0)
        if not yes:
            typer.confirm(
                f"Drop {len(contexts)} contexts of {kernel or 'all kernels'} from {held.url}?",
                abort=True,
            )
        say(f"{sum(held.delete(context) for context in contexts)} records dropped")


def _superseded(store: Store) -> set[Context]:
    """The contexts of a kernel's older sources, where the newest source has been tuned since."""
    newest: dict[str, tuple[float, str]] = {}
    contexts = list(store.contexts())
    last = {context: _last_tuned(store, context) for context in contexts}
    for context in contexts:
        newest[context.kernel.name] = max(
            newest.get(context.kernel.name, (0.0, "")), (last[context], context.kernel.source)
        )
    return {
        context for context in contexts if context.kernel.source != newest[context.kernel.name][1]
    }


def _older_than(store: Store, days: int) -> set[Context]:
    limit = (now() - timedelta(days=days)).timestamp()
    return {context for context in store.contexts() if _last_tuned(store, context) < limit}


def _last_tuned(store: Store, context: Context) -> float:
    moments = (
        each.at.timestamp() for record in store.records(context) for each in record.measurements
    )
    return max(moments, default=0.0)
