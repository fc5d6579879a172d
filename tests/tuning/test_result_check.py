"""Results are compared with the default config's: what is right passes, what is wrong is told."""

import math
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from support.result_checks import (
    Write,
    both,
    checker,
    compare_tensors,
    double,
    half_of_it,
    launch_arguments,
    one_element_off,
    write_nothing,
)

from dejavu_cache.model.record import NO_MEMORY, NOT_COPYABLE, NOT_REPEATABLE
from dejavu_cache.triton_internals.argument_access import Accesses
from dejavu_cache.tuning.expected_results import compare_ones


def input_overwritten(arguments: dict[str, Any]) -> None:
    arguments["out"].copy_(arguments["x"] * 3)


infinite = both(double, lambda arguments: arguments["out"][3].fill_(float("inf")))


@pytest.mark.parametrize(
    "write", [half_of_it, write_nothing, one_element_off, input_overwritten, infinite]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_config_that_differs_is_wrong_and_the_argument_is_named(
    write: Write, dtype: torch.dtype
) -> None:
    verdict = checker(launch_arguments(dtype), double).judge(write)
    assert verdict.outcome == "wrong"
    assert verdict.reason.startswith("out differs in ")


def test_a_race_is_found_though_the_first_launch_was_right() -> None:
    launches = iter([1.0, 0.0])
    racy = both(double, lambda arguments: arguments["out"].mul_(next(launches)))
    assert checker(launch_arguments(), double).judge(racy).outcome == "wrong"


slightly_off = both(double, lambda arguments: arguments["out"].mul_(1.05))
with_scratch = both(double, lambda arguments: arguments["scratch"].fill_(5))


@pytest.mark.parametrize(
    ("default", "write", "options", "outcome"),
    [
        (with_scratch, double, {}, "wrong"),
        (with_scratch, double, {"ignore": ["scratch"]}, "equal"),
        (double, input_overwritten, {"reference": input_overwritten}, "equal"),
        (double, double, {"reference": input_overwritten}, "wrong"),
        (double, slightly_off, {}, "wrong"),
        (double, slightly_off, {"tolerance": {"out": 0.1}}, "equal"),
    ],
)
def test_what_is_declared_decides(
    default: Write, write: Write, options: dict[str, Any], outcome: str
) -> None:
    arguments = {**launch_arguments(), "scratch": torch.zeros(4)}
    assert checker(arguments, default, **options).judge(write).outcome == outcome


def test_an_error_of_a_reference_is_its_authors() -> None:
    with pytest.raises(ValueError, match="author's"):
        checker(launch_arguments(), double, reference=Mock(side_effect=ValueError("an author's")))


def test_restoring_is_unseen_by_autograd() -> None:
    arguments = launch_arguments()
    arguments["out"].requires_grad_()
    versions = {name: arguments[name]._version for name in ("x", "out")}

    def write_like_a_kernel(arguments: dict[str, Any]) -> None:
        arguments["out"].data.copy_(arguments["x"] * 2)

    assert checker(arguments, write_like_a_kernel).judge(write_like_a_kernel).outcome == "equal"
    assert versions == {name: arguments[name]._version for name in ("x", "out")}


def test_tensors_in_tuples_are_compared_and_named_by_index() -> None:
    x, first, second = torch.randn(3, 100)
    arguments = {"xs": (x,), "outs": (first, [second, 3]), "n": 100}
    before = second.clone()

    def write_both(arguments: dict[str, Any], factor: float = 2.0) -> None:
        first.copy_(x * 2)
        second.copy_(x * factor)

    slightly_off = partial(write_both, factor=2.1)
    made = checker(arguments, write_both)
    verdict = made.judge(slightly_off)
    assert verdict.outcome == "wrong"
    assert verdict.reason.startswith("outs[1][0] differs in ")
    assert made.judge(write_both).outcome == "equal"
    assert torch.equal(second, before)
    loose = checker(arguments, write_both, tolerance={"outs": 0.1})
    assert loose.judge(slightly_off).outcome == "equal"
    assert checker(arguments, write_both, ignore=["outs"]).judge(slightly_off).outcome != "wrong"


def test_outputs_that_nothing_shows_are_named() -> None:
    negative = torch.conj(torch.ones(4, dtype=torch.complex64)).imag
    others = {"wide": torch.ones(1).expand(10), "object": object(), "empty": torch.empty(0)}
    arguments = launch_arguments() | {"negative": negative} | others
    of_unknown = checker(arguments, double).verdicts(half_of_it)
    assert of_unknown["out"].outcome == "wrong"
    assert of_unknown["negative"].reason.startswith(NOT_COPYABLE)
    accesses = Accesses(frozenset("x"), frozenset({"out", *others}), elsewhere=True)
    verdicts = checker(arguments, double, accesses=accesses).verdicts(double)
    assert verdicts.pop("out").outcome == "equal"
    assert sorted(verdicts) == ["object", "other memory", "wide"]
    assert all(verdict.outcome == "not_compared" for verdict in verdicts.values())


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("actual", "expected", "difference"),
    [
        ([0, 1, 2], [0, 1, 2], ""),
        ([1, 2, 3], [0, 1, 2], "differs in 3 of 3 elements"),
        ([1.0, NAN, INF], [1.0, NAN, INF], ""),
        ([NAN, 1.0, INF], [1.0, NAN, INF], "NaN or infinite on one side only"),
        ([1.0, NAN, -INF], [1.0, NAN, INF], "differs"),
        ([NAN] * 3, [NAN] * 3, ""),
        ([INF] * 3, [INF] * 3, ""),
        ([0.0] * 3, [INF] * 3, "infinite on one side only"),
        ([], [], ""),
    ],
)
def test_integers_must_be_equal_and_nan_must_stand_in_the_same_places(
    actual: list[float], expected: list[float], difference: str
) -> None:
    seen = compare_tensors(torch.tensor(actual), torch.tensor(expected))
    assert (difference in seen, bool(seen)) == (True, bool(difference))


