"""Processes that write one file store at once, or are killed, lose nothing."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

from support.processes import in_own_process
from support.records import context, record

from dejavu_cache.stores import FileStore


def start(call: Callable[[], object]) -> int:
    """Call a function in a forked child, and return its process number."""
    child = os.fork()
    if not child:
        call()
        os._exit(0)
    return child


def sizes(root: str) -> set[object]:
    return {entry.scenario.args["M"] for entry in FileStore(root).records(context())}


@in_own_process()
def test_processes_that_write_one_file_lose_nothing(tmp_path: str) -> None:
    def write(first: int) -> None:
        store = FileStore(tmp_path)
        for m in range(first, first + 25):
            store.put(context(), [record(m)])

    children = [start(lambda first=1000 * n: write(first)) for n in range(4)]  # type: ignore[misc]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert len(sizes(tmp_path)) == 100


@in_own_process()
def test_killing_writers_at_random_leaves_a_readable_store(tmp_path: str) -> None:
    """200 writers are killed; everything that one had acknowledged is there afterwards."""
    acknowledged: set[object] = set()
    for repetition in range(200):
        reading, writing = os.pipe()

        def write(first: int = 1000 * (repetition + 1), to: int = writing) -> None:
            store = FileStore(tmp_path)
            for m in range(first, first + 1000):
                store.put(context(), [record(m)])
                os.write(to, f"{m} ".encode())

        child, said = start(write), b""
        os.close(writing)
        # Wait for its progress and not by the clock: on a busy machine it would get nowhere.
        for _ in range(random.randint(0, 2)):
            said += os.read(reading, 1 << 20)
        time.sleep(random.uniform(0, 0.005))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said += os.read(reading, 1 << 20)
        os.close(reading)
        acknowledged |= {*map(int, said.split())}
        assert repetition % 20 < 19 or acknowledged <= sizes(tmp_path)
    assert len(acknowledged) > 100
    assert FileStore(tmp_path).problems() == {}
    FileStore(tmp_path).put(context(), [record(1)])
