"""Processes share what one of them found; each test runs real processes over one folder."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.fork_server import Child, Nursery
from support.kernels import ADD
from support.processes import PROGRAMS, environment, fork_python
from support.sweeping import wait_until

from dejavu_cache.model.record import Measurement
from dejavu_cache.stores import FileStore


class Fleet:
    """Processes over one store, and the log of every benchmark that any of them ran."""

    def __init__(self, folder: Path, nursery: Nursery) -> None:
        self._folder, self._nursery = folder, nursery
        self.store = folder / "store"
        self.log = folder / "log"
        self.log.touch()
        self.source = folder / "kernels.py"
        self.source.write_text(textwrap.dedent(ADD))

    def start(self, sizes: list[int], **env: str) -> Child:
        return self._nursery.start(
            (PROGRAMS / "tune_sizes.py").read_text(),
            self.source,
            self.log,
            json.dumps(sizes),
            folder=self._folder,
            **{"BENCH_SECONDS": "0.002", **env},
            TRITON_INTERPRET="1",
            DEJAVU_CACHE_URL=self.store.as_uri(),
        )

    def finish(self, process: Child) -> dict[str, object]:
        return json.loads(process.finish())  # type: ignore[no-any-return]

    def run(self, *sizes: int, **env: str) -> dict[str, object]:
        return self.finish(self.start(list(sizes), **env))

    def edit(self, old: str, new: str) -> None:
        text = self.source.read_text()
        assert old in text
        self.source.write_text(text.replace(old, new, 1))

    @property
    def measurements(self) -> list[Measurement]:
        """All measurements in the store."""
        record_sets = FileStore(self.store).record_sets()
        return [item for found in record_sets for r in found.records for item in r.measurements]

    @property
    def benchmarks(self) -> list[str]:
        return [line.split()[1] for line in self.log.read_text().splitlines()]


@pytest.fixture
def fleet(tmp_path: Path, nursery: Nursery) -> Fleet:
    return Fleet(tmp_path, nursery)


def test_edits_cost_what_they_must(fleet: Fleet) -> None:
    """Comments and moves cost nothing, a config one benchmark, a helper's code all of them."""
    assert fleet.run(100)["benchmarked"] == 3
    fleet.edit("@cached_autotune", "# a comment\n@cached_autotune")
    fleet.edit("import triton\n", "import triton\n\n\nMOVED = True\n\n")
    fleet.source = fleet.source.rename(fleet.source.with_name("moved.py"))
    assert fleet.run(100)["benchmarked"] == 0
    fleet.edit("(16, 32, 64)", "(32, 128)")
    assert fleet.run(100) == {"benchmarked": 1, "winners": {"100": 32}}
    fleet.edit("(32, 128)", "(16, 32, 64, 128)")
    assert fleet.run(100) == {"benchmarked": 0, "winners": {"100": 16}}
    fleet.edit("return x + SHIFT", "return x * 1 + SHIFT")
    assert fleet.run(100)["benchmarked"] == 4


def test_processes_at_once_benchmark_every_config_once(fleet: Fleet) -> None:
    sizes = [64 + n for n in range(12)]
    processes = [fleet.start(sizes) for _ in range(6)]
    results = [fleet.finish(process) for process in processes]
    assert len(fleet.benchmarks) == len(set(fleet.benchmarks)) == 36
    assert sum(result["benchmarked"] for result in results) == 36  # type: ignore[misc]
    assert all(result["winners"] == results[0]["winners"] for result in results)
    store = FileStore(fleet.store)
    (context,) = store.contexts()
    assert [len(record.measurements) for record in store.records(context)] == [3] * 12


def test_a_killed_tuner_loses_one_config_at_most(fleet: Fleet) -> None:
    process = fleet.start([100], HANGS_AT="2")
    wait_until(lambda: len(fleet.benchmarks) == 2 and len(fleet.measurements) == 1)
    process.kill()
    assert fleet.run(100)["benchmarked"] in (1, 2)
    assert len(fleet.benchmarks) <= 4


def test_who_waits_too_long_runs_a_fallback(fleet: Fleet) -> None:
    tuner = fleet.start([100], HANGS_AT="1")
    wait_until(lambda: bool(fleet.benchmarks))
    assert fleet.run(100, DEJAVU_CACHE_TUNE_WAIT="0.1")["benchmarked"] == 0
    tuner.kill()


def test_an_unwritable_home_costs_the_reuse_and_nothing_else(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    fleet.store = tmp_path / "file" / "store"
    process = fleet.start([100, 200, 100])
    assert fleet.finish(process)["benchmarked"] == 6
    assert process.err.read_text().count("cannot be written") == 1


def test_started_workers_find_what_the_script_tuned(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, PROGRAMS / "launch_in_workers.py"],
        env=environment(TRITON_INTERPRET="1", DEJAVU_CACHE_URL=str(tmp_path / "store")),
        capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["main 2", "spawn 0", "forkserver 0"]


def test_the_first_process_that_tunes_a_folder_says_what_it_kept(tmp_path: Path) -> None:
    code = """
        import json, sys
        from support.addition import CONFIGS, add_one, equal_times
        from support.kernels import launch
        from dejavu_cache import cached_autotune

        kernel = cached_autotune(configs=CONFIGS, key=["n"], do_bench=equal_times)(add_one)
        for size in json.loads(sys.argv[1]):
            launch(kernel, size)
    """
    env = {"DEJAVU_CACHE_URL": str(tmp_path), "TRITON_INTERPRET": "1"}
    first, later = (fork_python(code, sizes, **env).stderr for sizes in ("[128, 300]", "[500]"))
    assert first.startswith("dejavu-cache: 2 scenarios tuned in ")
    assert first.endswith(f"to see them: dejavu-cache ls --store {tmp_path}\n")
    assert later == ""
