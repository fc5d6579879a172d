"""A sweep measures what is missing, once, says what became of it, and hands over what was left."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.processes import PROGRAMS, dejavu
from support.records import config, context, record
from support.sweeping import Sweeps

from dejavu_cache.errors import SettingsError, StoreError
from dejavu_cache.model.record import Pin
from dejavu_cache.model.scenario import now
from dejavu_cache.model.worth import Worth
from dejavu_cache.stores import FileStore, Store
from dejavu_cache.sweep.hosts import CaseJob, CaseOutcome
from dejavu_cache.sweep.journal import Journal, hand_over_what_is_left
from dejavu_cache.sweep.runner import Sweep
from dejavu_cache.sweep.suite import load_suite


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Sweeps:
    """Return a folder with a sweep of two cases, for tests that continue it."""
    done = Sweeps(tmp_path_factory.mktemp("first"))
    report = done.json("--option", "cases=2")
    assert (report["complete"], report["measured"], report["left"]) == (True, 8, [])
    assert [outcome["case"] for outcome in report["outcomes"]] == ["n=100", "n=101"]
    assert done.recorded_times == done.whole(2)
    return done


@pytest.fixture
def swept(first: Sweeps, tmp_path: Path) -> Sweeps:
    return first.copy(tmp_path)


def test_a_sweep_of_nothing_ends_with_the_reason(sweeps: Sweeps) -> None:
    reason = "these sizes need no tuning"
    assert sweeps.run(suite=":empty") == f"nothing to tune: {reason}\n"
    assert sweeps.json("--dry-run", suite=":empty")["why_empty"] == reason


def test_neither_a_dry_run_nor_a_second_sweep_measures_anything(swept: Sweeps) -> None:
    report = swept.json("--dry-run")
    statuses = [outcome["status"] for outcome in report["outcomes"]]
    assert (statuses, report["why_empty"]) == (["known"] * 2 + ["due"] * 6, None)
    assert "2 were there already, 6 not tuned in" in swept.run("--dry-run")
    assert "0 cases tuned, 0 configs measured" in swept.run("--option", "cases=2")
    assert len(swept.measurements_taken) == 8


def test_a_budget_ends_a_sweep_and_the_next_one_goes_on(sweeps: Sweeps) -> None:
    report = sweeps.json("--budget", "2s", "--option", "cases=1", code=1, BENCH_SECONDS="2")
    assert (report["stopped"], report["left"]) == ("the budget is used up", [])
    assert "measured is kept" in sweeps.run("--budget", "2s", code=1, BENCH_SECONDS="0.5")
    assert 0 < len(sweeps.measurements_taken) <= 7
    sweeps.run()
    assert len(sweeps.measurements_taken) == 32
    assert sweeps.recorded_times == sweeps.whole()


@pytest.mark.parametrize("draws", ["1", "2"])
def test_what_is_known_predicts_what_a_sweep_leaves_out(sweeps: Sweeps, draws: str) -> None:
    def sweep(*arguments: str) -> int:
        sweeps.run("--option", f"draws={draws}", *arguments, suite=":space_cases")
        return len({line for line in sweeps.measurements_taken if line.startswith("256 ")})

    sweeps.run("--option", "sizes=64 1024", suite=":space_cases")
    new, predicted = ("--option", "sizes=256"), ("--tune-loss", "0.01")
    few = sweep(*new, *predicted)
    assert 8 <= few < 40
    assert "256 64 4 2" in sweeps.measurements_taken  # the best
    taken = sweeps.measurements_taken
    sweep(*new, *predicted)
    assert sweeps.measurements_taken == taken
    assert sweep(*new) == 48


def test_what_another_triton_measured_leaves_little_to_measure(sweeps: Sweeps) -> None:
    sweeps.run("--option", "sizes=256", suite=":space_cases")
    store = FileStore(sweeps.store)
    (context,) = store.contexts()
    older = context.environment.model_copy(update={"triton": "3.5.1"})
    store.put(context.model_copy(update={"environment": older}), [*store.records(context)])
    store.delete(context)
    sweeps.run("--option", "sizes=256", "--tune-loss", "0.03", suite=":space_cases")
    again = sweeps.measurements_taken[48:]
    assert (len(again), "256 64 4 2" in again) == (8, True), "the best is among them"


def test_what_is_pinned_is_not_due(swept: Sweeps) -> None:
    """Nor is another sweep to blame: nobody measures it."""
    store = FileStore(swept.store)
    (context,) = store.contexts()
    records = [
        record.model_copy(update={"measurements": record.measurements[:1]})
        for record in store.records(context)
    ]
    store.delete(context)
    pin = Pin(config=records[0].measurements[0].config, at=now())
    store.put(context, [record.model_copy(update={"pin": pin}) for record in records])
    assert "0 cases tuned, 0 configs measured" in swept.run("--option", "cases=2")


def test_bad_cases_cost_themselves_and_nothing_else(sweeps: Sweeps) -> None:
    out = sweeps.run("--option", "cases=2", "--option", "bad=raises full plain asks", code=1)
    assert "raises: failed: ZeroDivisionError: mine" in out
    assert "asks: failed: EOFError" in out, "what it reads as standard input is empty"
    assert "full: no memory for it" in out
    refusal = "case plain: its kernel is not decorated with @cached_autotune"
    assert f"plain: failed: SettingsError: {refusal}" in out
    assert "run the same command again" not in out, "only their author can mend them"
    assert sweeps.recorded_times == sweeps.whole(2)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nothing", {}, "has no suite 'nothing'"),
        ("leaves", {}, "the suite raised SystemExit: 3"),
        ("strange", {}, "the suite gave 'n=101', which is no Case"),
        ("forgetful", {}, "the suite raised TypeError: 'NoneType' object is not iterable"),
        ("suite", {"case": "5"}, "got an unexpected keyword argument 'case'"),
    ],
)
def test_a_suite_that_cannot_be_used_is_an_error(
    name: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        load_suite(f"{PROGRAMS / 'logged_suite.py'}:{name}").load_cases(options)


@pytest.mark.parametrize(
    ("file", "source", "message"),
    [
        ("suite_that_exits.py", "import sys\nsys.exit(3)\n", "cannot be imported: SystemExit: 3"),
        ("json.py", "", "json is another module: rename the file"),
        ("missing/json.py", "", "No such file or directory: '.*/missing'"),
    ],
)
def test_a_file_that_is_no_module_of_its_own_is_an_error(
    file: str, source: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / Path(file).name).write_text(source)
    with pytest.raises(SettingsError, match=message):
        load_suite(str(tmp_path / file))


@pytest.mark.parametrize(
    ("suite", "arguments", "message"),
    [
        (":broken", [], "the suite raised ZeroDivisionError: mine"),
        ("", ["--gpus", "all", "--ray", "local"], "give one of them"),
        ("", ["--gpus", "²"], "--gpus ²: this machine has"),
        ("", ["--store", "memory://"], "would be lost"),
        ("", ["--tune-loss", "nan"], "--tune-loss nan: give a share, such as 0.01"),
        ("", ["--worth", "soon"], "--worth 'soon': write 90s, 20m or 2h"),
    ],
)
def test_a_sweep_that_cannot_be_made_is_refused_in_a_line(
    sweeps: Sweeps, suite: str, arguments: list[str], message: str
) -> None:
    out = sweeps.run(*arguments, code=2, suite=suite)
    assert message in out
    assert "Traceback" not in out


def test_a_suite_imports_what_lies_beside_it(sweeps: Sweeps) -> None:
    (sweeps.folder / "beside.py").write_text("CASES = '3'\n")
    sweeps.suite.write_text(
        sweeps.suite.read_text() + "from beside import CASES\nthree = lambda: suite(CASES)\n"
    )
    assert "3 not tuned" in sweeps.run("--dry-run", suite=":three")


def test_a_sweep_without_a_gpu_is_refused_at_once(tmp_path: Path) -> None:
    """No case is tried, each of which would fail for this one reason."""
    command = ("sweep", "dejavu_cache.attention", "--dry-run", "--store", tmp_path)
    done = dejavu(*command, TRITON_INTERPRET="0", CUDA_VISIBLE_DEVICES="", DEJAVU_CACHE_SHIPPED="0")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "no GPU" in done.stderr
    assert len(done.stderr.splitlines()) <= 2


class AwayStore(FileStore):
    """A folder that gives and takes nothing."""

    def get(self, *_: Any, **__: Any) -> Any:
        """Raise what a server that is away raises."""
        raise StoreError("it is away")

    put = get


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """Return the folder of a journal with two records that a killed sweep left."""
    journal = Journal(AwayStore(tmp_path / "store"), tmp_path / "journal")
    journal.put(context(), [record(1)])
    with journal.lease(context(), record(2).scenario, wait=0.0):
        journal.put(context(), [record(2)])
    return tmp_path / "journal"


def sizes(store: Store) -> list[object]:
    return [entry.scenario.args["M"] for entry in store.records(context())]


def test_what_the_store_does_not_take_stays_and_is_read(left: Path, tmp_path: Path) -> None:
    journal = Journal(AwayStore(tmp_path / "store"), left)
    assert not journal.hand_over()
    found = journal.get(context(), record(1).scenario)
    assert found is not None
    assert found.record == record(1)


def test_what_another_sweep_measures_is_its_own(left: Path, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    with FileStore(left).lease(context(), record(1).scenario, wait=0.0):
        assert Journal(store, left).hand_over()
        assert (sizes(store), sizes(FileStore(left))) == ([2], [1])
    assert Journal(store, left).hand_over()
    assert (sizes(store), sizes(FileStore(left))) == ([1, 2], [])


def test_a_journal_that_cannot_be_handed_over_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "store").touch()
    store = FileStore(tmp_path / "store")
    journal = Journal(store)
    journal.put(context(), [record(1)])
    assert hand_over_what_is_left(store.url) == [str(journal.local.root)]
    (tmp_path / "store").unlink()
    assert hand_over_what_is_left(store.url) == []
    assert sizes(store) == [1]


def test_without_a_journal_measurements_go_to_the_store_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = FileStore(tmp_path / "store")
    Journal(store, tmp_path / "file" / "journal").put(context(), [record(1)])
    assert sizes(store) == [1]


@pytest.mark.parametrize(
    ("only_worthwhile", "order"), [(False, ["long", "short", "dear"]), (True, ["short", "long"])]
)
def test_tunes_are_ordered_by_what_they_save(only_worthwhile: bool, order: list[str]) -> None:
    seconds, measured = {"dear": (2, 3), "long": (90, 60), "short": (60, 5)}, list[str]()
    seconds["known"] = 1, 3
    worth = partial(Worth, launches=1, runs=config())
    tunes = {case: worth(saves=saves, takes=takes) for case, (saves, takes) in seconds.items()}

    def run(job: CaseJob) -> CaseOutcome:
        if job.do == "measure":
            measured.append(job.case)
            return CaseOutcome(case=job.case, status="tuned")
        status = "known" if job.case == "known" else "due"
        return CaseOutcome(case=job.case, key=job.case, status=status, worth=tunes[job.case])

    host: Any = SimpleNamespace(start=lambda: [*tunes], run=run, close=list, unsaved_journals=list)
    report = Sweep([host], only_worthwhile=only_worthwhile).run()
    assert measured == order
    assert [outcome.case for outcome in report.of("unworthy")] == ["dear"] * only_worthwhile
