"""A lock stays usable whatever interrupts the thread that takes it."""

from __future__ import annotations

from support.processes import run_python


def test_a_signal_handler_that_raises_leaves_no_lock_locked() -> None:
    """Such as a time limit's: every later launch would wait for the lock, in any other thread."""
    code = """
        import signal, threading
        from dejavu_cache.system.fork_lock import ForkLock

        class LimitError(Exception):
            pass

        def limit(*_):
            if is_armed:
                raise LimitError

        lock, is_armed, found = ForkLock(), False, []

        def look():
            if found_free := lock.acquire(blocking=False):
                lock.release()
            found.append(found_free)

        signal.signal(signal.SIGALRM, limit)
        for _ in range(200):
            signal.setitimer(signal.ITIMER_REAL, 0.0003)
            try:
                is_armed = True
                while True:
                    with lock:
                        pass
            except LimitError:
                is_armed = False
            looking = threading.Thread(target=look)
            looking.start()
            looking.join()
        print(len(found), all(found))
    """
    assert run_python(code).stdout == "200 True\n"
