"""Which values tell a launch's records apart, and which of them no record can hold."""

from __future__ import annotations

from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.addition import Bench, make
from support.kernels import launch, load

from dejavu_cache import Edges, Multiple, Pow2, cached_autotune
from dejavu_cache.errors import KeyArgumentError
from dejavu_cache.model.buckets import Bucket
from dejavu_cache.stores import MemoryStore

INFINITE = [float("nan"), float("inf"), -float("inf")]
NAMELESS = [torch.ones(1), [1], object(), 1 + 2j, *INFINITE, "x" * 501, "\ud800", 2**64]
"""Values that records have no form for."""

CASES: list[tuple[Any, Bucket | None]] = [(value, None) for value in NAMELESS]
CASES += [(value, bucket) for value in INFINITE for bucket in (Pow2(), Multiple(16))]
CASES += [(torch.ones(2), bucket) for bucket in (Pow2(), Multiple(16), Edges((1, 2)))]


@triton.jit
def ignores(x_ptr, odd: tl.constexpr, BLOCK: tl.constexpr):
    pass


@pytest.mark.parametrize(("value", "bucket"), CASES)
def test_a_key_that_no_record_can_hold_names_its_argument(
    value: object, bucket: Bucket | None
) -> None:
    kernel = make(fn=ignores, key=["odd"], buckets={"odd": bucket} if bucket else None)
    said = "Tensor" if isinstance(value, torch.Tensor) else ""
    with pytest.raises(KeyArgumentError, match=f"key argument 'odd' is {said}"):
        kernel[(1,)](torch.ones(1), value)


@pytest.mark.parametrize("value", [float("inf"), "x" * 501, "\ud800", 2**64])
def test_a_config_that_no_record_can_hold_leaves_its_kernel_to_triton(
    value: object, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    configs = [triton.Config({"BLOCK": 16, "odd": each}) for each in (value, 1)]
    kernel = make(fn=ignores, configs=configs, key=[], store=store)
    kernel[(1,)](torch.ones(1))
    assert list(store.record_sets()) == []
    assert "its configs set odd to" in caplog.text


def test_keys_may_be_of_any_plain_type() -> None:
    @triton.jit
    def ignores(
        x_ptr, a: tl.constexpr, b: tl.constexpr, c: tl.constexpr, d: tl.constexpr,
        e: tl.constexpr, f: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        pass

    bench = Bench()
    kernel = make(bench, fn=ignores, key=list("abcdef"), check=False)
    kernel[(1,)](torch.ones(1), 1, True, 1.5, "text", None, torch.float16)
    kernel[(1,)](torch.ones(1), 1, 1, 1.5, "text", None, torch.float16)
    assert bench.calls == 6, "True and 1 are two scenarios"
    scenario = kernel.explain(torch.ones(1), 1, True, 1.5, "text", None, torch.float16).scenario
    assert scenario.args == {"a": 1, "b": True, "c": 1.5, "d": "text", "e": None, "f": "float16"}


@pytest.mark.parametrize("name", ["a" * 501, "a\x1b[31m\nb", "a\udc80", "\u202e"])
def test_a_kernel_of_any_name_is_recorded_and_explained(name: str) -> None:
    store = MemoryStore()
    renamed = triton.jit(ignores.fn)
    renamed.fn = FunctionType(ignores.fn.__code__, globals())
    renamed.fn.__qualname__ = name
    kernel = make(fn=renamed, key=[], store=store, check=False)
    arguments = [torch.ones(1)] * 2
    before = str(kernel.explain(*arguments))
    kernel[(1,)](*arguments)
    recorded = next(store.contexts()).kernel.name
    assert len(recorded) <= 500
    assert recorded.isprintable()
    assert before.startswith(f"{recorded}(")
    assert str(kernel.explain(*arguments)).startswith(f"{recorded}(")


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
