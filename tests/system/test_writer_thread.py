"""What nobody waits for is written a moment after the launches, and before the program's end."""

from __future__ import annotations

import threading
import time

import pytest
from support.processes import run_python

from dejavu_cache.system import background_threads
from dejavu_cache.system.background_threads import WriterThread


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


def test_a_flush_waits_for_all_writes() -> None:
    writer = Writer()
    for number in range(3):
        writer.add(number)
    writer.finish(240)
    assert writer.written == [0, 1, 2]
    writer.add(3)
    writer.finish(240)
    assert writer.written == [0, 1, 2, 3]
    assert writer.is_done


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
        import os, sys
        from dejavu_cache.system.background_threads import WriterThread

        parent = os.getpid()

        class Writer(WriterThread):
            def write(self, items):
                print(*items, os.getpid() == parent, flush=True)

        writer = Writer("writer", 600.0)
        writer.add("written")
        if os.fork():
            os.wait()
            sys.exit()
        writer.finish(3600)
        os._exit(0)
    """
    assert run_python(code).stdout.split() == ["written", "True"]
