"""What a process measured when it died is known to the next one, and not run there."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from support.fork_server import Child, Nursery
from support.processes import PROGRAMS, dejavu

from dejavu_cache.model.record import Record
from dejavu_cache.stores import FileStore

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
