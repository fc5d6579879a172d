"""What a kernel reads changes while the program runs: records tell the values apart."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.kernels import launch, load

from dejavu_cache import cached_autotune
from dejavu_cache.stores import MemoryStore

CONFIGS = [triton.Config({"BLOCK": block}) for block in (16, 32)]
SIZE = 1
SIZES = {"wide": 1}
NAMES = SimpleNamespace(wide=1)


def wide() -> int:
    return 1


class Sizes:
    wide = 1


SHAPES = Sizes()


def by_global(args: dict[str, Any]) -> int:
    return SIZE


def by_item(args: dict[str, Any]) -> int:
    return SIZES["wide"]


def by_name(args: dict[str, Any]) -> int:
    return int(NAMES.wide)


def by_function(args: dict[str, Any]) -> int:
    return wide()


def by_class(args: dict[str, Any]) -> int:
    return Sizes.wide


def by_object(args: dict[str, Any]) -> int:
    return SHAPES.wide


def by_attribute(args: dict[str, Any]) -> int:
    return int(by_attribute.size)  # type: ignore[attr-defined]


by_attribute.size = 1  # type: ignore[attr-defined]


class Callable:
    size = 1

    def __call__(self, args: dict[str, Any]) -> int:
        return self.size


by_call = Callable()


@triton.jit
def fill(x, n, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, SIZE, mask=at < n)


@pytest.mark.parametrize(
    ("heuristic", "owner", "name"),
    [
        (by_global, globals(), "SIZE"),
        (by_item, SIZES, "wide"),
        (by_name, NAMES, "wide"),
        (by_function, globals(), "wide"),
        (by_class, Sizes, "wide"),
        (by_object, SHAPES, "wide"),
        (by_attribute, by_attribute, "size"),
        (by_call, by_call, "size"),
    ],
)
def test_a_value_that_a_heuristic_reads_is_part_of_the_scenario(
    monkeypatch: pytest.MonkeyPatch, heuristic: Any, owner: Any, name: str
) -> None:
    store = MemoryStore()
    decorate = cached_autotune(configs=CONFIGS, key=["n"], store=store)
    kernel = decorate(triton.heuristics({"SIZE": heuristic})(fill))

    def launch(n: int) -> float:
        x = torch.zeros(16)
        kernel[(1,)](x, n)
        return float(x[0])

    def scenarios() -> set[tuple[Any, str]]:
        (found,) = store.record_sets()
        return {(one.scenario.args["n"], one.scenario.dtypes["SIZE"]) for one in found.records}

    set_value = monkeypatch.setitem if isinstance(owner, dict) else monkeypatch.setattr
    assert launch(3) == 1
    set_value(owner, name, (lambda: 2) if heuristic is by_function else 2)
    assert launch(3) == 2
    assert scenarios() == {(3, "=1"), (3, "=2")}
    benchmarked = kernel.benchmarked
    monkeypatch.undo()
    assert launch(3) == 1
    assert kernel.benchmarked == benchmarked


CELL = """
@triton.jit
def shift(x):
    return x + SHIFT
"""


def run_cell(path: Path, cell: str, names: dict[str, Any]) -> None:
    path.write_text(cell)
    exec(compile(cell, path, "exec"), names)


@pytest.mark.parametrize(
    ("cell", "sources"),
    [(CELL, 1), ("# a comment\n\n" + CELL, 1), (CELL.replace("x + SHIFT", "x - -SHIFT"), 2)],
    ids=["as it was", "further down", "edited"],
)
def test_a_helper_that_is_defined_anew_counts_by_its_code(
    tmp_path: Path, cell: str, sources: int
) -> None:
    """As in a notebook, whose cell of helpers is run again; the interpreter runs the later one."""
    module: Any = load(tmp_path / "kernels.py")
    run_cell(tmp_path / "cell1", CELL, vars(module))
    store = MemoryStore()
    kernel = cached_autotune(configs=module.CONFIGS, key=["n"], store=store)(module.add.fn)
    launch(kernel, 100)
    run_cell(tmp_path / "cell2", cell, vars(module))
    launch(kernel, 101)
    assert len({found.context.kernel.source for found in store.record_sets()}) == sources
