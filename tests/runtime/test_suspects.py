"""What a process measured when it died or hung is known to the next one, and not run there."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from support.fork_server import Child, Nursery
from support.processes import PROGRAMS, dejavu, run_python
from support.records import context, record

from dejavu_cache.model.record import Record
from dejavu_cache.stores import FileStore
from dejavu_cache.tuning.measurement_marks import find_suspects

PROGRAM = PROGRAMS / "fatal_config.py"

RUN = """
    import runpy, sys
    sys.argv.pop(0)
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Processes:
    """Processes of one user that tune one kernel into one store."""

    def __init__(self, folder: Path, nursery: Nursery) -> None:
        self.store = folder / "store"
        self.marks = folder / "user" / "dejavu-cache" / "measuring"
        self._folder, self._nursery = folder, nursery
        self._log = folder / "log"
        self._variables = {
            "DEJAVU_CACHE_URL": str(self.store),
            "XDG_CACHE_HOME": str(folder / "user"),
            "TRITON_INTERPRET": "1",
            "LOG": str(self._log),
        }

    def start(self, block: int, way: str, **more: str) -> Child:
        self._log.write_text("")
        variables = {**self._variables, **more}
        return self._nursery.start(RUN, PROGRAM, block, way, folder=self._folder, **variables)

    def run(self, block: int = 0, way: str = "nothing", **more: str) -> tuple[int, str, str]:
        """Return the exit code and what the process wrote."""
        done = self.start(block, way, **more).complete()
        return done.returncode, done.stdout, done.stderr

    def sweep(self) -> str:
        self._log.write_text("")
        swept = dejavu("sweep", PROGRAM, "--store", self.store, **self._variables)
        assert swept.returncode == 0, swept.stderr
        return swept.stdout

    @property
    def launched_blocks(self) -> set[int]:
        """Blocks that the last process launched."""
        return set(map(int, self._log.read_text().split()))

    @property
    def outcomes(self) -> dict[object, str]:
        """Outcomes in the only record, by block."""
        store = FileStore(self.store)
        (context,) = store.contexts()
        record: Record
        (record,) = store.records(context)
        return {
            measurement.config.params["BLOCK"]: measurement.failure.kind
            if measurement.failure
            else "timed"
            for measurement in record.measurements
        }


@pytest.fixture
def processes(tmp_path: Path, nursery: Nursery) -> Processes:
    return Processes(tmp_path, nursery)


def test_a_config_that_kills_its_process_is_met_once(processes: Processes) -> None:
    assert processes.run(32, "kill")[0] == -9
    assert 32 in processes.launched_blocks
    code, out, error = processes.run(32, "kill")
    assert (code, out) == (0, "64\n"), "the best of the others runs"
    assert 32 not in processes.launched_blocks
    assert error.count("(BLOCK=32, num_ctas=1") == 1
    assert "is not run for a day: process" in error
    assert "`dejavu-cache sweep`" in error
    assert processes.outcomes == {16: "timed", 64: "timed"}, "a suspicion is no failure"
    assert processes.run(32, "kill")[:2] == (0, "64\n")
    assert processes.launched_blocks == {64}


def test_the_default_config_may_be_the_one_that_kills(processes: Processes) -> None:
    assert processes.run(16, "kill", DEJAVU_CACHE_CHECK="1")[0] == -9
    for mode in ("reuse", "tune", "reuse"):
        code, out, _ = processes.run(16, "kill", DEJAVU_CACHE_MODE=mode)
        assert code == 0
        assert out in ("32\n", "64\n")
        assert 16 not in processes.launched_blocks


def test_a_program_of_which_every_config_kills_ends_with_the_reasons(processes: Processes) -> None:
    for block in (16, 32, 64):
        assert processes.run(block, "kill")[0] == -9
    code, _, error = processes.run()
    assert code == 1
    assert "NoValidConfigError" in error
    assert "ended while it measured it" in error
    assert processes.launched_blocks == set()


def test_a_sweep_clears_a_config_that_did_not_kill(processes: Processes) -> None:
    assert processes.run(64, "kill")[0] == -9, "somebody else killed the process"
    assert processes.run()[1] == "32\n"
    processes.sweep()
    assert 64 in processes.launched_blocks
    assert processes.outcomes == {16: "timed", 32: "timed", 64: "timed"}
    assert list(processes.marks.iterdir()) == []
    assert processes.run()[:2] == (0, "64\n")


@pytest.mark.parametrize("age", [90_000, -90_000])
def test_a_suspicion_ends_after_a_day(age: int, processes: Processes) -> None:
    """One from the future was dated by a clock that was put back since."""
    assert processes.run(64, "kill")[0] == -9
    (mark,) = processes.marks.iterdir()
    os.utime(mark, (time.time() - age,) * 2)
    assert processes.run()[:2] == (0, "64\n")
    assert list(processes.marks.iterdir()) == [], "old marks are removed"


