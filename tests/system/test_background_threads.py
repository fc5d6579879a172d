"""Threads of this library have ended, or stand still, before the interpreter finalises."""

from __future__ import annotations

import pytest
from support.processes import run_python

from dejavu_cache.system import background_threads


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
