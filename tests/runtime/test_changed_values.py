"""What a kernel reads changes while the program runs: records tell the values apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.kernels import launch, load

from dejavu_cache import cached_autotune
from dejavu_cache.stores import MemoryStore

CONFIGS = [triton.Config({"BLOCK": block}) for block in (16, 32)]
SIZES = {"wide": 1}


class Wide:
    """A heuristic that is an object with state."""

    size = 1

    def __call__(self, args: dict[str, Any]) -> int:
        return self.size


WIDE = Wide()


@triton.jit
def fill(x, n, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, SIZE, mask=at < n)


@pytest.mark.parametrize("heuristic", [lambda args: SIZES["wide"], WIDE])
def test_a_value_that_a_heuristic_reads_is_part_of_the_scenario(
    monkeypatch: pytest.MonkeyPatch, heuristic: Any
) -> None:
    store = MemoryStore()
    decorate = cached_autotune(configs=CONFIGS, key=["n"], store=store)
    kernel = decorate(triton.heuristics({"SIZE": heuristic})(fill))

    def launch() -> float:
        x = torch.zeros(16)
        kernel[(1,)](x, 3)
        return float(x[0])

    assert launch() == 1
    monkeypatch.setitem(SIZES, "wide", 2)
    monkeypatch.setattr(WIDE, "size", 2)
    assert launch() == 2
    (found,) = store.record_sets()
    scenarios = {(one.scenario.args["n"], one.scenario.dtypes["SIZE"]) for one in found.records}
    assert scenarios == {(3, "=1"), (3, "=2")}
    benchmarked = kernel.benchmarked
    monkeypatch.undo()
    assert (launch(), kernel.benchmarked) == (1, benchmarked)


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
