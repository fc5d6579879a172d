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
            global is_armed
            if is_armed:
                is_armed = False
                raise LimitError

        lock, is_armed, found = ForkLock(), False, []

        def look():
            if found_free := lock.acquire(blocking=False):
                lock.release()
            found.append(found_free)

        signal.signal(signal.SIGALRM, limit)
        # Again and again, since one signal may come before the loop.
        signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
        for _ in range(200):
            try:
                is_armed = True
                while True:
                    with lock:
                        pass
            except LimitError:
                pass
            looking = threading.Thread(target=look)
            looking.start()
            looking.join()
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(len(found), all(found))
    """
    assert run_python(code).stdout == "200 True\n"
