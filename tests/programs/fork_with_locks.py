"""Fork while a thread holds locks and a lease; the child takes them, and the thread's stay."""

from __future__ import annotations

import os
import signal
import threading

from support.records import context, record

from dejavu_cache.stores import MemoryStore
from dejavu_cache.system.fork_lock import ForkLock

lock, mine, store = ForkLock(), ForkLock(), MemoryStore()
HELD, FINISH = threading.Event(), threading.Event()


def hold() -> None:
    with lock, store.lease(context(), record().scenario, wait=0):
        HELD.set()
        FINISH.wait()


thread = threading.Thread(target=hold)
thread.start()
HELD.wait()
with mine:  # this thread's own lock is still its own in the child
    child = os.fork()
if child == 0:
    signal.alarm(60)
    with lock, mine, store.lease(context(), record().scenario, wait=0) as leased:
        print("child", leased, flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
with store.lease(context(), record().scenario, wait=0) as leased:
    print("parent", status, leased)
FINISH.set()
thread.join()
