"""`show` on a terminal: constants above the table, conditions, order, and a width that fits."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from dejavu_client.cli import queries as conditions
from support.command_line import run_cli
from support.processes import ROOT
from support.records import context, measurement, record

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.scenario import Scenario
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
    lines = show_on_terminal(columns, "show", "qblock_kernel", "--store", SHIPPED)
    assert len(lines) < 160
    assert max(map(len, lines)) <= columns
    assert len([line for line in lines if re.match(r" *\d+ +\d+ +\d+ +\d+", line)]) == 138


def test_ls_fits() -> None:
    for columns in (80, 120):
        lines = show_on_terminal(columns, "ls", "--store", SHIPPED)
        assert max(map(len, lines)) <= columns
        kernels = [line.split()[0] for line in lines if "_kernel" in line]
        assert len(kernels) == 4
        assert len({name.rpartition(".")[2] for name in kernels}) == len(kernels)


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
        ("M>=64", True),
        ("M > 64", False),
        ("M=64.0", True),
        ("M!=64", False),
        ("x_ptr=float16", True),
        ("x_ptr>float", False),
        ("flag=True", True),
        ("flag>0", False),
        ("absent!=1", False),
        ("big=9007199254740993", True),
        ("big=9007199254740992", False),
    ],
)
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
            return {*value, *(name for part in value.values() for name in names(part))}
        return (
            {name for part in value for name in names(part)} if isinstance(value, list) else set()
        )

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
