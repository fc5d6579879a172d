"""`ls`, `show` and `diff` in a pipe, and on a terminal whose width they fit."""

import json
import re
import shutil
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from pathlib import Path

import pytest
from dejavu_client.cli import queries as conditions
from dejavu_client.cli.tables import select_misses, show_misses
from dejavu_client.http.protocol_client import MissedLaunch
from support.command_line import Terminal, run_cli, without_colours
from support.processes import ROOT, dejavu
from support.records import MOMENT, context, measurement, record

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.scenario import Context, Scenario
from dejavu_cache.stores import FileStore

SHIPPED = ROOT / "dejavu_cache" / "attention" / "records"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with one shipped kernel."""
    kernel = "dejavu_cache.attention.kernels.static_grid.static_grid_kernel"
    store = tmp_path_factory.mktemp("small")
    shutil.copytree(SHIPPED / kernel, store / kernel)
    return store


def show_on_terminal(columns: int, *arguments: object) -> list[str]:
    """Return the lines that a command prints on a terminal of some width, without colours."""
    out = run_cli(*arguments, columns=columns)
    assert out.returncode == 0, out.stderr
    return out.stdout.splitlines()


@pytest.mark.parametrize("columns", [80, 120])
def test_the_largest_shipped_kernel_fits(columns: int) -> None:
    of_h200 = "--device", "h200", "--store", SHIPPED
    lines = show_on_terminal(columns, "show", "qblock_kernel", *of_h200)
    assert len(lines) < 160
    assert max(map(len, lines)) <= columns
    assert len([line for line in lines if re.match(r" *\d+ +\d+ +\d+ +\d+", line)]) == 138


def test_ls_fits() -> None:
    for columns in (80, 120):
        lines = show_on_terminal(columns, "ls", "--store", SHIPPED)
        assert max(map(len, lines)) <= columns
        kernels = [line.split()[0].rpartition(".")[2] for line in lines if "_kernel" in line]
        assert (len(kernels), len({*kernels})) == (5, 4), "one is of two GPUs"


def test_ls_selects(small: Path) -> None:
    out = run_cli("ls", "*segmented.*", "--store", SHIPPED, "--json")
    assert sorted(row["scenarios"] for row in json.loads(out.stdout)) == [1, 93]
    (first,) = json.loads(run_cli("ls", "--store", small, "--json").stdout)
    assert first["tuning_seconds"] == 185.2
    assert "no records of Triton 1.0" in run_cli("ls", "--store", SHIPPED, "--triton", "1.0").stdout


def test_conditions_choose_scenarios_in_the_order_of_their_values() -> None:
    out = run_cli(
        "show", "qblock_kernel", "--store", SHIPPED,
        "--where", "num_seqs>=64", "--where", "avg_query==1", "--device", "h200",
    )  # fmt: skip
    table = out.stdout.partition("num_seqs\t")[2].splitlines()[1:]
    numbers = [int(line.split("\t")[0]) for line in table]
    assert numbers
    assert numbers == sorted(number for number in numbers if number >= 64)
    assert re.search(r"all scenarios: .*avg_query=1,", out.stdout)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("M>=64", True), ("M > 64", False), ("M=64.0", True), ("M!=64", False),
        ("x_ptr=float16", True), ("x_ptr>float", False), ("flag=True", True), ("flag>0", False),
        ("absent!=1", False), ("big=9007199254740993", True), ("big=9007199254740992", False),
    ],
)  # fmt: skip
def test_a_condition_compares_numbers_as_numbers(text: str, expected: bool) -> None:
    args = {"M": 64, "flag": True, "big": 2**53 + 1}
    scenario = Scenario(args=args, dtypes={"x_ptr": "float16"})
    (condition,) = conditions.parse_conditions([text], ())
    assert condition.matches(scenario) is expected


@pytest.mark.parametrize("text", ["M", "M>>64", "M=>64", "M==="])
def test_a_text_without_one_operator_is_no_condition(text: str) -> None:
    with pytest.raises(SettingsError, match="write NAME=VALUE"):
        conditions.parse_conditions([text], ())


def test_json_has_snake_case_names_and_nothing_else(tmp_path: Path, small: Path) -> None:
    def names(value: object) -> set[str]:
        if isinstance(value, dict):
            return {*value, *names([*value.values()])}
        return set().union(*map(names, value)) if isinstance(value, list) else set()

    for command in (("ls",), ("diff", small), ("doctor",)):
        store = (tmp_path,) if command[0] == "diff" else ("--store", small)
        out = run_cli(*command, *store, "--json")
        assert not [name for name in names(json.loads(out.stdout)) if " " in name or "-" in name]


def test_a_damaged_scenario_is_passed_over_by_conditions(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put(context(), [record(m, measurement(16)) for m in (1, 2)])
    path = store.path(context())
    path.write_text(path.read_text().replace('"args": {"M": 1', '"later": 1, "args": {"M": 1'))
    shown = run_cli("show", "add", "--store", store.url, "--where", "M<=2")
    assert shown.returncode == 0, shown.stderr
    assert "M=2" in shown.stdout


def test_ls_lists_kernels_in_columns_when_piped(store: FileStore) -> None:
    out = dejavu("ls", "--store", store.url)
    header, row = out.stdout.splitlines()
    assert header.split("\t")[0] == "kernel"
    assert row.split("\t")[0:7:2] == ["pkg.kernels.add", "NVIDIA H200", "events-cold", "3"]
    assert "\x1b" not in out.stdout


def test_show_names_winner_runner_up_and_failures(store: FileStore) -> None:
    out = run_cli("show", "add", "--store", store.root).stdout
    *_, header, first, second = (line.split("\t") for line in out.splitlines())
    assert header == ["M", "BLOCK", "ms", "slower", "failed", "unfinished", "runner-up"]
    assert first == ["16", "32", "1", "2.00x", "1", "yes", "BLOCK=64"]
    assert second == ["32", "64", "1", "-", "-", "yes", "-"]
    assert "all scenarios: N=64, x_ptr=float16" in out
    assert "all winners: num_warps=4" in out


COSTS = [("winner", 2.0), ("only in A", None)]


def test_diff_tells_what_the_others_winner_costs(store: FileStore, tmp_path: Path) -> None:
    assert run_cli("diff", store.root, store.root).returncode == 0
    assert run_cli("diff", store.root, store.root, "--kernel", "sun").returncode == 1
    other = FileStore(tmp_path / "other")
    faster = measurement(64, 0.5, MOMENT + timedelta(days=1))
    other.put(context(), [record(16, measurement(32, 1.0), faster)])
    out = run_cli("diff", store.root, other.root, "--json")
    assert out.returncode == 1
    assert [(row["what"], row["cost"]) for row in json.loads(out.stdout)] == COSTS


def test_diff_compares_gpus_and_tritons_by_their_winners(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    slow, fast = measurement(32, 1.0), measurement(64, 2.0)
    store.put(context(), [record(16, slow, fast), record(32, slow, fast), record(64)], now=True)
    b200 = context(device="NVIDIA B200", triton="3.7.0")
    faster = measurement(64, 0.5)
    store.put(b200, [record(16, slow, faster), record(32, measurement(32, 0.1))], now=True)
    for options in ("--device H200 --device B200", "--triton 3.6.0 --triton 3.7.0"):
        out = run_cli("diff", tmp_path, *options.split(), "--json")
        rows = json.loads(out.stdout)
        assert out.returncode == 1
        assert [(row["what"], row["cost"]) for row in rows] == COSTS
        assert rows[0]["device"] == "NVIDIA H200, Triton 3.6.0 | NVIDIA B200, Triton 3.7.0"
    assert run_cli("diff", tmp_path, "--device", "H200", "--device", "L4").returncode == 1
    assert run_cli("diff", tmp_path, "--device", "H200").returncode == 2
    assert run_cli("export", "--device", "L4", "--store", tmp_path).returncode == 1


@pytest.mark.parametrize("kind", ["dumb", "xterm"])
def test_a_narrow_terminal_tells_the_kernels_of_a_difference_apart(
    kind: str, tmp_path: Path
) -> None:
    """Dumb terminals have a width, too."""
    left, right = FileStore(tmp_path / "left"), FileStore(tmp_path / "right")
    left.put(context(kernel="pkg.kernels.add"), [record(1)])
    right.put(context(kernel="pkg.kernels.sum"), [record(1)])
    seen = run_cli("diff", left.root, right.root, columns=44, TERM=kind)
    assert max(map(len, seen.stdout.splitlines())) <= 44, seen.stdout
    assert ("add" in seen.stdout, "sum" in seen.stdout) == (True, True), seen.stdout


def miss(m: int, count: int, missed: Context) -> MissedLaunch:
    scenario = Scenario(args={"M": m, "N": 64}, dtypes={"x_ptr": "float16"})
    last_seen = f"2026-01-{m % 28 + 1:02}T00:00:00+00:00"
    return MissedLaunch(context=missed, scenario=scenario, count=count, last_seen=last_seen)


def test_arguments_are_columns_and_constants_stand_above(monkeypatch: pytest.MonkeyPatch) -> None:
    h200, b200 = context(), context(device="NVIDIA B200", kernel="a.very.long.module." * 4 + "k")
    misses = [miss(16, 900, h200), miss(128, 50, b200), miss(4, 7, h200), miss(64, 1, b200)]
    monkeypatch.setenv("COLUMNS", "80")
    with redirect_stdout(Terminal()) as out, redirect_stderr(out):
        show_misses(select_misses(misses, (), "", ""))
    lines = without_colours(out.getvalue()).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines.count("  all scenarios: N=64, x_ptr=float16") == 2
    rows = [line.split() for line in lines if line.strip()[:1].isdigit()]
    assert [(row[0], row[-1]) for row in rows] == [
        ("900", "16"), ("7", "4"), ("50", "128"), ("1", "64"),
    ]  # fmt: skip
    assert [miss.count for miss in select_misses(misses, ["M>=16"], "b200", "")] == [50, 1]