def test_an_output_that_the_default_does_not_repeat_excuses_itself_alone() -> None:
    arguments = {**launch_arguments(), "order": torch.zeros(4)}
    launches = iter(range(1, 100))
    with_noise = partial(both, more=lambda seen: seen["order"].fill_(next(launches)))
    made = checker(arguments, with_noise(double))
    for write, outcome in ((half_of_it, "wrong"), (double, "equal")):
        verdicts = made.verdicts(with_noise(write))
        assert verdicts["out"].outcome == outcome
        assert verdicts["order"].outcome == "not_compared"
        assert verdicts["order"].reason.startswith(NOT_REPEATABLE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_large_tensors_are_compared_in_pieces(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dejavu_cache.tuning.expected_results.PIECE", 50)
    x = torch.randn(40, 30, generator=torch.Generator().manual_seed(0)).mul(100).to(dtype).t()
    arguments = {"x": x, "out": torch.zeros_like(x)}

    last_element_off = both(double, lambda arguments: arguments["out"][-1, -1].add_(100))
    made = checker(arguments, double)
    assert made.judge(double).outcome == "equal"
    verdict = made.verdicts(last_element_off)["out"]
    assert verdict.outcome == "wrong"
    assert verdict.reason.startswith("differs in 1 of 1200 elements")


def test_outputs_that_fit_nowhere_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dejavu_cache.tuning.expected_results.free_memory", lambda device: 5000.0)
    arguments = {**launch_arguments(), "total": torch.zeros(1)}
    double_and_add_up = both(double, lambda seen: seen["total"].copy_(seen["out"].sum()[None]))
    made = checker(arguments, double_and_add_up, outputs=["out", "total"])
    verdicts = made.verdicts(double_and_add_up)
    assert verdicts["total"].outcome == "equal"
    assert verdicts["out"].outcome == "not_compared"
    assert verdicts["out"].reason.startswith(NO_MEMORY)
    assert checker(arguments, double_and_add_up, outputs=["out"]).judge(double).outcome != "equal"


KINDS = sorted({kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}, key=str)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_tensors_of_any_type_are_compared_or_say_why_not(dtype: torch.dtype) -> None:
    memory = torch.zeros(64, dtype=torch.uint8)
    try:
        arguments = {**launch_arguments(), "other": memory.view(dtype)}
    except (RuntimeError, TypeError) as error:  # quantized
        pytest.skip(str(error))
    write = both(double, lambda _: memory.fill_(0x35))
    verdicts = checker(arguments, write, outputs=["out", "other"]).verdicts(double)
    assert verdicts["out"].outcome == "equal"
    other = verdicts["other"]
    assert other.outcome == "wrong" or other.reason


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64, torch.bool, torch.float8_e5m2], ids=str)
def test_what_is_compared_beforehand_is_equal(dtype: torch.dtype, monkeypatch: Any) -> None:
    monkeypatch.setattr("dejavu_cache.tuning.expected_results.PIECE", 50)
    assert compare_ones(dtype, torch.device("cpu")) == ""


