"""`gc`: removal of records and of files that nobody needs."""

from collections.abc import Iterable
from typing import Annotated

import typer

from dejavu_cache.model.scenario import Context, now
from dejavu_cache.stores import FileStore, Store, tiers_of
from dejavu_cache.system.notices import counted

from ..application import app
from ..chosen_store import open_existing_store
from ..options import OptionalKernelArgument, StoreOption
from ..output import say
from ..queries import NEVER, contexts_of, last_measured


@app.command("gc")
def collect_garbage(
    kernel: OptionalKernelArgument = "",
    days: Annotated[
        int | None,
        typer.Option(metavar="DAYS", min=0, help="Also records last tuned so many days ago."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All records, also of the present code.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete; else only count.")] = False,
    store: StoreOption = "",
) -> None:
    """Delete records of code that has changed since.

    Files that killed writers left go too. What a program tunes meanwhile is kept in a folder; a
    server cannot tell.
    """
    with open_existing_store(store, write=yes) as target:
        is_empty = not kernel and next(target.contexts(), None) is None
        contexts = [] if is_empty else contexts_of(target, kernel)
        revisions = {context: target.revision(context) for context in contexts}
        going = set(contexts) if everything else _stale_contexts(target, contexts, days)

        total = 0
        for context in sorted(going, key=lambda context: context.text):
            name, device = context.kernel.name, context.environment.device.name
            origin = f"{name} (source {context.kernel.source[:8]}) on {device}"
            if target.revision(context) != revisions[context]:
                say(f"{origin}: kept, since it has changed meanwhile")
                continue
            count = target.delete(context) if yes else len(list(target.records(context)))
            say(f"{origin}: {counted(count, 'record')}{' deleted' if yes else ''}")
            total += count
        if not yes:
            remedy = ": repeat with --yes" if total else ""
            say(f"{counted(total, 'record')} would be deleted{remedy}")
            return
        folders = [tier for tier in tiers_of(target) if isinstance(tier, FileStore)]
        leftovers = sum(folder.delete_leftovers() for folder in folders if not folder.read_only)
        say(f"{counted(total, 'record')} deleted, {counted(leftovers, 'left-over file')} removed")


def _stale_contexts(store: Store, contexts: Iterable[Context], days: int | None) -> set[Context]:
    """Return the contexts of earlier versions of a kernel's code, and those tuned too long ago.

    Launches that are recorded apart from measurements are of no date, and may have another hash
    than the tuned kernel, whose heuristics count. They go with their code, or with all that was
    tuned of their kernel.
    """
    measured = {context: last_measured(store.records(context)) for context in contexts}
    dates = {context: date for context, date in measured.items() if date > NEVER}
    by_date = sorted(dates, key=lambda context: (dates[context], context.kernel.source))
    newest = {context.kernel.name: context.kernel for context in by_date}
    superseded = {context.kernel for context in dates} - {*newest.values()}
    stale = {
        context
        for context, date in dates.items()
        if context.kernel in superseded or (days is not None and (now() - date).days >= days)
    }
    remaining = {context.kernel.name for context in dates.keys() - stale}
    return stale.union(
        context
        for context in measured.keys() - dates
        if context.kernel in superseded or context.kernel.name in newest.keys() - remaining
    )
