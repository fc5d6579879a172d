"""`sync`: records of a local store and those of a team's server, each sent to the other.

Also what waits on this machine for a server.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import typer

from dejavu_cache.errors import SettingsError
from dejavu_cache.settings import current_settings
from dejavu_cache.stores import Store
from dejavu_cache.stores.copies import take_over
from dejavu_cache.system.notices import counted, size_text

from ..application import app
from ..chosen_store import open_chosen_store, open_complete_store, open_server, split_urls
from ..options import KernelOption, text_option
from ..output import say
from ..queries import kernel_matches, record_sets_of
from ..record_copy import merge_acknowledged

if TYPE_CHECKING:
    from ...http.remote_store import RemoteStore
    from ...http.sender import Spool

LOCK_WAIT = 30.0
"""Seconds to wait while another process sends the spool."""

MOST_REASONS = 3
"""Reasons for which record sets were set aside that a line names."""


@app.command()
def sync(
    push_only: Annotated[bool, typer.Option("--push-only", help="Fetch nothing.")] = False,
    pull_only: Annotated[bool, typer.Option("--pull-only", help="Send nothing.")] = False,
    kernel: KernelOption = "",
    store: Annotated[
        str,
        text_option(
            "URL", "The folder, the server, or both: A,B; else DEJAVU_CACHE_URL, your own cache."
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
    is_all_sent = pull_only or _send_waiting(remote)
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
    """Return the tiers that are this machine's own: a stranger's signed set is not."""
    strangers = ("https://", "http://", "static+")
    return ",".join(url for url in split_urls(urls) if not url.startswith(strangers))


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


def _send_waiting(remote: RemoteStore) -> bool:
    """Send what waits for a server, say what became of it, and return whether nothing waits."""
    problems = remote.sender.drain(LOCK_WAIT)
    sent = remote.sender.sent  # also by the background thread of this process
    if sent or len(remote.spool):
        one, several = "record set that waited was sent", "record sets that waited were sent"
        say(counted(sent, one, several))
    for line in (*describe_waiting(remote.spool), *describe_set_aside(remote.spool)):
        say(line)
    waits = len(remote.spool) > 0
    if waits and problems:
        say(f"not sent: {problems[0]}")
    return not waits


def describe_waiting(spool: Spool) -> Iterator[str]:
    """Yield a line about the record sets that wait for a server, if there are any."""
    files = spool.waiting()
    if files:
        size = sum(file.size for file in files)
        since = datetime.fromtimestamp(files[0].written, timezone.utc)
        yield (
            f"{counted(len(files), 'record set waits', 'record sets wait')} ({size_text(size)}) in "
            f"{spool.folder}, the oldest since {since:%Y-%m-%d %H:%M} UTC"
        )


def describe_set_aside(spool: Spool) -> Iterator[str]:
    """Yield a line about the record sets that a server refused for good, if there are any."""
    aside = spool.set_aside()
    if aside:
        reasons = list(dict.fromkeys(entry.reason for entry in aside))
        more = f"; and {len(reasons) - MOST_REASONS} more" if len(reasons) > MOST_REASONS else ""
        yield (
            f"{counted(len(aside), 'record set is', 'record sets are')} set aside in "
            f"{aside[0].path.parent}: {'; '.join(reasons[:MOST_REASONS])}{more}"
        )
