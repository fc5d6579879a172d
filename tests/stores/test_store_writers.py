"""Processes that write one file store at once, or are killed, lose nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import PROGRAMS, environment, run_python
from support.records import context, record

from dejavu_cache.stores import FileStore


@pytest.fixture
def writers() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


def start_writer(root: Path, start: int, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAMS / "write_store.py"), str(root), str(start), str(count)],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )


def test_processes_that_write_one_file_lose_nothing(
    tmp_path: Path, writers: list[subprocess.Popen[str]]
) -> None:
    root = tmp_path / "store"
    writers += [start_writer(root, 1000 * index, 25) for index in range(1, 5)]
    for process in writers:
        assert process.wait(240) == 0
    assert len(list(FileStore(root).records(context()))) == 100


def test_killing_writers_at_random_leaves_a_readable_store(tmp_path: Path) -> None:
    """200 writers are killed; everything that one had acknowledged is there afterwards."""
    root = tmp_path / "store"
    acknowledged: set[int] = set()
    for line in run_python(
        (PROGRAMS / "kill_writers.py").read_text(), str(root)
    ).stdout.splitlines():
        said, _, present = line.partition("|")
        acknowledged |= set(map(int, said.split()))
        assert not present.strip() or acknowledged <= set(map(int, present.split()))
    assert len(acknowledged) > 100
    assert acknowledged <= {
        entry.scenario.args["M"] for entry in FileStore(root).records(context())
    }
    assert FileStore(root).problems() == {}
    FileStore(root).put(context(), [record(1)])
