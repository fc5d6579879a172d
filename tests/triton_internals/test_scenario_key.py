"""What a launch brings to the compiler is in its scenario, in the key for it, and in its form."""

import enum
from typing import Any, NamedTuple

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from dejavu_cache import Pow2
from dejavu_cache.triton_internals.binder import form_of_argument
from dejavu_cache.triton_internals.config_names import DeclaredConfigs
from dejavu_cache.triton_internals.scenario_key import ScenarioKey
from dejavu_cache.triton_internals.versions import specialize_values

SINGLE, HALF = torch.zeros(16), torch.zeros(16, dtype=torch.float16)


class Pair(NamedTuple):
    left: Any
    right: Any


class Color(enum.IntEnum):
    RED = 1
    GREEN = 2


@triton.jit
def double(x):
    return x * 2


@triton.jit
def triple(x):
    return x * 3


@triton.jit
def kernel(x, n, C: tl.constexpr, BLOCK: tl.constexpr, s=1.0):
    tl.store(x + n, s + C + BLOCK)


CONFIGS = [triton.Config({"BLOCK": block}) for block in (16, 32)]
READ = {"size": 5}
"""What a heuristic reads."""


def key_of(**options: Any) -> ScenarioKey:
    return ScenarioKey(kernel, ["n"], {}, [triton.Config({"BLOCK": 16}, **options)])


KEY = key_of()


def describe(tensor: torch.Tensor, block: int = 16) -> Any:
    return TensorDescriptor.from_tensor(tensor, [block])


def launch(**changed: Any) -> dict[str, Any]:
    """Return arguments of a launch that sets all but the block, which configs set."""
    return {"x": SINGLE, "n": 3, "C": 1, **changed}


def dtypes(**changed: Any) -> dict[str, str]:
    return KEY.launch_scenario((), launch(**changed))[0].dtypes


def raw(**changed: Any) -> tuple[Any, ...]:
    """Return the key of a launch, which has to be the same by position and hashable."""
    arguments = launch(**changed)
    key = KEY.raw(0, (), arguments)
    hash(key)
    by_position = [arguments.pop(name) for name in ("x", "n", "C")]
    assert KEY.raw(0, by_position, arguments) == key
    return key


ARGUMENTS = [
    (SINGLE, HALF), ((SINGLE,), (HALF,)), ((1, (SINGLE, 2)), (1, (HALF, 2))),
    ((SINGLE, HALF), (HALF, SINGLE)), ((1, 2), (1, 2, 3)), ((1, 2), Pair(1, 2)),
    (describe(SINGLE), describe(HALF)), (describe(SINGLE), describe(SINGLE, 8)),
    ((describe(SINGLE),), (describe(HALF),)), ((SINGLE,) * 400, (*(SINGLE,) * 399, HALF)),
    (1, 1.0), (1, True), (1, None), (1.0, True), (1, 1 << 40), (1 << 40, 1 << 63),
]  # fmt: skip
CONSTANTS = [
    (1, 2), (1, True), (1, 1.0), (0.0, -0.0), ("a", "b"), (1, None), (tl.float16, tl.float32),
    (Color.RED, Color.GREEN), (Color.RED, 1), (tl.exp, tl.sin), (tl.sum, tl.max),
    (double, triple), ((double, 1), (double, 2)), ((1, 2), Pair(1, 2)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [("x", *pair) for pair in ARGUMENTS]
    + [("C", *pair) for pair in CONSTANTS]
    + [("s", 1.0, 1), ("s", None, 1)]
    + [("maxnreg", 24, 32), ("debug", True, False), ("enable_fp_fusion", None, False)],
)
def test_what_compiles_differently_is_another_scenario(name: str, one: Any, other: Any) -> None:
    assert dtypes(**{name: one}) == dtypes(**{name: one})
    assert dtypes(**{name: one}) != dtypes(**{name: other})
    assert raw(**{name: one}) != raw(**{name: other})


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 16), (7, 1 << 30), (1.5, 0.1), (SINGLE, torch.ones(1)), ((SINGLE, 3), (torch.ones(1), 4))],
)
def test_alignment_divisibility_and_equality_to_1_stay_out(one: Any, other: Any) -> None:
    assert dtypes(x=one) == dtypes(x=other)
    assert raw(x=one) == raw(x=other)


def test_a_default_is_what_it_stands_for() -> None:
    assert dtypes() == dtypes(s=2.0)
    assert raw() == raw(s=2.0)


def test_kinds_that_go_without_saying_are_left_out() -> None:
    assert dtypes() == {"x": "float32", "C": "=1", "s": "fp32"}
    assert dtypes(x=1, s=2) == {"C": "=1"}
    assert str(KEY.launch_scenario((), launch())[0]) == "(n=3; C=1, s: fp32, x: float32)"


@pytest.mark.parametrize("value", [1, True, 1.5, "text", None, torch.float16])
def test_a_key_may_be_of_any_plain_type(value: Any) -> None:
    key = ScenarioKey(kernel, ["C"], {}, CONFIGS)
    found = key.launch_scenario((), launch(C=value))[0].args["C"]
    expected = "float16" if value is torch.float16 else value
    assert (found, type(found)) == (expected, type(expected))


