"""Where no record is near, a decision tree chooses among the configs that the kernel declares."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from support.addition import CONFIGS, add_one
from support.kernels import launch
from support.records import MOMENT, tuned_record

from dejavu_cache import Resolution, ScenarioNotTuned, cached_autotune
from dejavu_cache.errors import StoreError
from dejavu_cache.heuristics.fit import fit
from dejavu_cache.model.decision_tree import Leaf, Tree
from dejavu_cache.model.record import Measurement, Record, RecordSet
from dejavu_cache.model.scenario import Context, Scenario
from dejavu_cache.stores import FileStore, MemoryStore, Store, TieredStore, shipped_stores
from dejavu_cache.system import notices
from dejavu_cache.triton_internals.config_names import describe

SIZES = [2**exponent for exponent in range(1, 12)]
FAR = 12_500


def make(store: Store, configs: Any = CONFIGS, **options: Any) -> Any:
    options = {"key": ["n"], "mode": "reuse", "store": store, **options}
    return cached_autotune(configs=configs, **options)(add_one)


def resolve(kernel: Any, n: int) -> Resolution:
    resolution: Resolution = kernel.explain(torch.ones(1), torch.ones(1), n)
    return resolution


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


@pytest.fixture(scope="module")
def record_set() -> RecordSet:
    """Up to n = 1000, 32 is the best block, and 64 from there on; 16 never is."""

    def record(n: int) -> Record:
        medians = (3.0, 1.0, 2.0) if n <= 1000 else (3.0, 2.0, 1.0)
        timings = [
            Measurement(config=describe(config), median=median, at=MOMENT)
            for config, median in zip(CONFIGS, medians, strict=True)
        ]
        dtypes = {"x_ptr": "float32", "y_ptr": "float32"}
        return tuned_record(Scenario(args={"n": n}, dtypes=dtypes), timings)

    context = resolve(make(MemoryStore()), 1).context  # in which this machine records the kernel
    return RecordSet(context=context, records=tuple(map(record, SIZES)))


@pytest.fixture(scope="module")
def tree(record_set: RecordSet) -> Tree:
    return fit(record_set)


def elsewhere(tree: Tree, **environment: Any) -> Tree:
    """Return the tree as if it had been fitted in another environment."""
    return with_context(tree, environment=tree.context.environment.model_copy(update=environment))


def with_context(tree: Tree, **context: Any) -> Tree:
    fields = {name: getattr(tree.context, name) for name in Context.model_fields}
    return Tree(**{**dict(tree), "context": Context(**{**fields, **context})})


def only(tree: Tree, block: int) -> Tree:
    """Return the tree with one config left."""
    config = next(config for config in tree.configs if config.params["BLOCK"] == block)
    return Tree(**{**dict(tree), "configs": (config,), "root": Leaf(ranking=(0,))})


def test_what_is_far_from_every_record_gets_the_trees_choice(store: FileStore, tree: Tree) -> None:
    url = store.put_tree(tree)
    for n, block in ((3, 32), (700, 32), (3000, 64), (FAR, 64)):
        kernel = make(store)
        launch(kernel, n)
        assert kernel.best_config.kwargs == {"BLOCK": block}
        resolution = resolve(kernel, n)
        assert (resolution.how, resolution.store, resolution.final) == ("tree", url, False)
    assert f"found:  tree in {url}" in str(resolution)
    assert kernel.benchmarked == 0


def test_the_nearest_record_goes_before_the_tree_and_the_default_after(
    store: FileStore, tree: Tree, record_set: RecordSet
) -> None:
    assert resolve(make(store), FAR).how == "default"
    store.put(record_set.context, record_set.records)
    store.put_tree(tree)
    assert resolve(make(store), 5_000).how == "nearest"
    assert resolve(make(store), FAR).how == "tree"
    assert "args.n" in str(resolve(make(store), FAR)), (
        "what sets the nearest record apart is told as well"
    )
    assert resolve(make(store), 1024).how == "exact"
    assert list(store.contexts()) == [record_set.context]
    assert store.problems() == {}
    assert store.delete(record_set.context) == len(SIZES)
    assert [stored.tree for stored in store.trees(tree.context.kernel.name)] == [tree]


def test_a_tree_is_only_a_fallback(store: FileStore, tree: Tree) -> None:
    store.put_tree(tree)
    with pytest.raises(ScenarioNotTuned):
        launch(make(store, mode="strict"), FAR)
    tuner = make(store, mode="tune")
    launch(tuner, 100)
    assert (tuner.benchmarked, resolve(tuner, 100).how) == (3, "tuned")


def test_a_tree_for_other_code_or_another_triton_serves_and_says_so(
    store: FileStore, tree: Tree
) -> None:
    kernel = tree.context.kernel.model_copy(update={"source": "f" * 32})
    older = elsewhere(tree, triton="3.1.0")
    store.put_tree(with_context(older, kernel=kernel))
    resolution = resolve(make(store), FAR)
    assert (resolution.how, resolution.config.kwargs) == ("tree", {"BLOCK": 64})
    assert {difference.field for difference in resolution.differences} == {
        "kernel.source",
        "environment.triton",
    }


@pytest.mark.parametrize(
    ("changes", "n", "dtype", "chosen"),
    [
        (({"triton": "3.1.0"}, {}, {"triton": "9.0.0"}), 3, "float32", ("tree", 64)),
        (({"device": {"units": 7}},), FAR, "float32", ("default", 16)),
        (({},), FAR, "float16", ("default", 16)),
    ],
    ids=["of several, the most alike", "another GPU's", "another kind of scenario"],
)
def test_a_tree_serves_where_it_is_alike(
    changes: Any, n: int, dtype: str, chosen: tuple[str, int], store: FileStore, tree: Tree
) -> None:
    for environment in changes:
        device = tree.context.environment.device.model_copy(update=environment.get("device", {}))
        fitted = only(tree, 32 if environment else 64)
        store.put_tree(elsewhere(fitted, **{**environment, "device": device}))
    found = make(store).explain(torch.ones(1, dtype=getattr(torch, dtype)), torch.ones(1), n)
    assert (found.how, found.config.kwargs["BLOCK"]) == chosen


def test_a_config_that_the_kernel_does_not_declare_never_runs(store: FileStore, tree: Tree) -> None:
    store.put_tree(tree)
    without_64 = make(store, CONFIGS[:2])
    assert resolve(without_64, FAR).config.kwargs == {"BLOCK": 32}, "the leaf's next best"
    launch(without_64, FAR)
    neither = make(store, [CONFIGS[0], triton.Config({"BLOCK": 128})])
    assert resolve(neither, FAR).how == "default"
    pruned = make(
        store, prune_configs_by={"early_config_prune": lambda configs, named, **rest: configs[:2]}
    )
    assert resolve(pruned, FAR).config.kwargs == {"BLOCK": 32}


def test_a_damaged_or_newer_tree_is_passed_over_with_a_warning(
    store: FileStore, tree: Tree, caplog: pytest.LogCaptureFixture
) -> None:
    store.put_tree(elsewhere(tree, triton="3.1.0"))
    path = Path(store.put_tree(tree).removeprefix("file://"))
    for text, said in (
        ("{", "not a decision tree"),
        (tree.text.replace('"format": 1', '"format": 9'), "upgrade"),
    ):
        caplog.clear()
        path.write_text(text)
        with caplog.at_level(logging.WARNING):
            (difference,) = resolve(make(store), FAR).differences
        assert difference.field == "environment.triton"
        assert said in caplog.text
        assert path.read_text() == text
        notices._said.clear()


def test_a_tree_goes_to_the_first_store_that_keeps_trees(store: FileStore, tree: Tree) -> None:
    read_only = FileStore(store.root.with_name("shipped"), read_only=True)
    tiers = TieredStore([read_only, MemoryStore(), store])
    tiers.put_tree(tree)
    assert [url for _, url in tiers.trees(tree.context.kernel.name)] == [
        store.path(tree.context).with_suffix(".tree.json").as_uri()
    ]
    with pytest.raises(StoreError, match="keeps no decision trees"):
        TieredStore([read_only, MemoryStore()]).put_tree(tree)


def test_an_installed_package_ships_trees_with_its_records_and_is_not_imported(
    store: FileStore, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch must not import what else a package has, such as all of its kernels."""
    package = tmp_path / "shipping"
    FileStore(package / "records").put_tree(tree)
    (package / "__init__.py").write_text("raise RuntimeError('the package is imported')")
    info = tmp_path / "shipping-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shipping\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[dejavu_cache.records]\nshipping = shipping.records\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    shipped_stores.cache_clear()
    resolution = resolve(make(store), FAR)
    shipped_stores.cache_clear()
    assert (resolution.how, str(package) in str(resolution.store)) == ("tree", True)
