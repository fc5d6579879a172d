"""Where a kernel is defined, and the key of its code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import triton
from support.kernels import ADD, load

from dejavu_cache import cached_autotune
from dejavu_cache.model.scenario import GENERATED_MODULE
from dejavu_cache.triton_internals.identity import identify, is_decorated_alike, kernel_name


@pytest.mark.parametrize(
    "module",
    [
        "cwx3jc6nqk5v2h7d8f9g0abcdefghijklmnopqrstuvwxyz2",
        "worker_PID",
        "transformers_modules.a3f9c2b41d5e6f708192a3b4c5d6e7f801234567.modeling",
        "tmpx8f3k2ab",
        "activation_3fa9c2b41d5e6f70",
    ],
)
def test_a_module_of_one_process_is_named_by_its_code(tmp_path: Path, module: str) -> None:
    module = module.replace("PID", str(os.getpid()))
    kernel = load(tmp_path / "kernels.py", name=module).add
    assert kernel_name(kernel) == f"{GENERATED_MODULE}.add"
    assert "found by its code" in str(kernel.explain(*[_tensor()] * 2, 16))


@pytest.mark.parametrize(
    "module",
    ["kernels", "my_package.ops.kernels", "sha256", "layer_12", "tmpl", "flashattention2kernels"],
)
def test_other_modules_are_named(tmp_path: Path, module: str) -> None:
    assert kernel_name(load(tmp_path / "kernels.py", name=module).add) == f"{module}.add"


def _tensor() -> Any:
    import torch

    return torch.zeros(16)


def source(tmp_path: Path, before: str = "", after: str = "", folder: str = "a") -> str:
    module: Any = load(tmp_path / folder / "kernels.py", ADD.replace(before, after))
    found = identify(module.add.fn, ())
    assert found.unstored is None
    return str(found.source)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return x + SHIFT", "return x - SHIFT"),
        ("constexpr(1)", "constexpr(2)"),
        ("+ at", "+ 2 * at"),
    ],
)
def test_edits_change_the_key(tmp_path: Path, before: str, after: str) -> None:
    assert source(tmp_path) != source(tmp_path, before, after, "b")


def test_decorators_that_treat_arguments_otherwise_are_told_apart(tmp_path: Path) -> None:
    plain = source(tmp_path)
    unspecialized = source(
        tmp_path,
        "    @triton.jit\n    def add",
        '    @triton.jit(do_not_specialize=["n"])\n    def add',
        "b",
    )
    assert not is_decorated_alike(plain, unspecialized)
    assert is_decorated_alike(plain, source(tmp_path, "x + SHIFT", "x - SHIFT", "c"))


def test_a_config_whose_value_has_no_name_is_not_stored() -> None:
    @cached_autotune(configs=[triton.Config({"A": object(), "BLOCK": 16})], key=["n"], mode="off")
    @triton.jit
    def kernel(x, n, A, BLOCK):  # type: ignore[no-untyped-def]
        pass

    assert "a config sets A" in str(identify(kernel.fn, [triton.Config({"A": object()})]).unstored)
