"""`show --misses` on a terminal: a table for each context, most wanted first."""

from __future__ import annotations

from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import pytest
from dejavu_client.cli.queries import parse_conditions
from dejavu_client.cli.tables import MissedLaunch, parse_misses, select_misses, show_misses
from support.command_line import Terminal, without_colours
from support.records import context

from dejavu_cache.model.scenario import Context, Scenario


def miss(m: int, count: int, missed: Context) -> dict[str, Any]:
    scenario = Scenario(args={"M": m, "N": 64}, dtypes={"x_ptr": "float16"})
    return {
        "context": missed.model_dump(mode="json"),
        "scenario": scenario.model_dump(mode="json"),
        "count": count,
        "first_seen": "2026-01-01T00:00:00+00:00",
        "last_seen": f"2026-01-{m % 28 + 1:02}T00:00:00+00:00",
    }


@pytest.fixture
def misses() -> list[MissedLaunch]:
    h200, b200 = context(), context(device="NVIDIA B200", kernel="a.very.long.module." * 4 + "k")
    return parse_misses(
        [miss(16, 900, h200), miss(128, 50, b200), miss(4, 7, h200), miss(64, 1, b200)]
    )


def terminal_lines(
    misses: list[MissedLaunch], limit: int, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    monkeypatch.setenv("COLUMNS", "80")
    with redirect_stdout(Terminal()) as out, redirect_stderr(out):
        show_misses(misses, limit)
    return without_colours(out.getvalue()).splitlines()


def test_arguments_are_columns_and_constants_stand_above(
    misses: list[MissedLaunch], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = terminal_lines(misses, 0, monkeypatch)
    assert max(map(len, lines)) <= 80
    assert lines.count("  all scenarios: N=64, x_ptr=float16") == 2
    rows = [line.split() for line in lines if line.strip()[:1].isdigit()]
    assert [(row[0], row[-1]) for row in rows] == [
        ("900", "16"),
        ("7", "4"),
        ("50", "128"),
        ("1", "64"),
    ]
    assert "3 more misses" in terminal_lines(misses, 1, monkeypatch)[-1]


def test_misses_are_selected_and_sorted(misses: list[MissedLaunch]) -> None:
    def counts(where: str = "M>0", device: str = "", sort: str = "") -> list[int]:
        selected = select_misses(misses, parse_conditions([where], ()), device, "", sort)
        return [miss.answer["count"] for miss in selected]

    assert counts() == [900, 50, 7, 1]
    assert counts("M>=64") == [50, 1]
    assert counts(device="b200") == [50, 1]
    assert counts(sort="M") == [7, 900, 1, 50]
    assert counts(sort="-last_seen") == [900, 50, 1, 7]
    assert counts("M>9999") == []
