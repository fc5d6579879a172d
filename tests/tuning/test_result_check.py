"""Results are compared with the default config's: what is right passes, what is wrong is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from dejavu_cache.tuning.result_check import CheckOptions, ResultChecker
from dejavu_cache.tuning.tensor_comparison import describe_difference

Write = Callable[[dict[str, Any]], None]


def checker(arguments: dict[str, Any], default: Write, **options: Any) -> ResultChecker:
    """Return a prepared checker of launches that are functions of the arguments."""

    @contextmanager
    def launch(write: Write) -> Iterator[None]:
        write(arguments)
        yield

    made = ResultChecker(arguments, launch, default, CheckOptions(**options))
    made.prepare()
    return made


def double(arguments: dict[str, Any]) -> None:
    arguments["out"].copy_(arguments["x"] * 2)


def launch_arguments(dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, generator=generator).to(dtype)
    return {"x": x, "out": torch.full_like(x, float("nan")), "n": 1000}


def half_of_it(arguments: dict[str, Any]) -> None:
    arguments["out"][:500].copy_(arguments["x"][:500] * 2)


def write_nothing(arguments: dict[str, Any]) -> None:
    pass


def one_element_off(arguments: dict[str, Any]) -> None:
    double(arguments)
    arguments["out"][7] += 1


def input_overwritten(arguments: dict[str, Any]) -> None:
    arguments["out"].copy_(arguments["x"] * 3)


def infinite(arguments: dict[str, Any]) -> None:
    double(arguments)
    arguments["out"][3] = float("inf")


@pytest.mark.parametrize(
    "write", [half_of_it, write_nothing, one_element_off, input_overwritten, infinite]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_config_that_differs_is_wrong_and_the_argument_is_named(
    write: Write, dtype: torch.dtype
) -> None:
    verdict = checker(launch_arguments(dtype), double).check(write)
    assert verdict.outcome == "wrong"
    assert verdict.evidence.startswith("out differs in ")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_another_order_of_summation_is_right(dtype: torch.dtype) -> None:
    def write_rounded(arguments: dict[str, Any]) -> None:
        double(arguments)
        arguments["out"].mul_(1 + 4 * torch.finfo(dtype).eps)

    assert checker(launch_arguments(dtype), double).check(write_rounded).outcome == "right"


@pytest.mark.parametrize("write", [half_of_it, write_nothing])
def test_outputs_that_held_the_results_before_the_tune_prove_nothing_by_themselves(
    write: Write,
) -> None:
    arguments = launch_arguments()
    double(arguments)
    before = arguments["out"].clone()
    made = checker(arguments, double)
    assert made.check(write).outcome == "wrong"
    assert made.check(double).outcome == "right"
    assert torch.equal(arguments["out"], before)


def test_arguments_hold_what_they_held_before() -> None:
    arguments = {"sums": torch.ones(10)}

    def accumulate(arguments: dict[str, Any]) -> None:
        arguments["sums"].add_(1)

    made = checker(arguments, accumulate)
    assert made.check(accumulate).outcome == "right"
    assert torch.equal(arguments["sums"], torch.ones(10))


def test_a_race_is_found_though_the_first_launch_was_right() -> None:
    launches = iter([1.0, 0.0])

    def racy(arguments: dict[str, Any]) -> None:
        double(arguments)
        arguments["out"].mul_(next(launches))

    assert checker(launch_arguments(), double).check(racy).outcome == "wrong"


def test_a_default_that_does_not_repeat_itself_leaves_configs_unchecked() -> None:
    generator = torch.Generator().manual_seed(0)

    def random(arguments: dict[str, Any]) -> None:
        arguments["out"].copy_(torch.rand(1000, generator=generator))

    verdict = checker(launch_arguments(), random).check(double)
    assert verdict.outcome == "unchecked"
    assert "does not repeat" in verdict.evidence


def test_declared_scratch_memory_is_not_compared() -> None:
    arguments = {**launch_arguments(), "scratch": torch.zeros(4)}

    def with_scratch(arguments: dict[str, Any]) -> None:
        double(arguments)
        arguments["scratch"].fill_(5)

    assert checker(arguments, with_scratch).check(double).outcome == "wrong"
    assert checker(arguments, with_scratch, ignore=["scratch"]).check(double).outcome == "right"


def test_a_reference_replaces_the_default() -> None:
    def reference(arguments: dict[str, Any]) -> None:
        arguments["out"].copy_(arguments["x"] * 3)

    made = checker(launch_arguments(), double, reference=reference)
    assert made.check(input_overwritten).outcome == "right"
    assert made.check(double).outcome == "wrong"


def test_a_declared_tolerance_holds_for_its_argument() -> None:
    def slightly_off(arguments: dict[str, Any]) -> None:
        double(arguments)
        arguments["out"].mul_(1.05)

    assert checker(launch_arguments(), double).check(slightly_off).outcome == "wrong"
    loose = checker(launch_arguments(), double, tolerance={"out": 0.1})
    assert loose.check(slightly_off).outcome == "right"


def test_a_launch_without_outputs_is_unchecked_and_says_why() -> None:
    verdict = checker(launch_arguments(), write_nothing).check(double)
    assert verdict.outcome == "unchecked"
    assert "changes no argument" in verdict.evidence


def test_restoring_is_unseen_by_autograd() -> None:
    arguments = launch_arguments()
    arguments["out"].requires_grad_()
    versions = {name: arguments[name]._version for name in ("x", "out")}

    def write_like_a_kernel(arguments: dict[str, Any]) -> None:
        arguments["out"].data.copy_(arguments["x"] * 2)

    assert checker(arguments, write_like_a_kernel).check(write_like_a_kernel).outcome == "right"
    assert versions == {name: arguments[name]._version for name in ("x", "out")}


def test_tensors_in_tuples_are_compared_and_named_by_index() -> None:
    x, first, second = torch.randn(3, 100)
    arguments = {"xs": (x,), "outs": (first, [second, 3]), "n": 100}
    before = second.clone()

    def write_both(arguments: dict[str, Any], factor: float = 2.0) -> None:
        first.copy_(x * 2)
        second.copy_(x * factor)

    def slightly_off(arguments: dict[str, Any]) -> None:
        write_both(arguments, 2.1)

    made = checker(arguments, write_both)
    verdict = made.check(slightly_off)
    assert verdict.outcome == "wrong"
    assert verdict.evidence.startswith("outs[1][0] differs in ")
    assert made.check(write_both).outcome == "right"
    assert torch.equal(second, before)
    loose = checker(arguments, write_both, tolerance={"outs": 0.1})
    assert loose.check(slightly_off).outcome == "right"
    assert checker(arguments, write_both, ignore=["outs"]).check(slightly_off).outcome != "wrong"


def test_outputs_that_held_the_results_are_compared_beside_arguments_that_change() -> None:
    arguments = {**launch_arguments(), "calls": torch.zeros(1, dtype=torch.int32)}

    def count(write: Write) -> Write:
        def write_and_count(arguments: dict[str, Any]) -> None:
            write(arguments)
            arguments["calls"].add_(1)

        return write_and_count

    double(arguments)
    before = {name: arguments[name].clone() for name in ("x", "out", "calls")}
    made = checker(arguments, count(double))
    assert made.check(count(half_of_it)).outcome == "wrong"
    assert made.check(count(double)).outcome == "right"
    assert all(torch.equal(arguments[name], before[name]) for name in before)


@pytest.mark.parametrize("copy", [torch.clone, torch.relu])
@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2],
)
def test_elements_that_held_their_results_must_be_written(
    dtype: torch.dtype, copy: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x = torch.randn(64).abs()
    x[32:] = 0
    arguments = {"x": x.to(dtype), "out": torch.zeros(64).to(dtype)}

    def copy_some(stop: int) -> Write:
        def write(arguments: dict[str, Any]) -> None:
            arguments["out"][:stop] = copy(arguments["x"].float())[:stop].to(dtype)

        return write

    for _ in range(2):
        made = checker(arguments, copy_some(64))
        verdict = made.check(copy_some(32))
        assert verdict.outcome == "wrong"
        assert "32 of 64 elements" in verdict.evidence
        assert verdict.evidence.endswith("its outputs held NaN before")
        assert made.check(copy_some(64)).outcome == "right"
        copy_some(64)(arguments)  # from here on, out holds the results


def test_elements_that_the_default_does_not_write_may_hold_what_they_held() -> None:
    """A config of larger tiles may fill the padding with the zeros that it has already."""
    x = torch.randn(60)
    arguments = {"x": x, "out": torch.zeros(64)}

    def write_without_padding(arguments: dict[str, Any]) -> None:
        arguments["out"][:60] = arguments["x"]

    def write_padding(value: float) -> Write:
        def write(arguments: dict[str, Any]) -> None:
            write_without_padding(arguments)
            arguments["out"][60:] = value

        return write

    made = checker(arguments, write_without_padding)
    assert made.check(write_padding(0.0)).outcome == "right"
    assert made.check(write_padding(1.0)).outcome == "wrong"


def test_a_config_that_adds_to_zeros_is_right_though_the_default_overwrites() -> None:
    x = torch.randn(64)
    x[5] = 0

    def add(arguments: dict[str, Any], factor: float = 2.0) -> None:
        arguments["out"].add_(x * 0.5).add_(x * (factor - 0.5))

    def add_too_much(arguments: dict[str, Any]) -> None:
        add(arguments, 3.0)

    made = checker({"x": x, "out": torch.zeros(64)}, double)
    assert made.check(add).outcome == "right"
    assert made.check(add_too_much).outcome == "wrong"
    assert checker({"x": x, "out": torch.ones(64)}, double).check(add).outcome == "wrong"


def relu_in_place(arguments: dict[str, Any]) -> None:
    arguments["x"].copy_(torch.where(arguments["x"] > 0, arguments["x"], 0.0))


def add_and_normalize(arguments: dict[str, Any], rows: int = 16) -> None:
    """Update a residual in place, and write what depends on it."""
    arguments["residual"].add_(arguments["x"])
    sums = arguments["residual"][:rows]
    arguments["out"][:rows] = sums / sums.square().mean(1, keepdim=True).sqrt()


def test_a_kernel_that_works_in_place_starts_from_its_arguments() -> None:
    def write_zeros(arguments: dict[str, Any]) -> None:
        arguments["x"].zero_()

    made = checker({"x": torch.randn(64)}, relu_in_place)
    assert made.check(relu_in_place).outcome == "right"
    assert made.check(write_zeros).outcome == "wrong"
    assert made.check(write_nothing).outcome == "wrong"


def test_an_output_beside_one_that_is_updated_in_place_must_be_written() -> None:
    arguments = {name: torch.randn(16, 32) for name in ("x", "residual", "out")}
    arguments["out"][8:] = 0
    arguments["x"][8:] = 0
    arguments["residual"][8:] = 0
    arguments["residual"][8:, 0] = 1
    arguments["out"][8:, 0] = 32**0.5

    def normalize_half(arguments: dict[str, Any]) -> None:
        add_and_normalize(arguments, 8)

    before = {name: tensor.clone() for name, tensor in arguments.items()}
    made = checker(arguments, add_and_normalize)
    assert made.check(normalize_half).outcome == "wrong"
    assert made.check(add_and_normalize).outcome == "right"
    assert all(torch.equal(arguments[name], before[name]) for name in before)


def test_arguments_that_share_memory_are_compared() -> None:
    packed = torch.randn(64, 3)
    arguments = {"x": packed[:, 0], "same": packed[:, 0], "out": packed[:, 1], "all": packed}
    before = packed.clone()

    def write(arguments: dict[str, Any]) -> None:
        arguments["out"].copy_(arguments["x"] * 2)

    def write_half(arguments: dict[str, Any]) -> None:
        arguments["out"][:32].copy_(arguments["x"][:32] * 2)

    made = checker(arguments, write)
    assert made.check(write).outcome == "right"
    assert made.check(write_half).outcome == "wrong"
    assert torch.equal(packed, before)


@pytest.mark.parametrize("count", [1, 2])
def test_arguments_hold_what_they_held_before_an_error(count: int) -> None:
    arguments = launch_arguments()
    arguments["out"].fill_(3)
    launches: list[None] = []

    def fail(arguments: dict[str, Any]) -> None:
        double(arguments)
        launches.append(None)
        if len(launches) == count:
            raise RuntimeError

    before = {name: arguments[name].clone() for name in ("x", "out")}
    with pytest.raises(RuntimeError):
        checker(arguments, fail)
    assert all(torch.equal(arguments[name], before[name]) for name in before)


def test_a_check_takes_four_launches_and_few_more_in_place() -> None:
    launches: list[None] = []

    def counted(write: Write) -> Write:
        def launch(arguments: dict[str, Any]) -> None:
            launches.append(None)
            write(arguments)

        return launch

    more = {f"x{number}": torch.randn(8) for number in range(20)}
    checker({**launch_arguments(), **more}, counted(double)).check(counted(double))
    assert len(launches) == 4
    launches.clear()
    checker({"x": torch.randn(64)}, counted(relu_in_place)).check(counted(relu_in_place))
    assert len(launches) == 4
    launches.clear()
    arguments = {name: torch.randn(16, 32) for name in ("x", "residual", "out")}
    checker(arguments, counted(add_and_normalize)).check(counted(add_and_normalize))
    assert len(launches) == 6


@pytest.mark.parametrize(
    ("weights", "out"),
    [
        (torch.ones(100), torch.zeros(100)),
        (torch.nn.Parameter(torch.ones(100)), torch.full((100,), 2.0)),
    ],
    ids=["where an output changes", "of modules"],
)
def test_probes_do_not_write_to_inputs(weights: torch.Tensor, out: torch.Tensor) -> None:
    held: list[torch.Tensor] = []

    def scale(arguments: dict[str, Any]) -> None:
        held.append(arguments["weights"].detach().clone())
        arguments["out"].copy_(arguments["weights"].detach() * 2)

    checker({"weights": weights, "out": out}, scale)
    assert len(held) > 1
    assert all(torch.equal(seen, torch.ones(100)) for seen in held)


@pytest.mark.parametrize("seed", range(100))
def test_a_number_that_was_computed_before_must_be_written(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    arguments = {"x": torch.rand(1000, generator=generator), "out": torch.zeros(1)}

    def add_up(arguments: dict[str, Any]) -> None:
        arguments["out"].copy_(arguments["x"].sum()[None])

    def add_up_half(arguments: dict[str, Any]) -> None:
        arguments["out"].copy_(arguments["x"][:500].sum()[None])

    add_up(arguments)
    made = checker(arguments, add_up)
    assert made.check(add_up_half).outcome == "wrong"
    assert made.check(add_up).outcome == "right"


def test_memory_that_runs_out_for_probes_leaves_the_comparison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run_out(*_: Any) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("dejavu_cache.tuning.result_check.fill_blank", run_out)
    made = checker(launch_arguments(), double)
    assert made.check(one_element_off).outcome == "wrong"
    assert made.check(double).outcome == "right"


def test_expanded_and_empty_tensors_are_left_alone() -> None:
    arguments = {
        **launch_arguments(),
        "wide": torch.ones(1).expand(10),
        "empty": torch.empty(0),
    }
    assert checker(arguments, double).check(double).outcome == "right"


def test_integers_must_be_equal() -> None:
    numbers = torch.arange(10)
    assert describe_difference(numbers, numbers.clone()) == ""
    assert describe_difference(numbers + 1, numbers) == "differs in 10 of 10 elements"


def test_nan_must_stand_in_the_same_places() -> None:
    expected = torch.tensor([1.0, float("nan"), float("inf")])
    assert describe_difference(expected.clone(), expected) == ""
    moved = torch.tensor([float("nan"), 1.0, float("inf")])
    assert "NaN or infinite on one side only" in describe_difference(moved, expected)
    negative = torch.tensor([1.0, float("nan"), -float("inf")])
    assert describe_difference(negative, expected) != ""
