"""`sync`: records of a local store and those of a team's server, each sent to the other."""

from __future__ import annotations

from typing import Annotated

import typer

from dejavu_cache.errors import SettingsError
from dejavu_cache.settings import current_settings
from dejavu_cache.stores import Store
from dejavu_cache.stores.copies import take_over
from dejavu_cache.system.notices import counted

from ..chosen_store import (
    is_server_url,
    open_chosen_store,
    open_complete_store,
    open_server,
    split_urls,
)
from ..kernel_names import kernel_matches
from ..options import KernelOption, refuse_empty
from ..output import say
from ..queries import record_sets_of
from ..record_copy import merge_acknowledged
from ..spool_summary import send_waiting

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(sync)


def sync(
    push_only: Annotated[bool, typer.Option("--push-only", help="Fetch nothing.")] = False,
    pull_only: Annotated[bool, typer.Option("--pull-only", help="Send nothing.")] = False,
    kernel: KernelOption = "",
    store: Annotated[
        str,
        typer.Option(
            "--store",
            metavar="URL",
            help="The folder, the server, or both (A,B); else those of DEJAVU_CACHE_URL, "
            "and your own cache.",
            callback=refuse_empty,
        ),
    ] = "",
) -> None:
    """Send a store's records to a server, and fetch the server's.

    What waits on disk is sent first. Prints how many were new at either end. Exits with 1 if
    something still waits.
    """
    if push_only and pull_only:
        raise SettingsError("--push-only and --pull-only: give one of them")
    remote = open_server(store)
    settings = current_settings()
    url = _local_urls(store) or _local_urls(settings.url) or settings.default_url
    is_all_sent = pull_only or send_waiting(remote)
    if push_only:
        with open_complete_store(url) as local:
            merge_acknowledged(record_sets_of(local, kernel), remote)
    else:
        local = open_chosen_store(url)
        _recall_copies(local, remote, kernel)  # what was deleted on the server is not sent again
        if not pull_only and next(local.contexts(), None) is not None:
            merge_acknowledged(record_sets_of(local, kernel), remote, must_take_all=False)
        if pull_only or next(remote.contexts(), None) is not None:
            merge_acknowledged(record_sets_of(remote, kernel), local)
    if not is_all_sent:
        raise typer.Exit(1)


def _local_urls(urls: str) -> str:
    return ",".join(url for url in split_urls(urls) if not is_server_url(url))


def _recall_copies(local: Store, remote: Store, kernel: str) -> None:
    """Remove from a local store what the server has deleted or replaced, and print how much."""
    removed = 0
    for record_set in list(local.record_sets()):
        context = record_set.context
        if not kernel_matches(context.kernel.name, kernel):
            continue
        scenarios = {record.scenario for record in record_set.records}
        changes = remote.revalidate({context: scenarios}).get(context)
        if changes is not None and changes.recalls:
            take_over(local, context, scenarios, changes._replace(records=()))
            after = {record.scenario: record for record in local.records(context)}
            removed += sum(after.get(record.scenario) != record for record in record_set.records)
    if removed:
        records = counted(removed, "record")
        say(f"{records} of {local.url} lost what the server has deleted or replaced")
