"""`show --misses` on a terminal: a table for each context, most wanted first."""

from __future__ import annotations

from contextlib import redirect_stderr, redirect_stdout

import pytest
from dejavu_client.cli.tables import select_misses, show_misses
from dejavu_client.http.protocol_client import MissedLaunch
from support.command_line import Terminal, without_colours
from support.records import context

from dejavu_cache.model.scenario import Context, Scenario


def miss(m: int, count: int, missed: Context) -> MissedLaunch:
    scenario = Scenario(args={"M": m, "N": 64}, dtypes={"x_ptr": "float16"})
    last_seen = f"2026-01-{m % 28 + 1:02}T00:00:00+00:00"
    return MissedLaunch(context=missed, scenario=scenario, count=count, last_seen=last_seen)


@pytest.fixture
def misses() -> list[MissedLaunch]:
    h200, b200 = context(), context(device="NVIDIA B200", kernel="a.very.long.module." * 4 + "k")
    return [miss(16, 900, h200), miss(128, 50, b200), miss(4, 7, h200), miss(64, 1, b200)]


def test_arguments_are_columns_and_constants_stand_above(
    misses: list[MissedLaunch], monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize(
    ("where", "device", "counts"),
    [
        ("M>0", "", [900, 50, 7, 1]),
        ("M>=64", "", [50, 1]),
        ("M>0", "b200", [50, 1]),
        ("M>9999", "", []),
    ],
)
def test_misses_are_selected(
    misses: list[MissedLaunch], where: str, device: str, counts: list[int]
) -> None:
    chosen = select_misses(misses, [where], device, "")
    assert [miss.count for miss in chosen] == counts