def test_a_process_that_hangs_does_not_stop_the_next_one(processes: Processes) -> None:
    """Let a process hang with the scenario's lease, for longer than a compilation takes."""
    hanging = processes.start(32, "hang")
    try:
        _wait_until_measuring(processes, 32)
        (mark,) = processes.marks.iterdir()
        os.utime(mark, (time.time() - 700,) * 2)
        code, out, error = processes.run(32, "hang")
        assert (code, out) == (0, "64\n")
        assert 32 not in processes.launched_blocks
        assert "has been measuring it for 7" in error
        assert processes.outcomes == {16: "timed", 64: "timed"}
    finally:
        hanging.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_process_that_was_asked_to_end_casts_no_suspicion(
    processes: Processes, number: signal.Signals
) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("processes of this suite ignore the signal, as under nohup")
    asked = processes.start(32, "hang")
    _wait_until_measuring(processes, 32)
    asked.send_signal(number)
    assert asked.complete().returncode == -number, "the signal ends the process as ever"
    code, out, error = processes.run()
    assert (code, out, "is not run" in error) == (0, "64\n", False)
    assert processes.outcomes == {16: "timed", 32: "timed", 64: "timed"}


ENDS_WHILE_A_THREAD_MEASURES = """
    import threading, time
    from support.records import config, context, record
    from dejavu_cache.tuning.measurement_marks import MeasurementMark

    mark, begun = MeasurementMark(context(), record().scenario), threading.Event()

    def measure():
        with mark.around(config()):
            begun.set()
            time.sleep(3600)

    threading.Thread(target=measure, daemon=True).start()
    begun.wait()
"""


def test_a_program_that_ends_while_a_thread_tunes_casts_no_suspicion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run_python(ENDS_WHILE_A_THREAD_MEASURES, XDG_CACHE_HOME=str(tmp_path))
    assert list((tmp_path / "dejavu-cache" / "measuring").iterdir())
    assert find_suspects(context(), record().scenario) == []


REPLACES_ITSELF = """
    import os, sys
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""
FINDS_SUSPECTS = """
from support.records import context, record
from dejavu_cache.tuning.measurement_marks import find_suspects
print(find_suspects(context(), record().scenario))
"""


def replace_measuring_program(new_program: str, cache: Path) -> str:
    """Return what a program prints that takes the place of one whose thread measures."""
    code = ENDS_WHILE_A_THREAD_MEASURES + REPLACES_ITSELF
    return run_python(code, new_program, XDG_CACHE_HOME=str(cache)).stdout


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
def test_a_program_that_replaces_itself_while_a_thread_tunes_casts_no_suspicion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert replace_measuring_program(FINDS_SUSPECTS, tmp_path) == "[]\n"
    assert find_suspects(context(), record().scenario) == [], "nor once the new program has ended"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
def test_a_replaced_program_casts_no_suspicion_in_another_process_while_the_new_one_runs(
    tmp_path: Path,
) -> None:
    finds = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {FINDS_SUSPECTS!r}])"
    assert replace_measuring_program(finds, tmp_path) == "[]\n"


def test_the_end_of_a_forked_child_clears_no_config_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forks = """
    import multiprocessing, os
    child = multiprocessing.get_context("fork").Process(target=print)
    child.start()
    child.join()
    assert child.exitcode == 0
    os._exit(9)
"""
    code = ENDS_WHILE_A_THREAD_MEASURES + forks
    run_python(code, check=False, XDG_CACHE_HOME=str(tmp_path))
    assert len(find_suspects(context(), record().scenario)) == 1


def test_a_process_that_was_asked_to_end_after_long_leaves_a_suspicion(
    processes: Processes,
) -> None:
    hanging = processes.start(32, "hang")
    _wait_until_measuring(processes, 32)
    (mark,) = processes.marks.iterdir()
    content = re.sub(rb'"since":[0-9.]+', b'"since":%f' % (time.time() - 120), mark.read_bytes())
    hanging.send_signal(signal.SIGTERM)
    assert hanging.complete().returncode == -signal.SIGTERM
    mark.write_bytes(content + mark.read_bytes().partition(b"\n")[2])
    code, out, error = processes.run(32, "hang")
    assert (code, out, error.count("is not run for a day")) == (0, "64\n", 1)


def test_a_process_that_measures_is_no_reason_to_suspect_its_config(processes: Processes) -> None:
    busy = processes.start(32, "hang")
    try:
        _wait_until_measuring(processes, 32)
        code, out, error = processes.run(DEJAVU_CACHE_TUNE_WAIT="0")
        assert (code, out, "is not run" in error) == (0, "16\n", False), "a fallback serves"
    finally:
        busy.kill()


def _wait_until_measuring(processes: Processes, block: int) -> None:
    """Wait until a process has marked a config and launched it, which comes after the mark."""
    text = f'"BLOCK":{block}'.encode()

    def is_measuring() -> bool:
        marks = [path.read_bytes() for path in processes.marks.glob("*.json")]
        return any(text in mark for mark in marks) and block in processes.launched_blocks

    until = time.monotonic() + 240
    while not is_measuring():
        assert time.monotonic() < until, "it does not measure"
        time.sleep(0.02)
