"""`show` on a terminal: constants above the table, conditions, order, and a width that fits."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import dejavu_client.cli.conditions as conditions
import pytest
from support.processes import ROOT, dejavu, environment

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.scenario import Scenario

SHIPPED = ROOT / "dejavu_cache" / "attention" / "records"


def show_on_terminal(columns: int, *arguments: object) -> list[str]:
    """Return the lines that a command prints on a terminal of some width, without colours."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    command = [sys.executable, "-m", "dejavu_client", *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=writer, stdout=writer, stderr=writer, env=environment(TERM="xterm")
    ) as process:
        os.close(writer)
        printed = b""
        try:
            while part := os.read(reader, 65536):
                printed += part
        except OSError:  # the end of the output of a terminal
            pass
    os.close(reader)
    assert process.returncode == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", printed.decode()).splitlines()


@pytest.mark.parametrize("columns", [80, 120])
def test_the_largest_shipped_kernel_fits(columns: int) -> None:
    lines = show_on_terminal(columns, "show", "qblock_kernel", "--store", SHIPPED)
    assert len(lines) < 150
    assert max(map(len, lines)) <= columns
    assert len([line for line in lines if re.match(r" *\d+ +\d+ +\d+ +\d+", line)]) == 138


@pytest.mark.parametrize("kernel", ["segment_kernel", "static_grid_kernel", "hopper_kernel"])
def test_every_scenario_is_one_line(kernel: str) -> None:
    lines = show_on_terminal(80, "show", kernel, "--store", SHIPPED, "--where", "num_seqs>=8")
    first = next(
        number for number, line in enumerate(lines) if line.startswith(("seqs", "num_seqs"))
    )
    assert all(re.match(r" *\d+ +\d", line) for line in lines[first + 1 :])
    assert len(lines) > first + 2


def test_conditions_order_and_limit() -> None:
    out = dejavu(
        "show", "qblock_kernel", "--store", SHIPPED, "--sort=-ms", "--limit", "5",
        "--where", "num_seqs>=64", "--where", "avg_query==1", "--device", "h200",
    )  # fmt: skip
    table = out.stdout.partition("num_seqs\t")[2].splitlines()[1:]
    rows = [line.split("\t") for line in table]
    assert len(rows) == 5
    assert all(int(row[0]) >= 64 for row in rows)
    assert re.search(r"all scenarios: .*avg_query=1,", out.stdout)
    times = [float(row[-3]) for row in rows]
    assert times == sorted(times, reverse=True)
    assert "more scenarios" in out.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--where", "nonsense"), 2, "write NAME=VALUE"),
        (("--where", "nobody>1"), 2, "no such argument"),
        (("--where", "num_seqs>9999"), 1, "has no scenario"),
        (("--sort", "nobody"), 2, "no such column"),
        (("--device", "L4"), 1, "'L4'"),
    ],
)
def test_what_selects_nothing_is_an_error(arguments: tuple[str, ...], code: int, said: str) -> None:
    out = dejavu("show", "segment_kernel", "--store", SHIPPED, *arguments)
    assert (out.returncode, said in out.stderr) == (code, True), out.stderr


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
    ],
)
def test_a_condition_compares_numbers_as_numbers(text: str, expected: bool) -> None:
    scenario = Scenario(args={"M": 64, "flag": True}, dtypes={"x_ptr": "float16"})
    (condition,) = conditions.parse_conditions([text])
    assert condition.matches(scenario) is expected


def test_a_text_without_an_operator_is_no_condition() -> None:
    with pytest.raises(SettingsError, match="write NAME=VALUE"):
        conditions.parse_conditions(["M"])


def test_json_has_snake_case_names_and_nothing_else(tmp_path: Path) -> None:
    def names(value: object) -> set[str]:
        if isinstance(value, dict):
            return {*value, *(name for part in value.values() for name in names(part))}
        return (
            {name for part in value for name in names(part)} if isinstance(value, list) else set()
        )

    for command in (("ls",), ("heuristics", "show"), ("diff", SHIPPED), ("doctor",)):
        store = (tmp_path,) if command[0] == "diff" else ("--store", SHIPPED)
        out = dejavu(*command, *store, "--json")
        assert not [name for name in names(json.loads(out.stdout)) if " " in name or "-" in name]
