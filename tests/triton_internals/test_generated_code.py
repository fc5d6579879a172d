"""What tells two texts of Triton's IR apart, and what does not."""

from __future__ import annotations

import pytest

from dejavu_cache.triton_internals.generated_code import code_of_text

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
        ("2.000000e+00", "3.000000e+00"),
        ("%0, %x : f32, f32", "%x, %0 : f32, f32"),
        ("%v_0#1", "%v_0#0"),
        ("%x, %c", "%c, %x"),
        ("__nv_sinf", "__nv_cosf"),
        ('" x: "', '" x:  "'),
        ('" x: "', '" loc(x): "'),
        ('" x: "', '" %v: "'),
        ("noinline = false", "noinline = true"),
        ("tt.divisibility = 16", "tt.divisibility = 8"),
        ("call @kernels.helper__fp32", "call @elsewhere"),
    ],
)
def test_all_else_counts(before: str, after: str) -> None:
    assert before in TEXT
    assert code_of_text(TEXT.replace(before, after)) != code_of_text(TEXT)


def test_what_strings_hold_is_no_location() -> None:
    one, other = (TEXT.replace(" x: ", f" loc({text}) ") for text in ("a", "b"))
    assert code_of_text(one) != code_of_text(other)
