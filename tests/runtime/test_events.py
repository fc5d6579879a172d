"""One event per launch: in the log, as a span, and in the report of the process's run."""

import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import triton
from support.addition import CONFIGS, Bench, add_one, equal_times
from support.command_line import run_cli
from support.kernels import launch
from support.processes import run_python

from dejavu_cache import cached_autotune
from dejavu_cache.model.record import Pin, Record
from dejavu_cache.model.scenario import now
from dejavu_cache.runtime import events, run_files
from dejavu_cache.runtime.run_files import read_events
from dejavu_cache.settings import current_settings
from dejavu_cache.stores import FileStore
from dejavu_cache.system import notices
from dejavu_cache.system.notices import show_log
from dejavu_cache.triton_internals.config_names import describe


def make(store: Path, mode: Any = "tune") -> Any:
    return cached_autotune(
        CONFIGS, ["n"], buckets={"n": "pow2"}, do_bench=Bench(), store=store, mode=mode
    )(add_one)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "dejavu_cache")
    return caplog


def test_a_tune_and_a_fallback_are_one_line_each_and_a_hit_says_nothing(
    tmp_path: Path, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dejavu_cache.runtime.choices.RETRY_AFTER", 0.0)
    tuning, reusing = make(tmp_path), make(tmp_path, "reuse")
    launch(tuning, 128)
    (line,) = log.messages
    assert "tuned " in line
    assert "(n=128; x_ptr: float32" in line
    assert f": {len(CONFIGS)} configs in " in line
    assert f"winner (BLOCK={tuning.best_config.kwargs['BLOCK']}" in line
    assert line.endswith(f" 1 ms, 67% less than the default, tuned in {tmp_path.as_uri()}")
    log.clear()
    for _ in range(3):
        launch(reusing, 256)
    (line,) = log.messages
    assert "fell back for " in line
    assert f"of the default's time in {tmp_path.as_uri()}" in line
    launch(tuning, 256)
    log.clear()
    for _ in range(2):
        launch(reusing, 256)
    assert not log.messages, "a hit"


def test_a_long_tune_logs_lines(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(notices, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def bench(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        kernel_call()
        clock[0] += 6
        return [1.0] * 3

    configs = [triton.Config({"BLOCK": block}) for block in (16, 32, 64, 128)]
    launch(cached_autotune(configs, ["n"], do_bench=bench)(add_one), 100)
    assert [line.partition("): ")[2] for line in log.messages if line.startswith("tuning")] == [
        "2 of 4 configs after 12 s",
        "4 of 4 configs after 24 s",
    ]


def test_a_setting_writes_the_log_to_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger("dejavu_cache")
    monkeypatch.setattr(root, "propagate", True)
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", logging.NOTSET)
    show_log.cache_clear()
    show_log("info")
    show_log("info")
    logging.getLogger("dejavu_cache.launches").info("tuned it")
    logging.getLogger("dejavu_cache.launches").debug("hidden")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("INFO dejavu_cache.launches: tuned it")
    show_log.cache_clear()


class Recorder:
    """Takes the place of a program's providers and keeps what they get."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, dict[str, Any], float]] = []
        self.choices: Counter[str] = Counter()

    def start_span(self, name: str, start_time: int, attributes: dict[str, Any]) -> Any:
        def end(end_time: int) -> None:
            self.spans.append((name, attributes, (end_time - start_time) / 1e9))

        return SimpleNamespace(end=end)

    def add(self, value: int, attributes: dict[str, Any]) -> None:
        self.choices[attributes["dejavu_cache.how"]] += value


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    pytest.importorskip("opentelemetry.trace")
    recorder = Recorder()
    monkeypatch.setattr("opentelemetry.trace.get_tracer", lambda name: recorder)
    monkeypatch.setattr(events, "_choices_counter", lambda: recorder)
    return recorder


def test_a_tune_and_a_fallback_are_one_span_each(tmp_path: Path, recorder: Recorder) -> None:
    launch(make(tmp_path), 128)
    launch(make(tmp_path, "reuse"), 128)
    reusing = make(tmp_path, "reuse")
    for _ in range(3):
        launch(reusing, 256)
    (tuning, tuned, seconds), (fallback, fell, _) = recorder.spans
    assert (tuning, fallback) == ("dejavu_cache.tune", "dejavu_cache.fallback")
    assert tuned["dejavu_cache.benchmarked"] > 1
    assert "BLOCK" in tuned["dejavu_cache.config"]
    assert 0 < seconds < 300
    assert fell["dejavu_cache.how"] == "predicted"
    assert "n=256" in fell["dejavu_cache.scenario"]
    assert recorder.choices == {"tuned": 1, "exact": 1, "predicted": 1}


def test_the_api_takes_every_span_and_metric_and_a_broken_one_fails_no_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("opentelemetry.trace")
    launch(make(tmp_path), 128)
    assert "OpenTelemetry" not in caplog.text, "the API's own objects took them"
    broken = Mock(side_effect=RuntimeError("no exporter"))
    monkeypatch.setattr(events, "_choices_counter", broken)
    launch(make(tmp_path), 512)
    assert "OpenTelemetry took no span or metric: RuntimeError: no exporter" in caplog.text


def test_a_program_without_telemetry_does_not_import_it(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry")
    launch(make(tmp_path), 128)
    assert "opentelemetry" not in sys.modules
    assert not recorder.spans


def test_a_process_makes_its_own_file_in_a_new_folder_and_says_what_it_cannot_write(
    tmp_path: Path,
) -> None:
    """With a full disk, a program whose launches missed would look like one that only hit."""
    code = """
        import resource
        from support.processes import in_fork
        from dejavu_cache.runtime.run_files import report_event

        report_event("hit", "parent")
        in_fork(lambda: report_event("hit", "child"))
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
    run_files._begin.cache_clear()


Boot = Callable[..., Path]


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Boot:
    """Return what runs a program once, with some sizes, and returns the folder of its report."""
    # It would replace methods of Triton for the other tests of this process, too.
    monkeypatch.setattr("dejavu_cache.runtime.autotuner.report_triton_activity", print)

    def run_once(name: str, *sizes: int, mode: Any = "reuse") -> Path:
        monkeypatch.setenv("DEJAVU_CACHE_REPORT", str(tmp_path / name))
        current_settings.cache_clear()
        run_files._begin.cache_clear()
        options = {"buckets": {"n": "pow2"}, "store": tmp_path / "store", "mode": mode}
        kernel = cached_autotune(CONFIGS, ["n"], do_bench=equal_times, **options)(add_one)
        for size in sizes:
            launch(kernel, size)
            launch(kernel, size)
        return tmp_path / name

    return run_once


def test_two_boots_differ_by_what_was_pinned_or_recorded_between_them(
    boot: Boot, tmp_path: Path
) -> None:
    boot("first", 128, 1024, mode="tune")
    before, again = (boot(name, 128, 1024) for name in ("a", "b"))
    out = run_cli("diff", before, again)
    assert (out.returncode, out.stdout) == (0, "no differences in 2 scenarios\n")
    (file,) = before.glob("*.jsonl")
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(entries) == 2
    assert all(f" in {(tmp_path / 'store').as_uri()} " in entry["detail"] for entry in entries)
    near = boot("c", 128, 256)
    store = FileStore(tmp_path / "store")
    (context,) = store.contexts()
    record = next(item for item in store.records(context) if item.scenario.args["n"] == 128)
    pin = Pin(config=describe(CONFIGS[2]), at=now(), by="anna@desk")
    store.put(context, [Record(scenario=record.scenario, pin=pin)], now=True)
    boot("tuned", 256, mode="tune")
    out = run_cli("diff", near, boot("d", 128, 256, 1024))
    lines = dict(zip((128, 256, 1024), sorted(out.stdout.splitlines(), key=size_in), strict=True))
    assert out.returncode == 1
    assert "(n=128; x_ptr: float32" in lines[128]
    assert f"pinned: {describe(CONFIGS[2])}" in lines[128].partition(" | ")[2]
    assert ["default" in lines[256].partition(" | ")[0], "exact" in lines[256]] == [True, True]
    assert ": not run | " in lines[1024]


def size_in(line: str) -> int:
    return int(line.partition("(n=")[2].partition(";")[0])


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
