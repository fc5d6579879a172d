"""Fork while a thread holds locks and a lease; the child takes them, and the thread's stay."""

from __future__ import annotations

import os
import signal
import threading

from support.records import context, record

from dejavu_cache.stores import MemoryStore
from dejavu_cache.system.fork_lock import ForkLock, cached_property

lock, mine, store = ForkLock(), ForkLock(), MemoryStore()
HELD, FINISH = threading.Event(), threading.Event()


class Computed:
    @cached_property
    def value(self) -> int:
        """Value that only a thread waits for."""
        if threading.current_thread() is thread:
            HELD.set()
            FINISH.wait()
        return 1


def hold() -> None:
    with lock, store.lease(context(), record().scenario, wait=0):
        assert Computed().value


thread = threading.Thread(target=hold)
thread.start()
HELD.wait()
with mine:  # this thread's own lock is still its own in the child
    child = os.fork()
if child == 0:
    signal.alarm(60)
    with lock, mine, store.lease(context(), record().scenario, wait=0) as leased:
        print("child", leased and Computed().value == 1, flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
with store.lease(context(), record().scenario, wait=0) as leased:
    print("parent", status, leased)
FINISH.set()
thread.join()
