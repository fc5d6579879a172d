"""Keys of any plain type are accepted; values that no record can hold are named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.addition import Bench, make

from dejavu_cache import Edges, Multiple, Pow2
from dejavu_cache.errors import KeyArgumentError, SettingsError
from dejavu_cache.model.buckets import Bucket
from dejavu_cache.stores import MemoryStore

NAMELESS = [
    *(torch.ones(1), [1], object(), 1 + 2j),
    *(float("nan"), float("inf"), "x" * 501, "\ud800", 2**64),
]
"""Values that records have no form for."""


@pytest.mark.parametrize("value", NAMELESS)
def test_a_key_that_cannot_be_written_down_names_its_argument(value: object) -> None:
    @triton.jit
    def ignores(x_ptr, odd, BLOCK: tl.constexpr):
        pass

    with pytest.raises(KeyArgumentError, match="key argument 'odd' is"):
        make(fn=ignores, key=["odd"])[(1,)](torch.ones(1), value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("bucket", [Pow2(), Multiple(16)])
def test_a_key_that_has_no_bucket_is_named(value: float, bucket: Bucket) -> None:
    @triton.jit
    def ignores(x_ptr, odd, BLOCK: tl.constexpr):
        pass

    kernel = make(fn=ignores, key=["odd"], buckets={"odd": bucket})
    with pytest.raises(KeyArgumentError, match="key argument 'odd' is"):
        kernel[(1,)](torch.ones(1), value)


@pytest.mark.parametrize("bucket", [Pow2(), Multiple(16), Edges((1, 2))])
def test_a_tensor_has_no_bucket_and_is_named(bucket: Bucket) -> None:
    @triton.jit
    def ignores(x_ptr, odd, BLOCK: tl.constexpr):
        pass

    kernel = make(fn=ignores, key=["odd"], buckets={"odd": bucket})
    with pytest.raises(KeyArgumentError, match="key argument 'odd' is Tensor"):
        kernel[(1,)](torch.ones(1), torch.ones(2))


@pytest.mark.parametrize("value", [float("inf"), "x" * 501, "\ud800", 2**64])
def test_a_config_that_no_record_can_hold_leaves_its_kernel_to_triton(
    value: object, caplog: pytest.LogCaptureFixture
) -> None:
    @triton.jit
    def ignores(x_ptr, BLOCK: tl.constexpr, ODD: tl.constexpr):
        pass

    store = MemoryStore()
    configs = [triton.Config({"BLOCK": 16, "ODD": value}), triton.Config({"BLOCK": 16, "ODD": 1})]
    kernel = make(fn=ignores, configs=configs, key=[], store=store)
    kernel[(1,)](torch.ones(1))
    assert list(store.record_sets()) == []
    assert "its configs set ODD to" in caplog.text


def test_keys_may_be_of_any_plain_type() -> None:
    @triton.jit
    def ignores(
        x_ptr,
        a: tl.constexpr,
        b: tl.constexpr,
        c: tl.constexpr,
        d: tl.constexpr,
        e: tl.constexpr,
        f: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        pass

    bench = Bench()
    kernel = make(bench, fn=ignores, key=list("abcdef"), check=False)
    kernel[(1,)](torch.ones(1), 1, True, 1.5, "text", None, torch.float16)
    kernel[(1,)](torch.ones(1), 1, 1, 1.5, "text", None, torch.float16)
    assert bench.calls == 6, "True and 1 are two scenarios"
    scenario = kernel.explain(torch.ones(1), 1, True, 1.5, "text", None, torch.float16).scenario
    assert scenario.args == {"a": 1, "b": True, "c": 1.5, "d": "text", "e": None, "f": "float16"}


def test_a_bucket_of_no_key_is_refused_where_it_is_declared() -> None:
    with pytest.raises(SettingsError, match="buckets name 'm', which is not in key"):
        make(buckets={"m": Pow2()})


def test_a_key_of_no_argument_is_refused_where_it_is_declared() -> None:
    with pytest.raises(SettingsError, match="key names 'typo', which is no argument"):
        make(key=["n", "typo"])


def _spy(name: str, parameters: int) -> Any:
    """Return a kernel of a name and of many parameters, which notes its launches."""
    names = [f"x{place}" for place in range(parameters)]

    def launched(*args: Any, **kwargs: Any) -> None:
        _LAUNCHED.append(kwargs["BLOCK"])

    @triton.jit
    def ignores(BLOCK: tl.constexpr):
        pass

    ignores.fn.__qualname__ = name
    return SimpleNamespace(fn=ignores, arg_names=[*names, "BLOCK"], run=launched)


_LAUNCHED: list[int] = []


@pytest.mark.parametrize("name", ["a" * 501, "a\x1b[31m\nb", "a\udc80", "\u202e"])
def test_a_kernel_of_any_name_is_recorded_and_explained(name: str) -> None:
    store = MemoryStore()
    kernel = make(fn=_spy(name, 2), key=[], store=store, check=False)
    arguments = [torch.ones(1)] * 2
    before = str(kernel.explain(*arguments))
    kernel[(1,)](*arguments)
    recorded = next(store.contexts()).kernel.name
    assert len(recorded) <= 500
    assert recorded.isprintable()
    assert before.startswith(f"{recorded}(")
    assert str(kernel.explain(*arguments)).startswith(f"{recorded}(")
