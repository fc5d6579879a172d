"""Each process reports its run in a file of its own; two boots differ in a line per difference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.addition import CONFIGS, add_one, equal_times
from support.command_line import run_cli
from support.kernels import launch
from support.processes import run_python

from dejavu_cache import cached_autotune
from dejavu_cache.model.record import Pin, Record
from dejavu_cache.model.scenario import now
from dejavu_cache.runtime import run_files
from dejavu_cache.runtime.run_files import read_events
from dejavu_cache.settings import current_settings
from dejavu_cache.stores import FileStore
from dejavu_cache.triton_internals.config_names import describe


def test_a_process_makes_its_own_file_in_a_new_folder_and_says_what_it_cannot_write(
    tmp_path: Path,
) -> None:
    """With a full disk, a program whose launches missed would look like one that only hit."""
    code = """
        import os, resource
        from dejavu_cache.runtime.run_files import report_event

        report_event("hit", "parent")
        process = os.fork()
        if process == 0:
            report_event("hit", "child")
            os._exit(0)
        os.waitpid(process, 0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
        report_event("missed", "parent")
    """
    folder = tmp_path / "new" / "folder"
    run_python(code, DEJAVU_CACHE_REPORT=str(folder))
    assert len(list(folder.glob("*.jsonl"))) == 2
    events = read_events(folder)
    assert {event.about for event in events if event.what == "hit"} == {"parent", "child"}
    assert {event.what for event in events} == {"hit", "lost"}
    assert all(event.is_unwanted == (event.what == "lost") for event in events)


def test_a_report_that_ends_within_a_line_has_lost_an_event(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text('{"what": "hit", "about": "k"}\n{"what": "miss')
    assert [event.what for event in read_events(tmp_path)] == ["hit", "lost"]


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    yield
    current_settings.cache_clear()
    run_files._begin.cache_clear()


class Program:
    """A program that launches one kernel with some sizes."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.root, self.monkeypatch = root / "store", root, monkeypatch
        # It would replace methods of Triton for the other tests of this process, too.
        monkeypatch.setattr("dejavu_cache.runtime.autotuner.report_triton_activity", print)

    def boot(self, name: str, *sizes: int, mode: Any = "reuse", configs: Any = CONFIGS) -> Path:
        """Run once, as a process of its own would, and return the folder of its report."""
        self.monkeypatch.setenv("DEJAVU_CACHE_REPORT", str(self.root / name))
        current_settings.cache_clear()
        run_files._begin.cache_clear()
        options = {"buckets": {"n": "pow2"}, "store": self.store, "mode": mode}
        kernel = cached_autotune(configs, ["n"], do_bench=equal_times, **options)(add_one)
        for size in sizes:
            launch(kernel, size)
            launch(kernel, size)
        return self.root / name


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    made = Program(tmp_path, monkeypatch)
    made.boot("first", 128, 1024, mode="tune")
    return made


def test_two_equal_boots_do_not_differ(program: Program) -> None:
    runs = [program.boot(name, 128, 1024) for name in ("a", "b")]
    out = run_cli("diff", *runs)
    assert (out.returncode, out.stdout) == (0, "no differences in 2 scenarios\n")
    (file,) = runs[0].glob("*.jsonl")
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(entries) == 2
    assert all(f" in {program.store.as_uri()} " in entry["detail"] for entry in entries)


def test_a_pin_between_two_boots_is_one_line(program: Program) -> None:
    before = program.boot("a", 128, 1024)
    store = FileStore(program.store)
    (context,) = store.contexts()
    record = next(item for item in store.records(context) if item.scenario.args["n"] == 128)
    pin = Pin(config=describe(CONFIGS[2]), at=now(), by="anna@desk")
    store.put(context, [Record(scenario=record.scenario, pin=pin)], now=True)
    after = program.boot("b", 128, 1024)
    out = run_cli("diff", before, after)
    (line,) = out.stdout.splitlines()
    assert out.returncode == 1
    assert "(n=128; x_ptr: float32" in line
    assert f"pinned: {describe(CONFIGS[2])}" in line.partition(" | ")[2]


def test_another_record_of_the_same_config_is_told(program: Program) -> None:
    before = program.boot("a", 256)
    program.boot("tuned", 256, mode="tune")
    after = program.boot("b", 256, 1024)
    lines = run_cli("diff", before, after).stdout.splitlines()
    assert len(lines) == 2
    assert any("n=1024" in line and ": not run | " in line for line in lines)
    changed = next(line for line in lines if "n=256" in line)
    assert "nearest" in changed.partition(" | ")[0]
    assert "exact" in changed.partition(" | ")[2]


def test_a_line_that_was_cut_short_costs_itself_alone(program: Program) -> None:
    runs = [program.boot(name, 128) for name in ("a", "b")]
    (file,) = runs[1].glob("*.jsonl")
    with file.open("a") as broken:
        broken.write('{"what": "hit"\n[1]\n{"run": 3}\n')
    assert run_cli("diff", *runs).returncode == 0


def test_a_folder_without_a_report_is_an_error(tmp_path: Path) -> None:
    out = run_cli("diff", tmp_path, tmp_path)
    assert (out.returncode, out.stdout) == (1, "")
    assert "DEJAVU_CACHE_REPORT" in out.stderr


def test_no_line_of_a_report_hides_another(tmp_path: Path) -> None:
    """Neither a name with a line separator in it nor a line that is nested too deeply."""
    event = {"what": "hit", "about": "add\u2028one(n=1)"}
    for name in ("a", "b"):
        lines = ["[" * 100_000, json.dumps({**event, "detail": name}, ensure_ascii=False), ""]
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jsonl").write_text("\n".join(lines))
    out = run_cli("diff", tmp_path / "a", tmp_path / "b")
    assert (out.returncode, out.stdout.count("\n")) == (1, 1), out.stderr
    assert ": a | b" in out.stdout
