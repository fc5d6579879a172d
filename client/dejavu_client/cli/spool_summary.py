"""What waits on this machine for a server: sending it, and lines about it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dejavu_cache.system.notices import counted, size_text

from .output import say

if TYPE_CHECKING:
    from ..http.remote_store import RemoteStore
    from ..http.spool import Spool

__all__ = ["describe_set_aside", "describe_waiting", "send_waiting"]

LOCK_WAIT = 30.0
"""Seconds to wait while another process sends the spool."""

MOST_REASONS = 3
"""Reasons for which record sets were set aside that a line names."""


def send_waiting(remote: RemoteStore) -> bool:
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
        hours = (time.time() - files[0].written) / 3600
        age = f"{hours / 24:.0f} days" if hours >= 48 else f"{hours:.1f} hours"
        wait = "waits" if len(files) == 1 else "wait"
        yield (
            f"{counted(len(files), 'record set')} ({size_text(size)}) {wait} in "
            f"{spool.folder}, the oldest for {age}"
        )


def describe_set_aside(spool: Spool) -> Iterator[str]:
    """Yield a line about the record sets that a server refused for good, if there are any."""
    aside = spool.set_aside()
    if aside:
        reasons = list(dict.fromkeys(entry.reason for entry in aside))
        more = f"; and {len(reasons) - MOST_REASONS} more" if len(reasons) > MOST_REASONS else ""
        yield (
            f"{counted(len(aside), 'record set is', 'record sets are')} set aside in "
            f"{aside[0].path.parent}: "
            f"{'; '.join(reasons[:MOST_REASONS])}{more}"
        )
