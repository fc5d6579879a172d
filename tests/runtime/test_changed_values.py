"""A value that a heuristic reads changes while the program runs: records tell the values apart."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.kernels import ADD, launch, load

from dejavu_cache import cached_autotune
from dejavu_cache.stores import MemoryStore
from dejavu_cache.triton_internals.identity import KernelIdentity, identify

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
def test_a_tune_is_recorded_under_the_value_that_was_read(
    monkeypatch: pytest.MonkeyPatch, heuristic: Any, owner: Any, name: str
) -> None:
    store = MemoryStore()
    decorate = cached_autotune(configs=CONFIGS, key=["n"], store=store)
    kernel = decorate(triton.heuristics({"SIZE": heuristic})(fill))

    def launch(n: int) -> float:
        x = torch.zeros(16)
        kernel[(1,)](x, n)
        return float(x[0])

    def sources() -> list[tuple[str, int]]:
        found = [(part.context.kernel.source, len(part.records)) for part in store.record_sets()]
        return sorted(found)

    set_value = monkeypatch.setitem if isinstance(owner, dict) else monkeypatch.setattr
    assert launch(3) == 1
    before = kernel.source
    set_value(owner, name, (lambda: 2) if heuristic is by_function else 2)
    assert launch(4) == 2
    after = kernel.source
    assert sources() == sorted([(before, 1), (after, 1)])
    benchmarked = kernel.benchmarked
    monkeypatch.undo()
    assert launch(4) == 1
    assert kernel.source == after, "this launch ran before, and keeps its config as with Triton"
    assert launch(5) == 1
    assert kernel.source == before
    assert kernel.benchmarked == benchmarked + 2
    assert sources() == sorted([(before, 2), (after, 1)])


def test_a_kernel_is_not_stored_once_a_function_that_it_calls_was_defined_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Triton compiles the later function for new launches only, under the earlier one's key."""
    module: Any = load(tmp_path / "kernels.py")
    store = MemoryStore()
    kernel = cached_autotune(configs=module.CONFIGS, key=["n"], store=store)(module.add.fn)
    launch(kernel, 100)
    before = kernel.source
    module.shift = load(tmp_path / "edited.py", ADD.replace("x + SHIFT", "x + 1")).shift
    launch(kernel, 100)
    assert kernel.source == before, "this launch keeps its config and its binary"
    launch(kernel, 101)
    launch(kernel, 102)
    assert [len(found.records) for found in store.record_sets()] == [1]
    assert kernel.source != before
    assert caplog.messages == [
        "kernels.add is tuned but not stored: shift was defined anew after the kernel was launched"
    ]


CELL = """
@triton.jit
def shift(x):
    return x + SHIFT
"""


def run_cell(path: Path, cell: str, names: dict[str, Any]) -> None:
    path.write_text(cell)
    exec(compile(cell, path, "exec"), names)


@pytest.mark.parametrize("comment", ["", "# a comment\n\n"], ids=["as it was", "further down"])
def test_a_function_that_is_defined_anew_with_equal_code_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, comment: str
) -> None:
    """As in a notebook, whose cell of helpers is run again."""
    module: Any = load(tmp_path / "kernels.py")
    run_cell(tmp_path / "cell1", CELL, vars(module))
    store = MemoryStore()
    kernel = cached_autotune(configs=module.CONFIGS, key=["n"], store=store)(module.add.fn)
    launch(kernel, 100)
    before = kernel.source
    run_cell(tmp_path / "cell2", comment + CELL, vars(module))
    launch(kernel, 101)
    assert kernel.source == before
    assert [len(found.records) for found in store.record_sets()] == [2]
    assert not caplog.messages


@pytest.mark.parametrize(
    "cell",
    [CELL.replace("x +", "2 * x -"), CELL.replace("(x)", "(x, n=2)"), "shift = None", "del shift"],
)
def test_a_name_that_means_other_code_is_noticed_in_the_same_file(
    tmp_path: Path, cell: str
) -> None:
    module: Any = load(tmp_path / "kernels.py")
    run_cell(tmp_path / "cell", CELL, vars(module))
    identity = identify(module.add, [])
    assert identity.after_replacement is None
    run_cell(tmp_path / "cell", cell, vars(module))
    assert identity.after_replacement is not None
    assert "shift was defined anew" in str(identity.after_replacement.unstored)


def test_a_fallback_is_kept_without_reading_the_code_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That takes milliseconds, which each fallback would cost again every few seconds."""
    monkeypatch.setattr("dejavu_cache.runtime.choices.RETRY_AFTER", 0.0)
    read: list[Any] = []

    def count(*arguments: Any) -> KernelIdentity:
        read.append(arguments)
        return identify(*arguments)

    monkeypatch.setattr("dejavu_cache.runtime.declared_autotuner.identify", count)
    decorate = cached_autotune(configs=CONFIGS, key=["n"], mode="reuse", store=MemoryStore())
    kernel = decorate(triton.heuristics({"SIZE": by_global})(fill))
    kernel[(1,)](torch.zeros(16), 3)
    before = len(read)
    for _ in range(3):
        kernel[(1,)](torch.zeros(16), 3)
    assert len(read) == before
    kernel[(1,)](torch.zeros(16), 4)
    assert len(read) == before + 1
