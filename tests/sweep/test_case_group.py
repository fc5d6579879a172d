"""Cases of one scenario are measured together, and one config wins over all of them."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
from support.processes import PROGRAMS
from support.sweeping import Sweeps

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.record import (
    FORMAT,
    NO_MEMORY,
    Measurement,
    OutputVerdict,
    Record,
    reasons_not_compared,
)
from dejavu_cache.model.scenario import Config, Scenario, now
from dejavu_cache.model.selection import evidence_lines
from dejavu_cache.stores import FileStore, open_store
from dejavu_cache.sweep.case_group import CaseGroup, CaseTuner
from dejavu_cache.sweep.hosts import CaseJob, LocalHost, SweepSpec
from dejavu_cache.sweep.journal import Journal
from dejavu_cache.sweep.runner import Sweep
from dejavu_cache.sweep.suite import Suite, load_suite
from dejavu_cache.system.workers import ParentConnection
from dejavu_cache.tuning.result_check import ResultCheck

SUITE = load_suite(f"{PROGRAMS / 'logged_suite.py'}:drawn")
DRAWS = [case for case in SUITE.load_cases({}) if case.name.startswith("draw")]
EXPECTED = ["100 32", "100 16", "100 64", "100 128", "101 32", "101 16", "101 128", "102 32"]
"""What is measured: block 64 is far behind after one case, block 16 after two."""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "log"
    path.touch()
    monkeypatch.setenv("LOG", str(path))
    return path


def measure(folder: Path, *crashes: tuple[Config, str], cases: int = 3) -> dict[str, object]:
    """Measure the first draws in this process, as a worker does."""
    journal = Journal(open_store(str(folder)), folder / "journal")
    with journal:
        job = CaseJob(do="measure", case=DRAWS[0].name, crashes=crashes)
        tuner = CaseTuner(job, ParentConnection(io.StringIO(), io.StringIO()), journal)
        return CaseGroup(DRAWS[:cases], journal).measure(tuner)


def only_record(folder: Path) -> Record:
    store = FileStore(folder)
    (found,) = store.contexts()
    (record,) = store.records(found)
    return record


def of_block(record: Record, block: int) -> Measurement:
    (found,) = (m for m in record.measurements if m.config.params["BLOCK"] == block)
    return found


def winning_block(record: Record) -> object:
    return record.winner and record.winner.config.params["BLOCK"]


def test_what_wins_is_good_in_all_cases(tmp_path: Path, log: Path) -> None:
    store = tmp_path / "store"
    assert measure(store, cases=2) == {"status": "tuned", "measured": 7}
    assert measure(store) == {"status": "tuned", "measured": 2}, "a case more extends the record"
    assert log.read_text().splitlines() == [*EXPECTED, "102 128"]
    record = only_record(store)
    assert winning_block(record) == 128
    winner = of_block(record, 128)
    assert winner.cases == {"draw 100": 12.0, "draw 101": 10.0, "draw 102": 11.0}
    assert winner.median == pytest.approx((12 * 10 * 11) ** (1 / 3))
    assert of_block(record, 64).cases == {"draw 100": 20.0}
    evidence = evidence_lines(record, winner.config, record.by_config)
    assert evidence[0].endswith(", the mean of 3 cases")
    medians = sorted(record.measurements, key=lambda m: m.median or 0)
    assert [m.config.params["BLOCK"] for m in medians] == [128, 32, 64, 16]
    (path,) = store.rglob("*.json")
    assert json.loads(path.read_text())["format"] == FORMAT
    assert measure(store) == {"status": "known"}
    assert len(log.read_text().splitlines()) == 9


def test_an_interrupted_group_goes_on_where_it_stopped(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOP", "101 16")
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path)
    monkeypatch.delenv("STOP")
    crash = (of_block(only_record(tmp_path), 128).config, "mine")
    assert measure(tmp_path, crash)["measured"] == 2
    assert log.read_text().splitlines() == [*EXPECTED[:5], "101 16", "102 32"]
    record = only_record(tmp_path)
    failed = of_block(record, 128)
    assert failed.failure is not None
    assert (failed.failure.kind, failed.cases) == ("crash", {"draw 100": 12.0})
    assert winning_block(record) == 32


@pytest.mark.parametrize("batch", [100, 102])
def test_results_are_checked_in_the_first_and_last_case(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setenv("WRONG", f"{batch} 128")
    measure(tmp_path)
    record = only_record(tmp_path)
    failure = of_block(record, 128).failure
    assert failure is not None
    assert failure.kind == "wrong"
    assert winning_block(record) == 32


def test_a_winner_that_was_not_compared_in_a_case_is_compared_without_a_measurement(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the last case, the largest one, leaves no memory for a comparison."""
    lacking = OutputVerdict(outcome="not_compared", reason=NO_MEMORY)
    partly = {"count": OutputVerdict(outcome="equal"), "out_ptr": lacking}
    with monkeypatch.context() as patch:
        patch.setattr(ResultCheck, "compare", lambda *_: (partly, None))
        assert measure(tmp_path)["status"] == "tuned"
    winner = only_record(tmp_path).winner
    assert winner is not None
    assert reasons_not_compared(winner.results) == [f"out_ptr: {NO_MEMORY}"]
    again = measure(tmp_path)
    assert (again["status"], again["measured"]) == ("known", 0)
    compared = only_record(tmp_path).winner
    assert compared is not None
    assert (compared.config, compared.is_compared) == (winner.config, True)
    assert measure(tmp_path) == {"status": "known"}


def test_a_launch_never_prefers_a_timing_of_one_batch(tmp_path: Path, log: Path) -> None:
    measure(tmp_path)
    store, record = FileStore(tmp_path), only_record(tmp_path)
    (found,) = store.contexts()
    alone = of_block(record, 16).model_copy(update={"median": 1e-3, "cases": None, "at": now()})
    store.put(found, [Record(scenario=record.scenario, measurements=(alone,))])
    assert of_block(only_record(tmp_path), 16) == of_block(record, 16)


def test_names_that_no_record_holds_are_refused(tmp_path: Path) -> None:
    for names in (["a\nb", "c"], [f"{n}" for n in range(257)]):
        cases = [dataclasses.replace(DRAWS[0], name=name) for name in names]
        with pytest.raises(SettingsError, match="have one scenario: a record holds at most 256"):
            CaseGroup(cases, Journal(open_store(str(tmp_path)), tmp_path / "journal"))


def test_two_workers_measure_a_group_once(sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in sweeps.environment().items():
        monkeypatch.setenv(name, value)
    spec = SweepSpec(suite=f"{sweeps.suite}:drawn", store=sweeps.store.as_uri())
    hosts = [LocalHost(spec), LocalHost(spec)]
    report = Sweep(hosts).run()
    assert report.complete, report
    assert set(report.outcomes) == {"draw 100", "draw 101", "draw 102", "n=500"}
    assert report.measured == 9 + 4
    lines = sweeps.measurements_taken
    assert sorted(line for line in lines if not line.startswith("500")) == sorted(
        [*EXPECTED, "102 128"]
    )


def test_a_suite_may_make_several_cases_for_a_miss() -> None:
    suite = Suite(SUITE.cases, lambda kernel, scenario: DRAWS)
    assert suite.cases_for("logged_suite.add_one", Scenario(args={"n": 100})) == DRAWS
