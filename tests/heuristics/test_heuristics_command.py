"""`dejavu-cache heuristics`, as a user runs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support import synthetic_matmul
from support.command_line import run_cli

from dejavu_cache.stores import FileStore


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FileStore:
    """Return a store with a kernel tuned well on one GPU, hardly on another; do not write to it."""
    store = FileStore(tmp_path_factory.mktemp("store"))
    for record_set in (
        synthetic_matmul.sweep(synthetic_matmul.scenarios((16, 256, 4096))),
        synthetic_matmul.sweep(synthetic_matmul.scenarios()[:4], device="NVIDIA L4"),
    ):
        store.put(record_set.context, record_set.records)
    return store


def test_it_prints_the_regret_and_what_one_config_would_cost(store: FileStore) -> None:
    out = run_cli("heuristics", "matmul", "--device", "H200", "--store", store.root)
    assert out.returncode == 0
    head, tree, scenarios, single = out.stdout.splitlines()
    assert head == "pkg.kernels.matmul on NVIDIA H200, Triton 3.6.0, events-cold"
    assert "over the best on average" in tree
    assert scenarios == "  in 36 scenarios, held out in 36 folds"
    assert "one config for all" in single


def test_the_tree_is_printed_for_programs_and_must_be_one(tmp_path: Path) -> None:
    """Of a kernel's versions, only the one that was tuned last counts."""
    store = FileStore(tmp_path)
    for triton, source, later in (("3.6.0", "a", 0), ("3.6.0", "b", 1), ("3.9.0", "a", 0)):
        record_set = synthetic_matmul.sweep(
            synthetic_matmul.scenarios()[:10], source=source * 32, later=later, triton=triton
        )
        store.put(record_set.context, record_set.records)
    words = ("heuristics", "matmul", "--store", tmp_path, "--as")
    out = run_cli(*words, "python")
    assert (out.returncode, out.stdout, "2 trees: name one" in out.stderr) == (2, "", True)
    printed = json.loads(run_cli(*words, "json", "--triton", "3.6.0").stdout)
    assert printed["context"]["kernel"]["source"] == "b" * 32
    assert "def choose(" in run_cli(*words, "python", "--triton", "3.6.0").stdout


def test_what_cannot_be_done_is_refused_in_a_line(store: FileStore) -> None:
    few = "NVIDIA L4, and a tree needs 10: tune 6 more"
    for words, code, said in (
        (("matmul", "--device", "L4"), 1, few),
        (("nobody",), 1, "has no kernel 'nobody'"),
        (("matmul", "--as", "c"), 2, "choose python or json"),
    ):
        out = run_cli("heuristics", *words, "--store", store.root)
        assert (out.returncode, out.stderr.count("\n"), said in out.stderr) == (code, 1, True), out


def test_without_numpy_the_extra_is_named(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("dejavu_client.heuristics")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numpy", None)
    out = run_cli("heuristics", "matmul", "--store", store.root)
    assert (out.returncode, "pip install 'dejavu-cache[sweep]'" in out.stderr) == (2, True)
