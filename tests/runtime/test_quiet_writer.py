"""What nobody waits for is written a moment after the launches, and before the program's end."""

from __future__ import annotations

import threading
import time

import pytest
from support.processes import run_python

from dejavu_cache.runtime import launch_recorder
from dejavu_cache.runtime.launch_recorder import QUIET_SECONDS, QuietWriter


def test_a_write_waits_for_a_moment() -> None:
    writer, written = QuietWriter(), threading.Event()
    start = time.monotonic()
    writer.submit(written.set)
    assert written.wait(240)
    assert time.monotonic() - start >= 0.9 * QUIET_SECONDS


def test_what_no_thread_can_write_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python begins no thread once the main one has ended."""
    monkeypatch.setattr(launch_recorder, "start_thread", lambda *_: None)
    writer, written = QuietWriter(), list[int]()
    writer.submit(lambda: written.index(-1))
    writer.submit(lambda: written.append(1))
    assert written == [1]


def test_a_flush_waits_for_all_writes_and_survives_their_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch_recorder, "QUIET_SECONDS", 600.0)
    writer, written = QuietWriter(), list[int]()
    for number in range(3):
        writer.submit(lambda number=number: written.append(number))  # type: ignore[misc]
        writer.submit(lambda: written.index(-1))
    writer.finish(240)
    assert written == [0, 1, 2]
    writer.submit(lambda: written.append(3))
    writer.finish(240)
    assert written == [0, 1, 2, 3]


def test_a_programs_end_writes_at_once_and_before_what_was_set_up_earlier() -> None:
    code = """
        from dejavu_cache.runtime.launch_recorder import QuietWriter
        from dejavu_cache.system.background_threads import at_program_end

        class Sender:
            def finish(self, seconds):
                print("sent")

            def interrupt(self):
                print("interrupted")

        sender, writer = Sender(), QuietWriter()
        at_program_end(sender)
        writer.submit(lambda: print("written"))
    """
    assert run_python(code).stdout.split() == ["written", "sent", "interrupted"]


def test_a_forked_child_leaves_the_writes_to_its_parent() -> None:
    code = """
        import os, sys
        from dejavu_cache.runtime import quiet_writer

        launch_recorder.QUIET_SECONDS = 600.0
        parent, writer = os.getpid(), launch_recorder.QuietWriter()
        writer.submit(lambda: print("written", os.getpid() == parent, flush=True))
        if os.fork():
            os.wait()
            sys.exit()
        writer.finish(3600)
        os._exit(0)
    """
    assert run_python(code).stdout.split() == ["written", "True"]
