"""What nobody waits for is written a moment after the launches, and before the program's end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from support.processes import run_python

from dejavu_cache.runtime import launch_recorder
from dejavu_cache.runtime.launch_recorder import QUIET_SECONDS, LaunchWriter


def launch(write: Callable[[], object]) -> Any:
    return SimpleNamespace(write=write)


def test_a_write_waits_for_a_moment() -> None:
    writer, written = LaunchWriter(), threading.Event()
    start = time.monotonic()
    writer.add(launch(written.set))
    assert written.wait(240)
    assert time.monotonic() - start >= 0.9 * QUIET_SECONDS


def test_what_no_thread_can_write_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python begins no thread once the main one has ended."""
    monkeypatch.setattr(launch_recorder, "start_thread", lambda *_: None)
    writer, written = LaunchWriter(), list[int]()
    writer.add(launch(lambda: written.index(-1)))
    writer.add(launch(lambda: written.append(1)))
    assert written == [1]


def test_a_flush_waits_for_all_writes_and_survives_their_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch_recorder, "QUIET_SECONDS", 600.0)
    writer, written = LaunchWriter(), list[int]()
    for number in range(3):
        writer.add(launch(partial(written.append, number)))
        writer.add(launch(lambda: written.index(-1)))
    writer.finish(240)
    assert written == [0, 1, 2]
    writer.add(launch(lambda: written.append(3)))
    writer.finish(240)
    assert written == [0, 1, 2, 3]


def test_a_programs_end_writes_at_once_and_before_what_was_set_up_earlier() -> None:
    code = """
        from types import SimpleNamespace
        from dejavu_cache.runtime.launch_recorder import LaunchWriter
        from dejavu_cache.system.background_threads import at_program_end

        class Sender:
            def finish(self, seconds):
                print("sent")

            def interrupt(self):
                print("interrupted")

        sender, writer = Sender(), LaunchWriter()
        at_program_end(sender)
        writer.add(SimpleNamespace(write=lambda: print("written")))
    """
    assert run_python(code).stdout.split() == ["written", "sent", "interrupted"]


def test_a_forked_child_leaves_the_writes_to_its_parent() -> None:
    code = """
        import os, sys
        from types import SimpleNamespace
        from dejavu_cache.runtime import launch_recorder

        launch_recorder.QUIET_SECONDS = 600.0
        parent, writer = os.getpid(), launch_recorder.LaunchWriter()
        write = lambda: print("written", os.getpid() == parent, flush=True)
        writer.add(SimpleNamespace(write=write))
        if os.fork():
            os.wait()
            sys.exit()
        writer.finish(3600)
        os._exit(0)
    """
    assert run_python(code).stdout.split() == ["written", "True"]
