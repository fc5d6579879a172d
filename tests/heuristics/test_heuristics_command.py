"""`dejavu-cache heuristics`, as a user runs it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from support import synthetic_matmul
from support.command_line import CommandResult, run_cli

from dejavu_cache.model.decision_tree import Tree
from dejavu_cache.stores import FileStore


def heuristics(verb: str, store: FileStore | None, *arguments: object) -> CommandResult:
    """Run the command, on a store's folder if one is given."""
    return run_cli("heuristics", verb, *arguments, *(("--store", store.root) if store else ()))


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


@pytest.fixture(scope="module")
def trees(store: FileStore, tmp_path_factory: pytest.TempPathFactory) -> FileStore:
    """Return a store with the tree of one GPU; do not write to it."""
    copy = FileStore(tmp_path_factory.mktemp("trees"))
    for record_set in store.record_sets():
        copy.put(record_set.context, record_set.records)
    out = heuristics("fit", copy, "matmul", "--device", "h200")
    assert out.returncode == 0, out.stderr
    return copy


def fit_matmul(store: FileStore, *options: str) -> dict[str, Any]:
    """Return the fit of one GPU as JSON, without writing the tree."""
    out = heuristics("fit", store, "matmul", "--device", "H200", "--dry-run", "--json", *options)
    (row,) = json.loads(out.stdout)
    return row  # type: ignore[no-any-return]


def test_fit_prints_the_regret_and_what_one_config_would_cost(store: FileStore) -> None:
    out = heuristics("fit", store, "matmul", "--device", "H200", "--dry-run")
    assert out.returncode == 0
    head, subset, tree, single, file = out.stdout.splitlines()
    assert head == "pkg.kernels.matmul on NVIDIA H200, Triton 3.6.0, events-cold"
    assert "within 5.0% of the best of all in each of 36 scenarios" in subset
    assert "over the best on average" in tree
    assert "held out in 36 folds" in tree
    assert "one config for all" in single
    assert file == "  not written"
    assert list(store.trees()) == []


def test_the_json_has_the_same_numbers_and_a_tighter_bound_takes_more_configs(
    store: FileStore,
) -> None:
    row = fit_matmul(store)
    assert row["regret"]["mean"] < 0.05 < row["one_config"]["mean"]
    assert row["configs"] <= 12
    assert row["configs"] < fit_matmul(store, "--bound", "1")["configs"]


def test_only_the_code_that_was_tuned_last_is_fitted(tmp_path: Path) -> None:
    copy = FileStore(tmp_path)
    for source, later in (("a" * 32, 0), ("b" * 32, 1)):
        some = synthetic_matmul.scenarios()[:30]
        record_set = synthetic_matmul.sweep(some, source=source, later=later)
        copy.put(record_set.context, record_set.records)
    heuristics("fit", copy, "matmul")
    assert [stored.tree.context.kernel.source for stored in copy.trees()] == ["b" * 32]


def test_show_lists_trees_and_draws_one(store: FileStore, trees: FileStore) -> None:
    header, row = heuristics("show", trees).stdout.splitlines()
    assert header.split("\t")[:3] == ["kernel", "device", "triton"]
    assert row.split("\t")[:4] == ["pkg.kernels.matmul", "NVIDIA H200", "3.6.0", "36"]
    drawn = heuristics("show", trees, "matmul").stdout
    assert "      if M * N <= " in drawn
    assert "'BLOCK_M': 128" in drawn
    assert heuristics("show", store).returncode == 1


def test_the_exported_json_the_file_and_a_link_to_it_are_one_tree(
    trees: FileStore, tmp_path: Path
) -> None:
    (path,) = trees.root.rglob("*.tree.json")
    (tmp_path / "link.json").symlink_to(path)
    for store, word in ((trees, "matmul"), (None, path), (None, tmp_path / "link.json")):
        exported = heuristics("show", store, word, "--as", "json").stdout
        assert Tree.parse(exported, "the export").text == exported == path.read_text()


def test_an_export_must_name_one_tree(trees: FileStore, tmp_path: Path) -> None:
    (stored,) = trees.trees()
    folder = FileStore(tmp_path / "trees")
    text = stored.tree.text
    for version in ("3.6.0", "3.9.0"):
        other = text.replace('"triton": "3.6.0"', f'"triton": "{version}"')
        folder.put_tree(Tree.parse(other, "another"))
    words = ("matmul", "--as", "python")
    out = heuristics("show", folder, *words)
    assert (out.returncode, "2 trees fit" in out.stderr) == (2, True)
    assert heuristics("show", folder, *words, "--triton", "3.9.0").returncode == 0


def test_what_cannot_be_done_is_refused_in_a_line(store: FileStore, tmp_path: Path) -> None:
    binary, sparse = tmp_path / "binary.json", tmp_path / "sparse.json"
    binary.write_bytes(b"\xff\xfe{}")
    sparse.touch()
    os.truncate(sparse, 1 << 40)
    (tmp_path / "empty").mkdir()
    empty = FileStore(tmp_path / "empty")
    few = "NVIDIA L4, and a tree needs 10: tune 6 more"
    for out, code, said in (
        (heuristics("fit", store, "matmul", "--device", "L4"), 1, few),
        (heuristics("fit", store, "nobody"), 1, "has no kernel 'nobody'"),
        (heuristics("show", empty, "nobody", "--as", "python"), 1, "has no decision trees"),
        (heuristics("fit", store, "--bound", "inf"), 2, "bound"),
        (heuristics("fit", store, "--bound", "nan"), 2, "bound"),
        (heuristics("show", None, binary), 3, "can't decode"),
        (heuristics("show", None, sparse), 3, "too large"),
    ):
        assert (out.returncode, out.stderr.count("\n"), said in out.stderr) == (code, 1, True), out


def test_doctor_names_a_tree_that_cannot_be_read(trees: FileStore, tmp_path: Path) -> None:
    shutil.copytree(trees.root, tmp_path / "store")
    assert run_cli("doctor", "--store", tmp_path / "store").returncode == 0
    (file,) = (tmp_path / "store").rglob("*.tree.json")
    file.write_text(file.read_text()[:300])
    out = run_cli("doctor", "--store", tmp_path / "store")
    assert out.returncode == 1
    assert f"wrong {file}: passed over" in out.stdout


def test_without_scikit_learn_the_extra_is_named(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    out = heuristics("fit", store, "matmul")
    assert (out.returncode, "pip install 'dejavu-cache[sweep]'" in out.stderr) == (2, True)
