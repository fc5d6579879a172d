"""Threads write, end before the interpreter does, and survive handlers of signals, as do locks."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from support.checkout import ROOT
from support.processes import run_python
from support.records import context, record

from dejavu_cache.runtime.consensus import _ask
from dejavu_cache.stores import TieredStore
from dejavu_cache.system import background_threads
from dejavu_cache.system.background_threads import WriterThread, is_from_signal_handler
from dejavu_cache.system.import_hooks import after_import
from dejavu_cache.triton_internals.argument_access import accesses_of_kernel
from dejavu_cache.triton_internals.identity import identify
from dejavu_cache.triton_internals.scenario_key import ScenarioKey
from dejavu_cache.tuning.compile_ahead import compile_failure_of


@pytest.mark.parametrize(
    "starter", ["start_thread(work, 'x')", "threading.Thread(target=work, daemon=True).start()"]
)
def test_no_thread_is_inside_pydantic_when_the_program_ends(starter: str) -> None:
    """CPython would abort the process; 8 threads of one process make that all but certain."""
    code = f"""
        import sys, threading, time
        from dejavu_cache.system.background_threads import start_thread, uninterrupted
        from dejavu_cache.model.record import RecordSet
        from support.records import context, record

        text = RecordSet(
            context=context(), records=tuple(map(record, range(50)))
        ).model_dump_json(exclude_none=True)
        sys.setswitchinterval(1e-5)

        def work():
            while True:
                with uninterrupted():
                    RecordSet.model_validate_json(text)

        for _ in range(8):
            {starter}
        time.sleep(0.2)
        sys.exit(5)
    """
    done = run_python(code, check=False)
    assert (done.returncode, done.stderr) == (5, "")


def test_the_thread_that_ends_the_program_may_still_use_the_library() -> None:
    code = """
        import atexit
        atexit.register(lambda: late())
        from dejavu_cache.system.background_threads import (
            program_is_ending,
            start_thread,
            uninterrupted,
        )

        def late():
            with uninterrupted(), uninterrupted():
                print(program_is_ending(), start_thread(print, "x"))
    """
    assert run_python(code).stdout == "True None\n"


def test_ctrl_c_during_the_flush_ends_the_program_in_order() -> None:
    code = """
        import signal, sys, time
        from dejavu_cache.system.background_threads import at_program_end, start_thread

        class Slow:
            def finish(self, seconds):
                signal.raise_signal(signal.SIGINT)
            def interrupt(self):
                print("interrupted", flush=True)

        slow = Slow()
        at_program_end(slow)
        sys.exit(4)
    """
    done = run_python(code, check=False)
    assert (done.returncode, done.stdout) == (4, "interrupted\n")


def test_an_error_ends_no_thread_that_works_in_turns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, and the next turn follows."""
    monkeypatch.setattr(background_threads, "AFTER_ERROR", 0.0)
    turns: list[int] = []

    def turn() -> bool:
        turns.append(len(turns))
        if len(turns) < 4:
            raise FileNotFoundError("another process deleted it")
        return False

    thread = background_threads.start_thread(turn, "a thread of tests", in_turns=True)
    assert thread is not None
    thread.join(240)
    assert len(turns) == 4
    assert caplog.text.count("FileNotFoundError: another process deleted it") == 1


class Writer(WriterThread[int]):
    """Keeps what it is to write."""

    def __init__(self, quiet: float = 600.0) -> None:
        super().__init__("writer", quiet)
        self.written: list[int] = []
        self.has_written = threading.Event()

    def write(self, items: list[int]) -> None:
        self.written += items
        self.has_written.set()


def test_a_write_waits_for_a_moment() -> None:
    writer = Writer(quiet=1.0)
    start = time.monotonic()
    writer.add(1)
    assert writer.has_written.wait(240)
    assert time.monotonic() - start >= 0.9


def test_what_no_thread_can_write_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python begins no thread once the main one has ended."""
    monkeypatch.setattr(background_threads, "start_thread", lambda *_, **__: None)
    writer = Writer()
    writer.add(1)
    assert writer.written == [1]


def test_a_programs_end_writes_at_once_and_before_what_was_set_up_earlier() -> None:
    code = """
        from dejavu_cache.system.background_threads import WriterThread, at_program_end

        class Sender:
            def finish(self, seconds):
                print("sent")

            def interrupt(self):
                print("interrupted")

        class Writer(WriterThread):
            def write(self, items):
                print(*items)

        sender, writer = Sender(), Writer("writer", 600.0)
        at_program_end(sender)
        writer.add("written")
    """
    assert run_python(code).stdout.split() == ["written", "sent", "interrupted"]


def test_a_forked_child_leaves_the_writes_to_its_parent() -> None:
    code = """
        import os
        from support.processes import in_fork
        from dejavu_cache.system.background_threads import WriterThread

        parent = os.getpid()

        class Writer(WriterThread):
            def write(self, items):
                print(*items, os.getpid() == parent, flush=True)

        writer = Writer("writer", 600.0)
        writer.add("written")
        in_fork(lambda: writer.finish(3600))
    """
    assert run_python(code).stdout.split() == ["written", "True"]


def raise_limit(*_: Any) -> None:
    raise TimeoutError("a limit of the program's own")


class Limit:
    def raise_it(self, *arguments: Any) -> None:
        raise_limit(*arguments)

    def __call__(self, *arguments: Any) -> None:
        raise_limit(*arguments)


@pytest.fixture(autouse=True)
def keep_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


def caught(handler: Any) -> BaseException:
    """Return the error that a handler raises."""
    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises(TimeoutError) as error:
        os.kill(os.getpid(), signal.SIGUSR1)
    return error.value


@pytest.mark.parametrize(
    "handler", [raise_limit, Limit().raise_it, Limit(), partial(partial(raise_limit), 1)]
)
def test_an_error_of_any_kind_of_handler_is_told(handler: Any) -> None:
    """Also where Triton raises another one from it, or from None."""
    error, wrapped, hiding = caught(handler), *map(RuntimeError, ("while it", "compiled"))
    wrapped.__cause__ = hiding.__context__ = error
    assert all(map(is_from_signal_handler, (error, wrapped)))
    assert not is_from_signal_handler(hiding), "it was raised while another one was handled"
    hiding.__suppress_context__ = True
    assert is_from_signal_handler(hiding)
    raising = Mock(side_effect=error)
    unread = type("Unread", (), {"fn": property(raising), "asm": property(raising)})()
    for drop in (  # it is no config's, nor a kernel's, a store's or another package's
        lambda: compile_failure_of(error),
        lambda: identify(unread, ()),
        lambda: accesses_of_kernel(unread),
        lambda: ScenarioKey._ask(Mock(_heuristics={"even": raising}), {}, {}),
        lambda: TieredStore([Mock(url="", get=raising)]).get(context(), record().scenario),
        lambda: after_import("sys", lambda _: raising()),
        lambda: _ask(Mock(check=raising), "key"),
    ):
        with pytest.raises(TimeoutError):
            drop()


def test_other_errors_are_told_apart() -> None:
    """Of the same type, and where an object of any kind handles the signal."""
    for handler in (Limit(), Mock()):
        signal.signal(signal.SIGUSR1, handler)
        with pytest.raises(TimeoutError) as error:
            raise_limit()
        assert not is_from_signal_handler(error.value)


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
