"""Outputs are found and filled, so that what they held before a launch proves nothing."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.addition import CONFIGS, Bench
from support.result_checks import (
    Write,
    both,
    checker,
    compare_tensors,
    double,
    half_of_it,
    launch_arguments,
    write_nothing,
)

from dejavu_cache import cached_autotune
from dejavu_cache.model.record import BEHIND_POINTERS, NO_MEMORY, NO_WORK, has_reason
from dejavu_cache.triton_internals.argument_access import Accesses
from dejavu_cache.tuning.expected_results import Output

INTEGERS = [torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool]
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
OTHER_FLOATS = [torch.float16, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]


def code(read: str, written: str) -> Accesses:
    return Accesses(frozenset(read.split()), frozenset(written.split()))


def nan_of_small(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 1, x, float("nan"))


@pytest.mark.parametrize("copy", [torch.clone, torch.relu, nan_of_small])
@pytest.mark.parametrize("dtype", FLOATS)
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
        made = checker(arguments, copy_some(64), accesses=code("x", "out"))
        verdict = made.judge(copy_some(32))
        assert verdict.outcome == "wrong"
        assert "32 of 64 elements" in verdict.reason
        assert verdict.reason.endswith("it held something else before")
        assert made.judge(copy_some(64)).outcome == "equal"
        copy_some(64)(arguments)  # from here on, out holds the results


def test_a_config_that_adds_to_zeros_is_right_though_the_default_overwrites() -> None:
    x = torch.randn(64)
    x[5] = 0

    def add(arguments: dict[str, Any], factor: float = 2.0) -> None:
        arguments["out"].add_(x * 0.5).add_(x * (factor - 0.5))

    def accesses(write: Write) -> Accesses:
        return code("x", "out") if write is double else code("x out", "out")

    made = checker({"x": x, "out": torch.zeros(64)}, double, accesses=accesses)
    assert made.judge(add).outcome == "equal"
    assert made.judge(partial(add, factor=3.0)).outcome == "wrong"
    made = checker({"x": x, "out": torch.ones(64)}, double, accesses=accesses)
    assert made.judge(add).outcome == "wrong"
    half_done = torch.where(torch.arange(64) < 32, x * 2, 0.0)
    made = checker({"x": x, "out": half_done}, double, accesses=accesses)
    assert made.judge(lambda seen: seen["out"][32:].add_(x[32:] * 2)).outcome == "wrong"


def relu_in_place(arguments: dict[str, Any]) -> None:
    arguments["x"].copy_(torch.where(arguments["x"] > 0, arguments["x"], 0.0))


def add_and_normalize(arguments: dict[str, Any], rows: int = 16) -> None:
    """Update a residual in place, and write what depends on it."""
    arguments["residual"].add_(arguments["x"])
    sums = arguments["residual"][:rows]
    arguments["out"][:rows] = sums / sums.square().mean(1, keepdim=True).sqrt()


def test_a_kernel_that_works_in_place_starts_from_its_arguments() -> None:
    def step(arguments: dict[str, Any], stop: int = 64, size: float = 1e-4) -> None:
        arguments["x"][:stop].add_(torch.linspace(-size, size, 64)[:stop])

    wrong = [write_nothing, partial(step, stop=60), partial(step, size=2e-4)]
    for right in (relu_in_place, step):
        made = checker({"x": torch.randn(64)}, right, accesses=code("x", "x"))
        assert made.judge(right).outcome == "equal"
        assert {made.judge(write).outcome for write in wrong} == {"wrong"}


@triton.jit
def double_and_mark(x, out, marks, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.store(out + at, value * 2)
    if BLOCK == 32:
        tl.atomic_add(marks + at, 1.0)
    if BLOCK == 64:
        tl.store(x + at, value + 1.0)


def test_what_only_some_configs_write_is_restored_and_is_no_input() -> None:
    x, out, marks = torch.ones(64), torch.zeros(64), torch.zeros(64)
    decorate = cached_autotune(configs=CONFIGS, key=["n"], do_bench=Bench((3.0, 2.0, 1.0)))
    kernel = decorate(double_and_mark)
    kernel[lambda meta: (64 // meta["BLOCK"],)](x, out, marks, 64)
    assert kernel.best_config.kwargs == {"BLOCK": 32}
    assert [*map(set, (x.tolist(), marks.tolist()))] == [{1.0}, {1.0}], "the launch's own mark"


def test_a_winner_of_another_process_is_restored_likewise() -> None:
    arguments = {**launch_arguments(), "marks": (marks := torch.zeros(4))}
    written = {double: "out", (mark := both(double, lambda _: marks.fill_(1))): "out marks"}
    made = checker(arguments, double, accesses=lambda write: code("x", written[write]))
    assert made.judge(mark).outcome == "equal"
    assert not marks.any()


def test_arguments_that_share_memory_are_compared() -> None:
    packed = torch.randn(64, 3)
    arguments = {"x": packed[:, 0], "same": packed[:, 0], "out": packed[:, 1], "all": packed}
    before = packed.clone()

    made = checker(arguments, double)
    assert made.judge(double).outcome == "equal"
    assert made.judge(half_of_it).outcome == "wrong"
    assert torch.equal(packed, before)


def test_arguments_hold_what_they_held_before_an_error() -> None:
    arguments = launch_arguments()
    arguments["out"].fill_(3)

    def fail(arguments: dict[str, Any]) -> None:
        double(arguments)
        raise RuntimeError

    before = {name: arguments[name].clone() for name in ("x", "out")}
    with pytest.raises(RuntimeError):
        checker(arguments, fail)
    assert all(torch.equal(arguments[name], before[name]) for name in before)


def test_a_check_takes_three_launches() -> None:
    launches: list[Any] = []
    counted = partial(both, more=launches.append)
    many = launch_arguments() | {f"x{number}": torch.randn(8) for number in range(20)}
    rows = {name: torch.randn(16, 32) for name in ("x", "residual", "out")}
    for write, arguments, known in (
        (double, many, None),
        (relu_in_place, {"x": torch.randn(64)}, None),
        (add_and_normalize, rows, code("x residual", "residual out")),
    ):
        launches.clear()
        checker(arguments, counted(write), accesses=known).judge(counted(write))
        assert len(launches) == 3


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("told_by", ["code", "author"])
@pytest.mark.parametrize("with_values", [False, True])
def test_integers_that_held_the_results_must_be_written(
    dtype: torch.dtype, told_by: str, with_values: bool
) -> None:
    x = torch.rand(100, generator=torch.Generator().manual_seed(0))
    arguments = {"x": x, "values": torch.zeros(5), "indices": torch.zeros(5, dtype=dtype)}

    def find_largest(arguments: dict[str, Any], shift: int = 0, count: int = 5) -> None:
        values, indices = arguments["x"].topk(5)
        if with_values:
            arguments["values"].copy_(values)
        arguments["indices"][:count] = (indices + shift)[:count].to(dtype)

    def point_elsewhere(arguments: dict[str, Any]) -> None:
        find_largest(arguments, 1)
        arguments["indices"].logical_not_() if dtype is torch.bool else None

    find_largest(arguments)
    before = {name: tensor.clone() for name, tensor in arguments.items()}
    if told_by == "author":
        made = checker(arguments, find_largest, outputs=["values", "indices"])
    else:
        made = checker(arguments, find_largest, accesses=code("x", "values indices"))
    for write, elements in ((point_elsewhere, 5), (partial(find_largest, count=4), 1)):
        verdicts = made.verdicts(write)
        assert verdicts["indices"].outcome == "wrong"
        assert verdicts["indices"].reason.startswith(f"differs in {elements} of 5 elements")
        assert ("values" in verdicts) == with_values or verdicts["values"].outcome != "equal"
    assert made.judge(find_largest).outcome == "equal"
    assert all(torch.equal(arguments[name], before[name]) for name in before)


@pytest.mark.parametrize("accesses", [None, code("x locks", "out locks")])
def test_integers_that_a_kernel_may_read_are_never_invented(accesses: Accesses | None) -> None:
    """They may be indices, addresses, or locks for which it would wait for ever."""
    seen: list[torch.Tensor] = []
    arguments = {**launch_arguments(), "locks": torch.zeros(4, dtype=torch.int32)}

    def lock(arguments: dict[str, Any]) -> None:
        seen.append(arguments["locks"].clone())
        double(arguments)
        arguments["locks"].add_(1)

    made = checker(arguments, lock, accesses=accesses)
    assert made.judge(lock).outcome == "equal"
    assert len(seen) == 3
    assert not any(map(torch.Tensor.any, seen))


def test_an_output_that_is_updated_by_zeros_is_not_compared() -> None:
    arguments = {"out": torch.zeros(64), "seen": torch.zeros(64)}

    def scale(arguments: dict[str, Any], factor: float = 2.0) -> None:
        arguments["out"].mul_(factor)
        arguments["seen"].fill_(1)

    made = checker(arguments, scale, accesses=code("out", "out seen"))
    verdicts = made.verdicts(lambda arguments: scale(arguments, 3.0))
    assert {name: verdict.outcome for name, verdict in verdicts.items()} == {
        "out": "not_compared",
        "seen": "equal",
    }


def test_nothing_runs_where_nothing_is_to_be_compared() -> None:
    arguments = launch_arguments()
    checker(arguments, double, accesses=code("x", "out"), ignore=["out"])
    assert arguments["out"].isnan().all()


@pytest.mark.parametrize(
    ("accesses", "options", "reason"),
    [
        (None, {}, NO_WORK),
        (code("x", "out"), {}, NO_WORK),
        (code("x", "out"), {"ignore": ["out"]}, "the author wants none"),
        (code("x", "out"), {"outputs": ["x"]}, "the author wants none"),
        (code("x", "out"), {"reference": write_nothing}, "the reference of the author"),
        (Accesses(frozenset(), frozenset(), elsewhere=True), {}, BEHIND_POINTERS),
    ],
)
def test_a_launch_that_shows_nothing_says_why(
    accesses: Accesses | None, options: dict[str, Any], reason: str
) -> None:
    made = checker(launch_arguments(), write_nothing, accesses=accesses, **options)
    assert has_reason(made.known, reason)
    assert made.judge(double).outcome == "not_compared"


def test_what_the_default_reads_is_not_filled_for_others() -> None:
    """A config that only writes it leaves the padding as it was, which is right."""

    def add(arguments: dict[str, Any]) -> None:
        arguments["out"][:60].add_(arguments["x"][:60])

    def write(arguments: dict[str, Any]) -> None:
        arguments["out"][:60] = arguments["x"][:60]

    arguments = {"x": torch.randn(64), "out": torch.zeros(64)}
    check = checker(arguments, add, accesses=lambda of: code("x out" if of is add else "x", "out"))
    assert check.judge(write).outcome == "equal"


def test_an_output_whose_results_do_not_fit_holds_what_it_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = launch_arguments()
    arguments["out"].fill_(3)
    free = iter([1e9, 0.0, 0.0])
    monkeypatch.setattr(
        "dejavu_cache.tuning.expected_results.free_memory", lambda device: next(free)
    )
    made = checker(arguments, half_of_it, accesses=code("x", "out"))
    assert bool((arguments["out"] == 3).all())
    assert NO_MEMORY in made.judge(double).reason


@pytest.mark.parametrize("dtype", [*FLOATS, *OTHER_FLOATS, *INTEGERS])
def test_every_element_of_the_filling_is_far_from_what_was_there(dtype: torch.dtype) -> None:
    """Also from a result that was there already, and that the launch does not write again."""
    values = torch.cat([torch.zeros(1), torch.logspace(-2, 2, 200), -torch.logspace(-2, 2, 200)])
    tensor = values.reshape(401).to(dtype)
    original = tensor.clone()
    output = Output(tensor, tensor.clone())
    output.restore(filled=True)
    assert compare_tensors(tensor, original).startswith("differs in 401 of 401 elements")
    output.restore()
    assert compare_tensors(tensor, original) == ""


def write_sums(arguments: dict[str, Any], blocks: int = 8, of: int = 8) -> None:
    """Write the sums of a row's blocks, or of the first of them, from the first slot on."""
    x, sums = arguments["x"], arguments["sums"]
    sums[:64, :of] = x.unflatten(1, (blocks, -1)).sum(2)[:, :of]