MASKS = [-float("inf"), -1e4, -1e9, -1e30, "min"]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mask_of(mask: float | str, dtype: torch.dtype) -> float:
    number = torch.finfo(dtype).min if mask == "min" else float(mask)
    return float(torch.tensor(number, dtype=torch.float64).to(dtype))


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wrong_block_beside_masked_elements_is_different(
    dtype: torch.dtype, mask: float | str, share: float
) -> None:
    expected = random(200, 100).to(dtype)
    masked = int(share * expected.numel())
    expected.view(-1)[-masked:] = mask_of(mask, dtype)
    wrong = expected.clone()
    wrong[2:4] = 0
    assert compare_tensors(wrong, expected) != ""
    wrong[2:4] = random(2, 100, seed=1).to(dtype)
    assert compare_tensors(wrong, expected) != ""
    rounded = torch.where(expected.abs() > 1e3, expected, expected * (1 + torch.finfo(dtype).eps))
    assert compare_tensors(rounded, expected) == ""


@pytest.mark.parametrize("depth", [64, 512, 2048, 8192])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("outlier", [0.0, 60.0, 1e4])
def test_sums_in_another_order_agree(dtype: torch.dtype, depth: int, outlier: float) -> None:
    left, right = random(48, depth, seed=1), random(depth, 64, seed=2)
    left[5] *= outlier or 1  # a row of large terms: its elements near 0 have large errors
    expected = left @ right
    order = torch.randperm(depth, generator=torch.Generator().manual_seed(3))
    actual = torch.zeros_like(expected)
    for part in order.split(32):
        actual += left[:, part] @ right[part]
    if outlier:
        expected[-1, -3:] = actual[-1, -3:] = torch.finfo(dtype).max
    assert compare_tensors(actual.to(dtype), expected.to(dtype)) == ""


def test_few_small_elements_may_be_sums_of_large_terms() -> None:
    """As of gradients through a decay: their magnitudes differ by 25 powers of ten."""
    expected = random(1 << 21) * torch.logspace(0, -25, 1 << 21)
    expected[::8] = -1e9  # a mask
    for elements, error, is_equal in ((3, 1e-3, True), (20, 1e-3, False), (1, 1.0, False)):
        actual = expected.clone()
        actual[-elements:] += error
        assert (compare_tensors(actual, expected) == "") == is_equal


@pytest.mark.parametrize("dtype", DTYPES)
def test_sparse_results_are_compared(dtype: torch.dtype) -> None:
    expected = torch.zeros(2_200_000, dtype=dtype)
    expected[1001] = 3.0
    assert compare_tensors(expected * (1 + torch.finfo(dtype).eps), expected) == ""
    wrong = expected.clone()
    wrong[1001] = 0
    assert "differs in 1 of" in compare_tensors(wrong, expected)
    assert "differs in 2200000 of" in compare_tensors(1 - expected, expected)
