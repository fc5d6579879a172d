"""The records that ship with the attention kernels: of the code as it is, whole, and each with a tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attention_support import kernels

from dejavu_cache import shipped
from dejavu_cache.attention import hopper
from dejavu_cache.attention.spaces import METHOD
from dejavu_cache.records import Context, Problem, RecordSet
from dejavu_cache.source import kernel_name, source_hash
from dejavu_cache.stores import FileStore, shipped_stores
from dejavu_cache.sweep.fit import fit

SHIPPED = ("qblock", "segmented", "static_grid", *(("hopper",) if hopper.COVERED else ()))


def kernel(name: str) -> Any:
    if name != "hopper":
        return kernels()[name]
    from dejavu_cache.attention.hopper_kernel import hopper_kernel

    return hopper_kernel


def problem(tuned: Any) -> Problem:
    """What the decorator makes of its keys, buckets and method on a GPU."""
    return Problem(keys=tuned._launch_key.keys, buckets=tuned._buckets, method=METHOD)


def contexts(name: str) -> tuple[FileStore, list[Context]]:
    store = FileStore(Path(shipped.__path__[0]), read_only=True)
    return store, list(store.contexts(kernel_name(kernel(name))))


def test_the_library_finds_them() -> None:
    assert Path(shipped.__path__[0]).as_uri() in [store.url.partition("?")[0] for store in shipped_stores()]


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


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_each_tree_is_what_the_records_give(name: str) -> None:
    store, found = contexts(name)
    trees = {each.tree.context: each.tree for each in store.trees(kernel_name(kernel(name)))}
    for context in found:
        again = fit(RecordSet(context=context, records=tuple(store.records(context))), bound=0.02)
        assert again.root == trees[context].root
