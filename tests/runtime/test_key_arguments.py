"""Keys of any plain type are accepted; values that no record can hold are named."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.addition import Bench, make

from dejavu_cache import Edges, Multiple, Pow2
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
