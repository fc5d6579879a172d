"""Recall of a local store's copies of a server's records."""

from __future__ import annotations

from dejavu_cache.stores import Store
from dejavu_cache.stores.copies import take_over
from dejavu_cache.system.notices import counted

from .output import say

__all__ = ["recall_copies"]


def recall_copies(local: Store, remote: Store, kernel: str) -> None:
    """Remove from a local store what the server has deleted or replaced, and print how much.

    Args:
        local: the store with the copies.
        remote: the server.
        kernel: the only kernel whose copies count; empty for all.
    """
    removed = 0
    for record_set in list(local.record_sets(kernel or None)):
        context = record_set.context
        scenarios = {record.scenario for record in record_set.records}
        changes = remote.revalidate({context: scenarios}).get(context)
        if changes is not None and changes.recalls:
            take_over(local, context, scenarios, changes._replace(records=()))
            after = {record.scenario: record for record in local.records(context)}
            removed += sum(after.get(record.scenario) != record for record in record_set.records)
    if removed:
        records = counted(removed, "record")
        say(f"{records} of {local.url} lost what the server has deleted or replaced")