def test_a_block_that_a_hook_sets_is_no_part_of_the_scenario() -> None:
    key = key_of(pre_hook=print)
    scenarios = {key.launch_scenario((), launch(x=describe(SINGLE, block)))[0] for block in (8, 16)}
    assert len(scenarios) == 1


@pytest.mark.parametrize("value", [object(), Pair, describe, (1, object())])
def test_a_constant_without_a_name_is_not_stored(value: Any) -> None:
    scenario, unstored = KEY.launch_scenario((), launch(C=value))
    assert "C (" in str(unstored)
    assert KEY.launch_scenario((), launch(C=value))[0] == scenario
    assert raw(C=value) == raw(C=value)


def test_an_option_that_names_a_file_is_not_stored() -> None:
    assert "ir_override" in str(KEY.launch_scenario((), launch(ir_override="a.ttgir"))[1])


def with_heuristics(**heuristics: Any) -> ScenarioKey:
    return ScenarioKey(triton.heuristics(heuristics)(kernel), ["n"], {"n": Pow2()}, CONFIGS)


def test_a_constant_that_heuristics_compute_without_a_config_is_in_the_scenario() -> None:
    key = with_heuristics(C=lambda args: args["n"] > 5)
    few, many = (key.launch_scenario((), {"x": SINGLE, "n": n})[0] for n in (5, 7))
    assert few.args == many.args
    assert (few.dtypes["C"], many.dtypes["C"]) == ("=False", "=True")
    assert key.raw(0, (SINGLE, 5), {}) != key.raw(0, (SINGLE, 7), {})


def test_what_a_heuristic_reads_beside_the_arguments_counts_at_each_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key, arguments = with_heuristics(C=lambda args: READ["size"]), {"x": SINGLE, "n": 5}
    before = key.raw(0, (), arguments), key.launch_scenario((), arguments)[0].dtypes["C"]
    monkeypatch.setitem(READ, "size", 6)
    after = key.raw(0, (), arguments), key.launch_scenario((), arguments)[0].dtypes["C"]
    assert (before[0] != after[0], before[1], after[1]) == (True, "=5", "=6")


@pytest.mark.parametrize(
    ("one", "other", "is_equal"),
    [
        ({"x": SINGLE, "n": 5}, {"x": SINGLE, "n": 7}, True),  # a bucket is a promise
        ({"x": SINGLE, "n": 5}, {"x": torch.zeros(12), "n": 5}, False),
        ({"x": SINGLE, "n": 5, "s": 1.0}, {"x": SINGLE, "n": 5, "s": 2.0}, True),  # it is not read
    ],
)
def test_constants_that_heuristics_compute_by_config_count_together(
    one: dict[str, Any], other: dict[str, Any], is_equal: bool
) -> None:
    key = with_heuristics(C=lambda args: (args["n"] + len(args["x"])) % args["BLOCK"] == 0)
    scenarios = [key.launch_scenario((), launch)[0] for launch in (one, other)]
    assert (scenarios[0] == scenarios[1]) is is_equal
    assert (key.raw(0, (), one) == key.raw(0, (), other)) is is_equal
    assert scenarios[0].without_keys == scenarios[1].without_keys


def test_configs_that_differ_in_tritons_function_are_two() -> None:
    configs = [triton.Config({"ACT": function}) for function in (tl.exp, tl.sin)]
    assert len(DeclaredConfigs("kernel", configs)) == 2


MEMORY = torch.zeros(1 << 10, dtype=torch.int8)
BACKEND = make_backend(GPUTarget("cuda", 90, 32))

integers = st.integers(-(1 << 63), (1 << 64) - 1) | st.sampled_from(
    [0, 1, 2, 16, 17, 1 << 31, (1 << 31) - 1, -(1 << 31), -(1 << 31) - 1, 1 << 63, 1 << 40]
)
tensors = st.builds(
    lambda dtype, offset: MEMORY[8 * offset : 8 * offset + 64].view(dtype),
    st.sampled_from([torch.int8, torch.float16, torch.bfloat16, torch.float32, torch.int64]),
    st.integers(0, 8),
)
values = integers | tensors | st.floats() | st.none()


def takes_one(argument: Any, OPTION: tl.constexpr) -> None:
    pass


KERNEL = JITFunction(takes_one)  # the decorator returns an interpreted function here


def compiled_for(value: Any) -> Any:
    """Return what Triton compiles the kernel for."""
    return specialize_values(KERNEL, BACKEND, {"argument": value})


@given(values, values)
def test_arguments_of_one_form_are_one_kernel_to_triton(one: Any, other: Any) -> None:
    if form_of_argument(one) == form_of_argument(other):
        assert compiled_for(one) == compiled_for(other)


@pytest.mark.parametrize(
    ("one", "other"), [(5, 7), (16, 48), (MEMORY, MEMORY[16:]), (0.5, 2.5), (1 << 20, 1 << 21)]
)
def test_equal_forms_are_found(one: Any, other: Any) -> None:
    assert form_of_argument(one) == form_of_argument(other)


def test_other_types_have_no_form() -> None:
    assert form_of_argument("text") is None
    assert form_of_argument(True) is None
