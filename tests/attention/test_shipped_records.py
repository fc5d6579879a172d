"""The records that ship with the attention kernels: of the code as it is, whole, and each with a tree."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import triton
from support.tree_agreement import check_agreement

from dejavu_cache.attention import records as shipped
from dejavu_cache.attention.kernels import hopper
from dejavu_cache.attention.search_space import METHOD
from dejavu_cache.attention.sweep_suite import kernel_of as kernel
from dejavu_cache.heuristics.fit import fit
from dejavu_cache.model.record import RecordSet
from dejavu_cache.model.scenario import Context, Problem
from dejavu_cache.prewarm.messages import PrewarmSpec
from dejavu_cache.prewarm.worker_pool import CompileProcess
from dejavu_cache.runtime.launch_recorder import LAUNCH_METHOD
from dejavu_cache.stores import FileStore, shipped_stores
from dejavu_cache.triton_internals.source_hash import kernel_name, source_hash

BOUNDS = {"static_grid": 0.03}
"""What `heuristics fit --bound` was given, where it was not 2%."""

SHIPPED = ("qblock", "segmented", "static_grid", *(("hopper",) if hopper.COVERED else ()))


def problem(tuned: Any) -> Problem:
    """What the decorator makes of its keys, buckets and method on a GPU."""
    return Problem(keys=tuned._scenario_key.keys, buckets=tuned._buckets, method=METHOD)


def contexts(name: str) -> tuple[FileStore, list[Context]]:
    """What was tuned of a kernel, beside which it is noted how it is launched."""
    store = FileStore(Path(shipped.__path__[0]), read_only=True)
    every = store.contexts(kernel_name(kernel(name)))
    return store, [each for each in every if each.problem.method != LAUNCH_METHOD]


def test_the_library_finds_them() -> None:
    assert Path(shipped.__path__[0]).as_uri() in [
        store.url.partition("?")[0] for store in shipped_stores()
    ]


@pytest.mark.parametrize("name", SHIPPED)
def test_they_are_of_the_code_as_it_is(name: str) -> None:
    _, found = contexts(name)
    assert {context.kernel.source for context in found} == {source_hash(kernel(name).fn)}
    assert [context.problem for context in found] == [problem(kernel(name))] * len(found)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_scenario_has_a_winner_among_the_declared_configs(name: str) -> None:
    store, found = contexts(name)
    for context in found:
        for record in store.records(context):
            assert record.winner is not None
            assert record.by_config[record.winner.config].median is not None


@pytest.mark.skipif(not triton.__version__.startswith("3.6."), reason="they are of Triton 3.6")
@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux")
def test_all_of_them_can_be_compiled_ahead(tmp_path: Path) -> None:
    spec = PrewarmSpec(
        modules=("dejavu_cache.attention",),
        store=tmp_path.as_uri(),
        devices=("NVIDIA H200",),
        host_modules=False,
    )
    with CompileProcess(spec) as process:
        plan = process.plan()
    assert plan.notes == ()
    scenarios = {each.name.rpartition(".")[2]: each.scenarios for each in plan.kernels}
    assert (
        min(scenarios[f"{name}_kernel"] for name in ("segment", "qblock", "static_grid", "hopper"))
        > 50
    )
    assert {job.kernel for job in plan.jobs} == {each.name for each in plan.kernels}
    assert "dejavu_cache.attention.kernels.segmented.merge_kernel" in {
        job.kernel for job in plan.jobs
    }


@pytest.mark.parametrize("name", SHIPPED)
def test_each_tree_is_what_the_records_give(name: str) -> None:
    store, found = contexts(name)
    trees = {each.tree.context: each.tree for each in store.trees(kernel_name(kernel(name)))}
    for context in found:
        again = fit(
            RecordSet(context=context, records=tuple(store.records(context))),
            bound=BOUNDS.get(name, 0.02),
        )
        assert again.text == trees[context].text


@pytest.mark.parametrize("name", SHIPPED)
def test_each_tree_exported_as_python_agrees_with_it_on_10000_random_scenarios(name: str) -> None:
    store, found = contexts(name)
    trees = list(store.trees(kernel_name(kernel(name))))
    assert {each.tree.context for each in trees} == {*found}
    for each in trees:
        check_agreement(
            each.tree, [record.scenario for record in store.records(each.tree.context)], 10_000
        )