def normalize(arguments: dict[str, Any], columns: int = 8) -> None:
    """Write shares of rows of which each, however short, adds up to 1."""
    arguments["sums"][:64, :columns] = arguments["x"][:, :columns].softmax(1)


def test_partial_sums_of_other_blocks_are_right_if_their_sums_are(monkeypatch: Any) -> None:
    arguments = {"x": (x := torch.randn(64, 128)), "sums": torch.zeros(70, 8)}
    made = checker(arguments, write_sums, accesses=code("x", "sums"))
    for blocks, of, outcome in ((4, 4, "equal"), (1, 1, "equal"), (4, 3, "wrong"), (8, 7, "wrong")):
        assert made.judge(partial(write_sums, blocks=blocks, of=of)).outcome == outcome
    for logits in (x, x * 0):
        made = checker({**arguments, "x": logits}, normalize, accesses=code("x", "sums"))
        assert made.judge(partial(normalize, columns=4)).outcome == "wrong"
    x[:, 112:] = 0  # the last sum is 0, and nothing is missing from the sum of the others
    made = checker(arguments, write_sums, accesses=code("x", "sums"))
    assert made.judge(partial(write_sums, of=7)).outcome == "wrong"
    monkeypatch.setattr("dejavu_cache.tuning.expected_results.free_memory", lambda device: 0.0)
    assert NO_MEMORY in made.judge(partial(write_sums, blocks=4, of=4)).reason
    assert made.judge(lambda seen: seen["sums"].fill_(1)).outcome == "wrong"
