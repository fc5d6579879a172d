"""`ls`, `show` and `diff` over real folders."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from support.command_line import run_cli
from support.processes import dejavu
from support.records import MOMENT, context, measurement, record

from dejavu_cache.stores import FileStore


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


def test_diff_tells_what_the_others_winner_costs(store: FileStore, tmp_path: Path) -> None:
    assert run_cli("diff", store.root, store.root).returncode == 0
    other = FileStore(tmp_path / "other")
    faster = measurement(64, 0.5, MOMENT + timedelta(days=1))
    other.put(context(), [record(16, measurement(32, 1.0), faster)])
    out = run_cli("diff", store.root, other.root, "--json")
    assert out.returncode == 1
    assert [(row["what"], row["cost"]) for row in json.loads(out.stdout)] == [
        ("winner", 2.0),
        ("only in A", None),
    ]


def test_diff_compares_gpus_and_tritons_by_their_winners(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    slow, fast = measurement(32, 1.0), measurement(64, 2.0)
    store.put(context(), [record(16, slow, fast), record(32, slow, fast), record(64)], now=True)
    b200 = context(device="NVIDIA B200", triton="3.7.0")
    faster = measurement(64, 0.5)
    store.put(b200, [record(16, slow, faster), record(32, measurement(32, 0.1))], now=True)
    for options in (
        ("--device", "H200", "--device", "B200"),
        ("--triton", "3.6.0", "--triton", "3.7.0"),
    ):
        out = run_cli("diff", tmp_path, *options, "--json")
        rows = json.loads(out.stdout)
        assert out.returncode == 1
        assert [(row["what"], row["cost"]) for row in rows] == [
            ("winner", 2.0),
            ("only in A", None),
        ]
        assert rows[0]["device"] == "NVIDIA H200, Triton 3.6.0 | NVIDIA B200, Triton 3.7.0"
    assert run_cli("diff", tmp_path, "--device", "H200", "--device", "L4").returncode == 1
    assert run_cli("diff", tmp_path, "--device", "H200").returncode == 2
    assert run_cli("diff", tmp_path).returncode == 2


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
