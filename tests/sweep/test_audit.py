"""`dejavu-cache audit` finds winners that are wrong, and they are not used any longer."""

from __future__ import annotations

import json
from pathlib import Path

from support.processes import ROOT, dejavu

SUITE = ROOT / "tests" / "programs" / "wrong_suite.py"


def failures_in(store: Path) -> list[str]:
    """Return the kinds of all failures that a store has recorded."""
    listing = dejavu("export", "--store", store)
    assert listing.returncode == 0, listing.stderr
    record_sets = [json.loads(line) for line in listing.stdout.splitlines()]
    return [
        measurement["failure"]["kind"]
        for record_set in record_sets
        for record in record_set["records"]
        for measurement in record["measurements"]
        if measurement.get("failure")
    ]


def test_a_sweep_leaves_wrong_configs_out(tmp_path: Path) -> None:
    swept = dejavu("sweep", SUITE, "--store", tmp_path)
    assert swept.returncode == 0, swept.stderr
    assert failures_in(tmp_path) == ["wrong", "wrong"]
    audited = dejavu("audit", SUITE, "--store", tmp_path)
    assert (audited.returncode, audited.stdout) == (
        0,
        "2 winners audited: 2 equal, 0 wrong, 0 not compared\n",
    )


def test_an_audit_of_nothing_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    audited = dejavu("audit", SUITE, "--store", tmp_path / "empty")
    assert (audited.returncode, audited.stdout) == (1, "")
    assert "has no winner for a case of" in audited.stderr


def test_winners_of_cases_that_a_sweep_leaves_out_are_audited_and_verified(tmp_path: Path) -> None:
    suite = f"{SUITE}:on_demand"
    assert dejavu("sweep", suite, "--option", "only=all", "--store", tmp_path).returncode == 0
    audited = dejavu("audit", suite, "--store", tmp_path)
    assert audited.stdout == "2 winners audited: 2 equal, 0 wrong, 0 not compared\n"
    verified = dejavu("verify", "--winners", "5", "--store", tmp_path, suite)
    assert verified.stdout.endswith("2 winners measured again: 2 hold, 0 set aside, 0 unchecked\n")


def test_winners_that_nobody_checked_are_found_recorded_and_replaced(tmp_path: Path) -> None:
    assert dejavu("sweep", SUITE, "--store", tmp_path, CHECK="0").returncode == 0
    assert failures_in(tmp_path) == []
    audited = dejavu("audit", SUITE, "--store", tmp_path, "--json")
    assert audited.returncode == 1
    told = json.loads(audited.stdout)
    assert told["wrong"] == 2
    assert "out_ptr differs in 1 of 1 elements" in told["winners"][0]["verdict"]["reason"]
    assert failures_in(tmp_path) == ["wrong", "wrong"]
    again = dejavu("audit", SUITE, "--store", tmp_path)
    assert again.stdout == "2 winners audited: 2 equal, 0 wrong, 0 not compared\n"
