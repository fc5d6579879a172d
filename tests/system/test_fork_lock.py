"""A lock stays usable whatever interrupts the thread that takes it."""

from __future__ import annotations

import pytest
from support.checkout import ROOT
from support.processes import run_python

TAKE = {
    "ForkLock()": "with lock: pass",
    "ForkCondition()": "with lock: lock.notify_all()",
    "uninterrupted()": "with uninterrupted(): pass",
    "MemoryStore()": "with lock.lease(*asked, wait=0.0): pass",
}


@pytest.mark.parametrize("what", TAKE)
def test_a_signal_handler_that_raises_leaves_no_lock_locked(what: str) -> None:
    """Such as a time limit's: every later launch would wait for the lock, in any other thread."""
    code = f"""
    import signal, threading
    from support.records import context, record
    from dejavu_cache.stores import MemoryStore
    from dejavu_cache.system.background_threads import uninterrupted
    from dejavu_cache.system.fork_lock import ForkCondition, ForkLock

    class LimitError(Exception):
        pass

    def limit(*_):
        global is_armed
        if is_armed:
            is_armed = False
            raise LimitError

    lock, asked = {what}, (context(), record().scenario)
    is_armed, found = False, []

    def look():
        if isinstance(lock, MemoryStore):
            with lock.lease(*asked, wait=0.0) as is_free:
                found.append(is_free)
        else:
            found.append(lock.acquire(blocking=False))
            if found[-1]:
                lock.release()

    signal.signal(signal.SIGALRM, limit)
    # Again and again, since one signal may come before the loop.
    signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
    for _ in range(200):
        try:
            is_armed = True
            while True:
                {TAKE[what]}
        except LimitError:
            pass
        looking = threading.Thread(target=look)
        looking.start()
        looking.join()
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(len(found), all(found))
    """
    assert run_python(code).stdout == "200 True\n"


def test_no_module_takes_another_kind_of_lock() -> None:
    """Only `fork_lock` knows how a lock survives a signal handler that raises, and a fork."""
    others = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for package in ("dejavu_cache", "client/dejavu_client")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "fork_lock.py"
        for line in path.read_text().splitlines()
        if any(f"threading.{kind}(" in line for kind in ("Lock", "RLock", "Condition"))
    ]
    assert others == []
