"""Where a kernel is defined, and what of its code counts."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import triton
from support.kernels import ADD, load

from dejavu_cache import cached_autotune
from dejavu_cache.model.scenario import GENERATED_MODULE
from dejavu_cache.triton_internals.generated_code import code_of_text
from dejavu_cache.triton_internals.identity import identify, is_decorated_alike, kernel_name


@pytest.mark.parametrize(
    "module",
    [
        "cwx3jc6nqk5v2h7d8f9g0abcdefghijklmnopqrstuvwxyz2",
        "transformers_modules.a3f9c2b41d5e6f708192a3b4c5d6e7f801234567.modeling",
        "tmpx8f3k2ab",
        "activation_3fa9c2b41d5e6f70",
    ],
)
def test_a_module_of_one_process_is_named_by_its_code(tmp_path: Path, module: str) -> None:
    kernel = load(tmp_path / "kernels.py", name=module).add
    assert kernel_name(kernel) == f"{GENERATED_MODULE}.add"
    assert "found by its code" in str(kernel.explain(*[_tensor()] * 2, 16))


@pytest.mark.parametrize(
    "module",
    ["kernels", "my_package.ops.kernels", "sha256", "layer_12", "tmpl", "flashattention2kernels"],
)
def test_other_modules_are_named(tmp_path: Path, module: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 2)  # as in a container
    assert kernel_name(load(tmp_path / "kernels.py", name=module).add) == f"{module}.add"


def test_a_worker_that_was_started_names_a_scripts_kernel_as_the_script_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started processes import a script as `__mp_main__`, and not as `__main__`."""
    for name in ("__main__", "__mp_main__"):
        script = load(tmp_path / "script.py", name=name)
        monkeypatch.setitem(sys.modules, name, script)
        monkeypatch.setattr(script, "__spec__", None)
        assert kernel_name(script.add) == "script.add"


def _tensor() -> Any:
    import torch

    return torch.zeros(16)


def source(tmp_path: Path, before: str = "", after: str = "", folder: str = "a") -> str:
    module: Any = load(tmp_path / folder / "kernels.py", ADD.replace(before, after))
    found = identify(module.add.fn, ())
    assert found.unstored is None
    return str(found.source)


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


# ruff: noqa: E501 - as Triton writes it
TEXT = """#loc = loc("/a/kernels.py":10:0)
module {
  tt.func public @k(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("x"(#loc)), %n: i32 loc("n"(#loc))) {
    %v = tt.load %x : !tt.ptr<f32> loc(#loc3)
    %v_0:2 = tt.call @kernels.helper__fp32(%v) : (f32) -> (f32, f32) loc(callsite("a"(#loc4) at "b"(#loc5)))
    tt.print " x: " {hex = false} : %v_0#1 : f32 loc(#loc6)
    tt.extern "sin"(%v_0#0) {symbol = "__nv_sinf"} : f32 loc(fused[#loc1, "k.py":3:4])
    tt.return loc(#loc)
  } loc(#loc)
  tt.func private @kernels.helper__fp32(%x: f32 loc("x"(#loc16))) -> (f32, f32) attributes {noinline = false} {
    %c = arith.constant 2.000000e+00 : f32 loc(#loc17)
    %0 = arith.mulf %x, %c : f32 loc(#loc18)
    tt.return %0, %x : f32, f32 loc(#loc19)
  } loc(#loc16)
} loc(#loc)
#loc3 = loc("/a/kernels.py":11:22)
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("/a/kernels.py", "/somewhere/(else)/k 2.py"),
        ("#loc3)", "#loc33)"),
        ('loc("x"(#loc16))', "loc(unknown)"),
        (' loc(callsite("a"(#loc4) at "b"(#loc5)))', ""),
        ("@kernels.helper__fp32", '@"my module.other__fp32"'),
        ("%v", "%value"),
        ("%c", "%x_1"),  # of the helper, whose names are its own
        ("public @k", "public @renamed"),
    ],
)
def test_locations_and_names_do_not_count(before: str, after: str) -> None:
    assert before in TEXT
    assert code_of_text(TEXT.replace(before, after)) == code_of_text(TEXT)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("2.000000e+00", "3.000000e+00"), ("%0, %x : f32, f32", "%x, %0 : f32, f32"),
        ("%v_0#1", "%v_0#0"), ("%x, %c", "%c, %x"), ("__nv_sinf", "__nv_cosf"),
        ('" x: "', '" x:  "'), ('" x: "', '" loc(x): "'), ('" x: "', '" %v: "'),
        ("noinline = false", "noinline = true"),
        ("tt.divisibility = 16", "tt.divisibility = 8"),
        ("call @kernels.helper__fp32", "call @elsewhere"),
    ],
)  # fmt: skip
def test_all_else_counts(before: str, after: str) -> None:
    assert before in TEXT
    assert code_of_text(TEXT.replace(before, after)) != code_of_text(TEXT)
