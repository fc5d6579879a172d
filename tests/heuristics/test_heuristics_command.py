"""`dejavu-cache heuristics`, as a user runs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import synthetic_matmul
from support.fork_server import COMMAND, Nursery
from support.processes import ROOT, run_python

from dejavu_cache.model.decision_tree import Tree
from dejavu_cache.stores import FileStore

Dejavu = Callable[..., subprocess.CompletedProcess[str]]


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
def dejavu(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Dejavu:
    """Return a function that runs the command line."""
    folder = tmp_path_factory.mktemp("output")
    return lambda *arguments: nursery.start(COMMAND, *arguments, folder=folder).complete()


@pytest.fixture(scope="module")
def tree_folder(
    store: FileStore, dejavu: Dejavu, tmp_path_factory: pytest.TempPathFactory
) -> FileStore:
    """Return a store with the tree of one GPU; do not write to it."""
    copy = FileStore(tmp_path_factory.mktemp("trees"))
    for record_set in store.record_sets():
        copy.put(record_set.context, record_set.records)
    out = dejavu("heuristics", "fit", "matmul", "--store", copy.root, "--device", "h200")
    assert out.returncode == 0, out.stderr
    return copy


def test_fit_prints_the_regret_and_what_one_config_would_cost(
    store: FileStore, dejavu: Dejavu
) -> None:
    out = dejavu(
        "heuristics", "fit", "matmul", "--store", store.root, "--device", "H200", "--dry-run"
    )
    assert out.returncode == 0
    head, subset, tree, single, file = out.stdout.splitlines()
    assert head == "pkg.kernels.matmul on NVIDIA H200, Triton 3.6.0, events-cold"
    assert "within 5.0% of the best of all in each of 36 scenarios" in subset
    assert "over the best on average" in tree
    assert "held out in 36 folds" in tree
    assert "one config for all" in single
    assert file == "  not written"
    assert list(store.trees()) == []


def fit_matmul(store: FileStore, dejavu: Dejavu, *options: str) -> dict[str, Any]:
    """Return the fit of one GPU as JSON, without writing the tree."""
    fit = ("heuristics", "fit", "matmul", "--store", store.root, "--device", "H200", "--dry-run")
    (row,) = json.loads(dejavu(*fit, "--json", *options).stdout)
    return row  # type: ignore[no-any-return]


def test_the_json_has_the_same_numbers(store: FileStore, dejavu: Dejavu) -> None:
    row = fit_matmul(store, dejavu)
    assert row["regret"]["mean"] < 0.05 < row["one_config"]["mean"]
    assert row["configs"] <= 12


def test_a_tighter_bound_takes_more_configs(store: FileStore, dejavu: Dejavu) -> None:
    wide = fit_matmul(store, dejavu, "--bound", "1")
    assert wide["configs"] > fit_matmul(store, dejavu)["configs"]


def test_too_few_records_exit_1_and_say_how_many_are_needed(
    store: FileStore, dejavu: Dejavu
) -> None:
    out = dejavu("heuristics", "fit", "matmul", "--store", store.root, "--device", "L4")
    assert out.returncode == 1
    assert "NVIDIA L4, and a tree needs 10: tune 6 more" in out.stderr
    nothing = dejavu("heuristics", "fit", "nobody", "--store", store.root)
    assert (nothing.returncode, "has no kernel 'nobody'" in nothing.stderr) == (1, True)


def test_only_the_code_that_was_tuned_last_is_fitted(dejavu: Dejavu, tmp_path: Path) -> None:
    copy = FileStore(tmp_path)
    for record_set in (
        synthetic_matmul.sweep(synthetic_matmul.scenarios()[:30], source="a" * 32),
        synthetic_matmul.sweep(synthetic_matmul.scenarios()[:30], source="b" * 32, later=1),
    ):
        copy.put(record_set.context, record_set.records)
    dejavu("heuristics", "fit", "matmul", "--store", copy.root)
    assert [stored.tree.context.kernel.source for stored in copy.trees()] == ["b" * 32]


def test_show_lists_trees_and_draws_one(
    store: FileStore, tree_folder: FileStore, dejavu: Dejavu
) -> None:
    header, row = dejavu("heuristics", "show", "--store", tree_folder.root).stdout.splitlines()
    assert header.split("\t")[:3] == ["kernel", "device", "triton"]
    assert row.split("\t")[:4] == ["pkg.kernels.matmul", "NVIDIA H200", "3.6.0", "36"]
    drawn = dejavu("heuristics", "show", "matmul", "--store", tree_folder.root).stdout
    assert "      if M * N <= " in drawn
    assert "'BLOCK_M': 128" in drawn
    assert dejavu("heuristics", "show", "--store", store.root).returncode == 1


def test_the_exported_python_chooses_as_the_library_does(
    tree_folder: FileStore, dejavu: Dejavu, tmp_path: Path
) -> None:
    python = dejavu(
        "heuristics", "show", "matmul", "--as", "python", "--store", tree_folder.root
    ).stdout
    (stored,) = tree_folder.trees()
    scenario = synthetic_matmul.scenarios()[50]
    chosen = stored.tree.choose(scenario)
    assert chosen is not None
    code = f"{python}\nprint(choose(**{ {**scenario.args, **scenario.dtypes}!r}))"
    (tmp_path / "pasted.py").write_text(code)
    answer = run_python(
        "import runpy, sys; runpy.run_path(sys.argv[1])", str(tmp_path / "pasted.py")
    ).stdout
    assert answer.strip() == repr({**chosen.params, **chosen.options})
    assert max(map(len, python.splitlines())) <= 120


def test_the_exported_json_and_the_file_are_one_tree(
    tree_folder: FileStore, dejavu: Dejavu
) -> None:
    (path,) = tree_folder.root.rglob("*.tree.json")
    for source in (["matmul", "--store", tree_folder.root], [path]):
        exported = dejavu("heuristics", "show", *source, "--as", "json").stdout
        assert Tree.parse(exported, "the export").text == exported == path.read_text()


def test_an_export_must_name_one_tree(
    tree_folder: FileStore, dejavu: Dejavu, tmp_path: Path
) -> None:
    out = dejavu("heuristics", "show", "nobody", "--as", "python", "--store", tmp_path)
    assert (out.returncode, "has no decision trees" in out.stderr) == (1, True)
    (stored,) = tree_folder.trees()
    folder = FileStore(tmp_path / "trees")
    folder.put_tree(stored.tree)
    folder.put_tree(
        Tree.parse(stored.tree.text.replace('"triton": "3.6.0"', '"triton": "3.9.0"'), "another")
    )
    out = dejavu("heuristics", "show", "matmul", "--as", "python", "--store", folder.root)
    assert (out.returncode, "2 trees fit" in out.stderr) == (2, True)
    assert (
        dejavu(
            "heuristics",
            "show",
            "matmul",
            "--as",
            "python",
            "--store",
            folder.root,
            "--triton",
            "3.9.0",
        ).returncode
        == 0
    )


def test_a_bound_that_is_no_number_is_refused(store: FileStore, dejavu: Dejavu) -> None:
    for bound in ("inf", "nan", "1e999"):
        out = dejavu("heuristics", "fit", "matmul", "--store", store.root, "--bound", bound)
        assert (out.returncode, out.stderr.count("\n")) == (2, 1), out.stderr


def test_a_file_that_is_no_tree_is_refused_in_a_line(dejavu: Dejavu, tmp_path: Path) -> None:
    binary, sparse = tmp_path / "binary.json", tmp_path / "sparse.json"
    binary.write_bytes(b"\xff\xfe{}")
    sparse.touch()
    os.truncate(sparse, 1 << 40)
    for path, said in ((binary, "can't decode"), (sparse, "too large")):
        out = dejavu("heuristics", "show", path)
        assert (out.returncode, out.stderr.count("\n")) == (3, 1), out.stderr
        assert said in out.stderr


def test_a_link_to_a_trees_file_is_followed(
    tree_folder: FileStore, dejavu: Dejavu, tmp_path: Path
) -> None:
    (file,) = tree_folder.root.rglob("*.tree.json")
    (tmp_path / "link.json").symlink_to(file)
    assert dejavu("heuristics", "show", tmp_path / "link.json").returncode == 0


def test_doctor_names_a_tree_that_cannot_be_read(
    tree_folder: FileStore, dejavu: Dejavu, tmp_path: Path
) -> None:
    shutil.copytree(tree_folder.root, tmp_path / "store")
    assert dejavu("doctor", "--store", tmp_path / "store").returncode == 0
    (file,) = (tmp_path / "store").rglob("*.tree.json")
    file.write_text(file.read_text()[:300])
    out = dejavu("doctor", "--store", tmp_path / "store")
    assert out.returncode == 1
    assert f"wrong {file}: passed over" in out.stdout


def test_without_scikit_learn_the_extra_is_named(store: FileStore, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "sklearn.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'sklearn'\", name='sklearn')\n"
    )
    path = ":".join(map(str, (blocked, ROOT, ROOT / "client")))
    code = (
        "import sys; sys.argv[0] = 'dejavu-cache'; from dejavu_client.cli.main import main; main()"
    )
    out = run_python(
        code,
        "heuristics",
        "fit",
        "matmul",
        "--store",
        str(store.root),
        check=False,
        PYTHONPATH=path,
    )
    assert (out.returncode, "pip install 'dejavu-cache[sweep]'" in out.stderr) == (2, True)
