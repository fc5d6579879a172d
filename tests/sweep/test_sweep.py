"""A sweep measures what is missing, once, and says what became of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import environment
from support.sweeping import Sweeps

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.record import Pin
from dejavu_cache.model.scenario import now
from dejavu_cache.stores import FileStore
from dejavu_cache.sweep.runner import shard_of


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


def test_the_second_sweep_measures_nothing(swept: Sweeps) -> None:
    assert "0 cases tuned, 0 configs measured" in swept.run("--option", "cases=2")
    assert len(swept.measurements_taken) == 8


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--verify", "3"), ("--shard", "2/2")])
def test_a_sweep_of_nothing_ends_with_the_reason(sweeps: Sweeps, options: tuple[str, ...]) -> None:
    printed = sweeps.run(*options, suite=":empty")
    assert printed == "nothing to tune: these sizes need no tuning\n"


def test_the_reason_is_part_of_a_report_in_json(sweeps: Sweeps) -> None:
    assert sweeps.json("--dry-run")["why_empty"] is None
    assert sweeps.json(suite=":empty")["why_empty"] == "these sizes need no tuning"


def test_a_larger_suite_measures_what_is_new(swept: Sweeps) -> None:
    assert "6 cases tuned, 24 configs measured" in swept.run()
    assert swept.recorded_times == swept.whole()
    assert len(set(swept.measurements_taken)) == len(swept.measurements_taken) == 32


def test_a_dry_run_says_how_much_and_how_long_and_measures_nothing(sweeps: Sweeps) -> None:
    sweeps.run("--option", "cases=2", BENCH_SECONDS="0.2")
    assert "24 configs of 6 cases to measure" in sweeps.run("--dry-run")
    plan = sweeps.json("--dry-run")
    due = [outcome for outcome in plan["outcomes"] if outcome["status"] == "due"]
    assert sum(outcome["due"] for outcome in due) == 24
    (found,) = FileStore(sweeps.store).record_sets()
    measured = [item.seconds for record in found.records for item in record.measurements]
    assert len(measured) == 8
    assert min(measured) >= 0.2
    assert sum(outcome["estimate"] for outcome in due) == pytest.approx(24 * sum(measured) / 8)
    assert len(sweeps.measurements_taken) == 8


def test_shards_are_disjoint_and_make_up_the_whole(sweeps: Sweeps) -> None:
    names = [f"case {n}" for n in range(10)]
    parts = [shard_of(names, f"{n}/3") for n in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == sorted(names)
    for wrong in ("0/3", "4/3", "1", "a/b", "1/0"):
        with pytest.raises(SettingsError, match="--shard"):
            shard_of(names, wrong)
    for n in (1, 2):
        sweeps.run("--shard", f"{n}/2")
    assert len(sweeps.measurements_taken) == 32
    assert sweeps.recorded_times == sweeps.whole()


def test_a_budget_ends_a_sweep_and_the_next_one_goes_on(sweeps: Sweeps) -> None:
    out = sweeps.run("--budget", "2s", code=1, BENCH_SECONDS="0.5")
    assert "the budget is used up" in out
    assert "what was measured is kept" in out
    some = len(sweeps.measurements_taken)
    assert 0 < some <= 6
    sweeps.run()
    assert len(sweeps.measurements_taken) == 32
    assert sweeps.recorded_times == sweeps.whole()


def test_verifying_measures_winners_again_and_records_nothing(swept: Sweeps) -> None:
    before = swept.recorded_times
    checked = swept.json("--verify", "3")["outcomes"]
    assert [(outcome["status"], outcome["recorded"], outcome["again"]) for outcome in checked] == [
        ("verified", 16.0, 16.0)
    ] * 2
    assert len(swept.measurements_taken) == 8 + 2
    assert swept.recorded_times == before


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


def test_nothing_can_be_verified_before_it_is_tuned(sweeps: Sweeps) -> None:
    assert "nothing of this suite is tuned yet" in sweeps.run("--verify", "3", code=2)


def test_drift_is_reported(swept: Sweeps) -> None:
    (path,) = swept.store.rglob("*.json")
    path.write_text(path.read_text().replace('"median": 16.0', '"median": 8.0'))
    assert "+100.0%" in swept.run("--verify", "1", code=1)


def test_bad_cases_cost_themselves_and_nothing_else(sweeps: Sweeps) -> None:
    out = sweeps.run("--option", "cases=2", "--option", "bad=raises full plain made", code=1)
    assert "raises: failed: ZeroDivisionError: mine" in out
    assert "full: no memory for it" in out
    refusal = "case plain: its kernel is not decorated with @cached_autotune"
    assert f"plain: failed: SettingsError: {refusal}" in out
    refusal = "case made: arguments is not a function that returns a dict of them by name"
    assert f"made: failed: SettingsError: {refusal}" in out
    assert sweeps.recorded_times == sweeps.whole(2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"suite": ":nothing"}, "has no suite 'nothing'"),
        ({"suite": ":broken"}, "the suite raised: ZeroDivisionError: mine"),
        ({"suite": ":leaves"}, "the suite raised: SystemExit: 3"),
        ({"suite": ":strange"}, "the suite gave 'n=101', which is no Case"),
        ({"suite": ":forgetful"}, "the suite gave 'None', which is no list of Cases"),
        ({"suite": ":numbered"}, "the suite has a case of the name 5, which is no text"),
        ({"suite": ":named_by_bytes"}, r"the suite has a case of the name 'n\udcff'"),
    ],
)
def test_a_suite_that_cannot_be_used_is_said_in_a_line(
    sweeps: Sweeps, arguments: dict[str, str], message: str
) -> None:
    out = sweeps.run(code=2, **arguments)
    assert message in out
    assert "Traceback" not in out


def test_a_module_that_exits_is_said_in_a_line(sweeps: Sweeps) -> None:
    sweeps.suite.write_text("import sys\nsys.exit(3)\n")
    out = sweeps.run(code=2)
    assert "cannot be imported: SystemExit: 3" in out
    assert "Traceback" not in out


def test_a_case_that_reads_standard_input_finds_it_empty(sweeps: Sweeps) -> None:
    out = sweeps.run("--option", "cases=2", "--option", "bad=asks", code=1)
    assert "asks: failed: EOFError" in out
    assert sweeps.recorded_times == sweeps.whole(2)


def test_a_dry_run_knows_a_budget_of_configs(sweeps: Sweeps) -> None:
    assert "2 configs of 1 case to measure" in sweeps.run("--dry-run", suite=":budgeted")
    assert "2 configs measured" in sweeps.run(suite=":budgeted")


@pytest.mark.parametrize("name", ["json", "torch", "types", "colorsys", "numpy"])
def test_a_suite_with_the_name_of_a_library_takes_nobodys_place(name: str, sweeps: Sweeps) -> None:
    """The suite lies in the folder that the command and its workers, not forked here, work in."""
    folder = sweeps.folder / "suites"
    folder.mkdir()
    suite = sweeps.suite.rename(folder / f"{name}.py")
    with suite.open("a") as file:
        file.write(f"\nimport {name} as library\nassert library.__file__ != __file__\n")
    command = sweeps.folder / "command.py"
    command.write_text("from dejavu_client.__main__ import main\nmain()\n")
    ended = subprocess.run(
        [
            sys.executable, command,
            "sweep", suite.name, "--option", "cases=1", "--store", sweeps.store,
        ],
        env=sweeps.environment(), cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended
    (context,) = FileStore(sweeps.store).contexts()
    assert context.kernel.name == f"{name}_suite.add_one"


def test_a_suite_imports_what_lies_beside_it(sweeps: Sweeps) -> None:
    (sweeps.folder / "beside.py").write_text("CASES = '3'\n")
    sweeps.suite.write_text(
        sweeps.suite.read_text() + "from beside import CASES\nthree = lambda: suite(CASES)\n"
    )
    assert "12 configs of 3 cases to measure" in sweeps.run("--dry-run", suite=":three")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shard", "²/³"], "--shard '²/³': write i/n"),
        (["--verify", "-3"], "Invalid value for '--verify'"),
        (["--verify", "2", "--dry-run"], "--verify and --dry-run: give one of them"),
        (["--gpus", "all", "--ray", "local"], "--gpus and --ray: give one of them"),
        (["--option", "case=5"], "the suite has no option 'case'; its options: cases,"),
        (["--gpus", "²"], "--gpus ²: this machine has"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(
    sweeps: Sweeps, arguments: list[str], message: str
) -> None:
    out = sweeps.run(*arguments, code=2)
    assert message in out
    assert "Traceback" not in out


def test_a_case_that_only_its_author_can_mend_is_not_to_be_tried_again(sweeps: Sweeps) -> None:
    out = sweeps.run("--option", "cases=0", "--option", "bad=plain", code=1)
    assert "plain: failed" in out
    assert "run the same command again" not in out


def test_a_dry_run_of_a_case_that_fails_does_not_say_that_it_is_tuned(sweeps: Sweeps) -> None:
    out = sweeps.run("--dry-run", "--option", "cases=0", "--option", "bad=plain", code=1)
    assert "plain: failed" in out
    assert "nothing to measure" not in out
    assert out.endswith("cases of which it is not known what is left to measure: 1\n")


@pytest.mark.parametrize("option", ["--dry-run", "--verify=1", "--shard=1/1"])
def test_a_sweep_without_a_gpu_is_refused_at_once(tmp_path: Path, option: str) -> None:
    """No case is tried, each of which would fail for this one reason."""
    command = [sys.executable, "-m", "dejavu_client", "sweep", "dejavu_cache.attention", option]
    env = environment(TRITON_INTERPRET="0", CUDA_VISIBLE_DEVICES="", DEJAVU_CACHE_SHIPPED="0")
    done = subprocess.run(
        [*command, "--store", str(tmp_path)],
        env=env, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert "no GPU" in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_a_sweep_into_memory_is_refused(sweeps: Sweeps) -> None:
    assert "would be lost" in sweeps.run("--store", "memory://", code=2)
