"""A config that is wrong, or that nobody compared, never runs in a process that may tune."""

from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest
import torch
import triton
import triton.language as tl
from support.addition import Bench
from support.records import first_record

import dejavu_cache
from dejavu_cache import Pow2, ScenarioNotTuned, cached_autotune
from dejavu_cache.model.record import (
    BEHIND_POINTERS,
    NO_MEMORY,
    NOT_REPEATABLE,
    Failure,
    Measurement,
    OutputVerdict,
    Pin,
    Record,
    Results,
    Winner,
    reasons_not_compared,
)
from dejavu_cache.model.scenario import Scenario, now
from dejavu_cache.runtime.tune import Tune
from dejavu_cache.settings import current_settings
from dejavu_cache.triton_internals.config_names import describe
from dejavu_cache.tuning.result_check import ResultCheck

MEMORY = f"{NO_MEMORY} left on the device to compare results"
POINTERS = f"{BEHIND_POINTERS}: nothing shows what is written"
NOISE = f"{NOT_REPEATABLE}: it draws numbers"

DEFAULT, RIGHT, WRONG = (
    triton.Config({"STEP": 1, "LIMIT": 1024}),
    triton.Config({"STEP": 2, "LIMIT": 1024}),
    triton.Config({"STEP": 3, "LIMIT": 4}),
)


@triton.jit
def copy(x_ptr, out_ptr, n, STEP: tl.constexpr, LIMIT: tl.constexpr):
    """Copy n numbers; a config whose LIMIT is less than n leaves some out."""
    at = tl.arange(0, 128)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=(at < n) & (at < LIMIT))


def decorate(folder: Path, configs: list[triton.Config], *times: float, **options: Any) -> Any:
    """Return the kernel as a new process would decorate it; times are those of the configs."""
    options = {"do_bench": Bench(times or (3.0, 1.0, 2.0)), "buckets": {"n": Pow2()}, **options}
    return cached_autotune(configs, ["n"], store=folder, **options)(copy)


def launch(kernel: Any, n: int = 100) -> bool:
    """Launch, and return whether the results are right."""
    x, out = torch.rand(128), torch.zeros(128)
    kernel[(1,)](x, out, n)
    return bool(torch.equal(out[:n], x[:n]))


def explain(kernel: Any, n: int = 100) -> Any:
    return kernel.explain(torch.rand(128), torch.zeros(128), n)


def choice(kernel: Any) -> tuple[str, dict[str, Any]]:
    found = explain(kernel)
    return found.how, found.config.kwargs


def start_process(folder: Path, fast: triton.Config = WRONG, **options: Any) -> Any:
    """Return the kernel as a new process would decorate it; the second config is the fast one."""
    return decorate(folder, [DEFAULT, fast], **options)


def recorded_winner(kernel: Any) -> Winner:
    _, record = first_record(kernel.home)
    assert record.winner is not None
    return record.winner


def record_uncompared(folder: Path, fast: triton.Config, reason: str | None, **options: Any) -> Any:
    """Record a winner that nobody compared, for a reason or for none, and return the kernel."""
    kernel = start_process(folder, fast, check=False, **options)
    launch(kernel)
    context, record = first_record(kernel.home)
    verdict = OutputVerdict(outcome="not_compared", reason=reason or "")
    results = {"out_ptr": verdict} if reason else None
    winner = recorded_winner(kernel).model_copy(update={"results": results})
    kernel.home.delete(context)
    kernel.home.put(context, [record.model_copy(update={"winner": winner})])
    return kernel


@pytest.fixture
def comparing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function after which nothing is compared, for a reason; an empty one ends that.

    Its second argument is what else is said of outputs.
    """
    verdicts = ResultCheck.verdicts

    def set_reason(reason: str, others: Results | None = None) -> None:
        def lack(self: ResultCheck, config: Any) -> Results:
            if not reason:
                return verdicts(self, config)
            lacking = OutputVerdict(outcome="not_compared", reason=reason)
            return {"out_ptr": lacking, **(others or {})}

        monkeypatch.setattr(ResultCheck, "verdicts", lack)

    return set_reason


@pytest.mark.parametrize("reason", [MEMORY, POINTERS])
def test_it_neither_runs_nor_is_recorded_in_the_process_that_timed_it(
    tmp_path: Path,
    comparing: Callable[..., None],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    timed = create_autospec(Tune._measure, side_effect=Tune._measure)
    monkeypatch.setattr(Tune, "_measure", timed)
    comparing(reason)
    for benchmarked in (2, 0):
        kernel = start_process(tmp_path)
        for _ in range(2):
            assert launch(kernel)
            kernel.forget_choices()
        assert (kernel.best_config.kwargs, kernel.benchmarked) == (DEFAULT.kwargs, benchmarked)
        assert first_record(kernel.home)[1].winner is None
        assert timed.call_count == 1, "the second launch times nothing again"
        timed.reset_mock()
    assert caplog.text.count(f"out_ptr: {reason}") == 1
    assert caplog.text.count("check=False") == 1
    comparing("")
    assert launch(start_process(tmp_path, RIGHT))


@pytest.mark.parametrize("reason", [MEMORY, POINTERS, None])
def test_a_process_that_may_tune_compares_it_and_runs_no_wrong_one(
    tmp_path: Path, reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    record_uncompared(tmp_path, WRONG, reason)
    kernel = start_process(tmp_path)
    assert launch(kernel)
    assert (kernel.best_config.kwargs, kernel.benchmarked) == (DEFAULT.kwargs, 0)
    assert "is fast but wrong" in caplog.text


@pytest.mark.parametrize("reason", [MEMORY, NOISE])
def test_one_equal_output_lets_it_win_and_only_a_lack_of_memory_has_others_compare_again(
    tmp_path: Path, comparing: Callable[..., None], reason: str
) -> None:
    comparing(reason, {"total": OutputVerdict(outcome="equal")})
    kernel = start_process(tmp_path, RIGHT)
    assert launch(kernel)
    assert (kernel.best_config.kwargs, kernel.benchmarked) == (RIGHT.kwargs, 2)
    assert f"not compared: out_ptr: {reason}" in str(explain(kernel))
    assert reasons_not_compared(recorded_winner(kernel).results) == [f"out_ptr: {reason}"]
    comparing("")
    again = start_process(tmp_path, RIGHT)
    assert launch(again)
    assert (again.best_config.kwargs, again.benchmarked) == (RIGHT.kwargs, 0)
    assert reasons_not_compared(recorded_winner(again).results) == (
        [f"out_ptr: {NOISE}"] if reason == NOISE else []
    )


def test_what_cannot_be_compared_there_either_gives_way_to_the_default_with_one_warning(
    tmp_path: Path, comparing: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    record_uncompared(tmp_path, WRONG, POINTERS)
    comparing(POINTERS)
    kernel = start_process(tmp_path)
    for _ in range(2):
        assert launch(kernel)
        kernel.forget_choices()
    assert (kernel.best_config.kwargs, kernel.benchmarked) == (DEFAULT.kwargs, 0)
    assert caplog.text.count("check=False") == 1
    assert f"{WRONG.kwargs['STEP']}" in str(explain(kernel).not_compared)
    assert recorded_winner(kernel).config == describe(WRONG), "nothing more is known of it"


def test_a_config_that_cannot_be_compared_gives_way_to_one_that_was(
    tmp_path: Path, comparing: Callable[..., None]
) -> None:
    launch(decorate(tmp_path, [DEFAULT, RIGHT]))
    comparing(POINTERS)
    newer = decorate(tmp_path, [DEFAULT, RIGHT, WRONG], 0.5, 2.0)
    launch(newer)
    assert newer.best_config.kwargs == RIGHT.kwargs
    for configs in ([DEFAULT, RIGHT, WRONG], [DEFAULT, RIGHT]):
        kernel = decorate(tmp_path, configs)
        assert launch(kernel)
        assert (kernel.best_config.kwargs, kernel.benchmarked) == (RIGHT.kwargs, 0)


@pytest.mark.parametrize("mode", ["reuse", "strict"])
def test_where_nothing_may_be_compared_it_runs_and_is_labelled(
    tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="dejavu_cache.launches")
    record_uncompared(tmp_path, RIGHT, MEMORY)
    caplog.clear()
    kernel = start_process(tmp_path, RIGHT, mode=mode)
    assert launch(kernel)
    assert kernel.best_config.kwargs == RIGHT.kwargs
    assert f"not compared: out_ptr: {MEMORY}" in str(explain(kernel))
    assert f"not compared: out_ptr: {MEMORY}" in caplog.text


def test_an_author_who_switches_the_comparison_off_is_told_of_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    launch(start_process(tmp_path, check=False))
    kernel = start_process(tmp_path, check=False)
    assert not launch(kernel)
    assert not explain(kernel).not_compared
    assert reasons_not_compared(recorded_winner(kernel).results) == [
        "all outputs: switched off by check=False or DEJAVU_CACHE_CHECK=0"
    ]
    assert not caplog.text
    careful = start_process(tmp_path)
    assert launch(careful), "another author, or user, wants it compared"
    assert careful.benchmarked == 0


def test_the_winner_runs_where_the_default_config_does_not(tmp_path: Path) -> None:
    """There is nothing to compare with, and nothing else to run."""

    def fail(arguments: Any) -> None:
        raise triton.runtime.errors.OutOfResources(300_000, 232_448, "shared memory")

    for benchmarked in (2, 0):
        kernel = decorate(tmp_path, [triton.Config(DEFAULT.kwargs, pre_hook=fail), RIGHT], 1.0)
        assert launch(kernel)
        assert kernel.best_config.kwargs == RIGHT.kwargs
        assert "no default" in str(explain(kernel).not_compared)
        assert kernel.benchmarked == benchmarked


def test_a_neighbour_that_nobody_compared_stands_in_only_where_it_is_labelled(
    tmp_path: Path,
) -> None:
    record_uncompared(tmp_path, RIGHT, MEMORY)
    reader = start_process(tmp_path, RIGHT, mode="reuse")
    found = explain(reader, 40)
    assert (found.how, found.not_compared) == ("predicted", [f"out_ptr: {MEMORY}"])
    tuner = start_process(tmp_path, RIGHT)
    assert explain(tuner, 40).how == "default"


def test_a_comparison_is_recorded_over_an_entry_of_a_clock_that_is_ahead(tmp_path: Path) -> None:
    kernel = record_uncompared(tmp_path, RIGHT, MEMORY)
    context, record = first_record(kernel.home)
    ahead = recorded_winner(kernel).model_copy(update={"at": now() + timedelta(hours=12)})
    kernel.home.put(context, [Record(scenario=record.scenario, winner=ahead)])
    again = start_process(tmp_path, RIGHT)
    launch(again)
    assert recorded_winner(again).is_compared


CONFIGS = [DEFAULT, WRONG, RIGHT]
TIMES = (2.0, 0.1, 1.0)


def test_the_fastest_config_loses_if_its_results_are_wrong_and_is_not_measured_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for benchmarked in (3, 0):
        kernel = decorate(tmp_path, CONFIGS, *TIMES)
        assert launch(kernel)
        assert (kernel.best_config.kwargs, kernel.benchmarked) == (RIGHT.kwargs, benchmarked)
    assert "is fast but wrong, and is not used: out_ptr differs in " in caplog.text
    _, record = first_record(kernel.home)
    failures = [timing.failure.kind for timing in record.measurements if timing.failure]
    assert failures == ["wrong"]
    assert "wrong results: (LIMIT=4, STEP=3" in explain(kernel).wrong[0]


@triton.jit
def increment(x_ptr, n, BLOCK: tl.constexpr):
    """Add one to n numbers in place."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)


CONFIGS_IN_PLACE = [triton.Config({"BLOCK": block}) for block in (16, 32)]


@pytest.mark.parametrize("fastest", [0, 1])
def test_a_kernel_that_works_in_place_ran_once_after_its_tune(fastest: int) -> None:
    """Whichever config wins: the default is not compared with itself."""
    times = [2.0, 2.0]
    times[fastest] = 1.0

    def bench(kernel_call: Callable[[], Any], quantiles: Any) -> list[float]:
        kernel_call()
        return [times.pop(0)] * 3

    kernel = cached_autotune(CONFIGS_IN_PLACE, ["n"], do_bench=bench)(increment)
    x = torch.zeros(100)
    kernel[lambda values: (triton.cdiv(100, values["BLOCK"]),)](x, 100)
    assert kernel.best_config is CONFIGS_IN_PLACE[fastest]
    assert torch.equal(x, torch.ones(100))


def failing_hook(error: BaseException, at: int) -> Callable[[Any], None]:
    """Return a hook that raises an error at one of the launches of its config."""
    launches = count(1)

    def fail(arguments: Any) -> None:
        if next(launches) == at:
            raise error

    return fail


def test_the_runner_up_of_a_winner_that_the_author_removes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = decorate(tmp_path, [DEFAULT, RIGHT, WRONG])
    assert launch(kernel)
    assert kernel.best_config.kwargs == RIGHT.kwargs
    edited = decorate(tmp_path, [DEFAULT, WRONG])
    assert launch(edited)
    assert edited.best_config.kwargs == DEFAULT.kwargs
    assert edited.benchmarked == 0
    assert "is fast but wrong" in caplog.text


def test_the_runner_up_of_a_winner_that_pruning_leaves_out(tmp_path: Path) -> None:
    def keep_even(configs: list[Any], named: dict[str, Any], **_: Any) -> list[Any]:
        return [config for config in configs if named["n"] % 2 == 0 or config.kwargs["STEP"] != 2]

    pruning = {"prune_configs_by": {"early_config_prune": keep_even}}
    for _ in range(2):
        kernel = decorate(tmp_path, [DEFAULT, RIGHT, WRONG], **pruning)
        for n in (100, 101, 100, 101):
            assert launch(kernel, n)
            assert kernel.best_config.kwargs == (DEFAULT if n % 2 else RIGHT).kwargs


@pytest.mark.parametrize(
    "error", [MemoryError("of the host"), OSError(28, "no space left on device")], ids=str
)
def test_a_default_that_the_machine_cannot_launch_now_puts_the_tune_off(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    default = triton.Config(DEFAULT.kwargs, pre_hook=failing_hook(error, 1))
    kernel = decorate(tmp_path, [default, WRONG])
    assert launch(kernel)
    assert kernel.best_config is default
    assert "results cannot be computed now" in caplog.text
    assert next(kernel.home.records(kernel.context), None) is None
    kernel.forget_choices()
    assert launch(kernel)
    assert (kernel.best_config, kernel.benchmarked) == (default, 2)


@pytest.fixture
def unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a store in which a tune has recorded its timings, but not yet who has won."""
    with monkeypatch.context() as patched:
        interrupt = Mock(side_effect=KeyboardInterrupt)
        patched.setattr("dejavu_cache.tuning.result_check.ResultCheck.verdicts", interrupt)
        with pytest.raises(KeyboardInterrupt):
            launch(decorate(tmp_path, [DEFAULT, WRONG]))
    return tmp_path


def test_a_process_that_waits_for_the_comparison_runs_the_default(
    unfinished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEJAVU_CACHE_TUNE_WAIT", "0.1")
    current_settings.cache_clear()
    kernel = decorate(unfinished, [DEFAULT, WRONG])
    context, record = first_record(kernel.home)
    assert (record.winner, len(record.measurements)) == (None, 2)
    with kernel.home.lease(context, record.scenario, wait=0):
        assert launch(kernel)
    assert kernel.best_config.kwargs == DEFAULT.kwargs
    assert kernel.benchmarked == 0


def test_a_look_up_without_a_launch_finds_no_uncompared_config(unfinished: Path) -> None:
    """Inductor would have it launched by itself."""
    kernel = decorate(unfinished, [DEFAULT, WRONG])
    found = kernel.look_up(torch.rand(128), torch.zeros(128), 100)
    assert (found.how, found.config.kwargs) == ("default", DEFAULT.kwargs)


class TestWhereNothingMayBeMeasured:
    """Without a winner, a record is a miss, unless the author has switched the comparison off."""

    def test_a_fallback_runs_and_the_scenario_is_missed(self, unfinished: Path) -> None:
        kernel = decorate(unfinished, [DEFAULT, WRONG], mode="reuse")
        missed = list_misses(kernel)
        assert launch(kernel)
        explained = explain(kernel)
        assert explained.how == "default"
        assert "unmeasured" not in str(explained)
        assert "no winner: configs were timed, and their results not compared" in str(explained)
        assert "the nearest record" not in str(explained)
        assert [scenario.args for scenario in missed] == [{"n": 64}]

    def test_a_neighbour_stands_in(self, unfinished: Path) -> None:
        assert launch(decorate(unfinished, [DEFAULT, RIGHT]), 60)
        kernel = decorate(unfinished, [DEFAULT, RIGHT, WRONG], mode="reuse")
        assert launch(kernel)
        assert choice(kernel) == ("predicted", RIGHT.kwargs)

    def test_strict_says_what_to_do(self, unfinished: Path) -> None:
        kernel = decorate(unfinished, [DEFAULT, WRONG], mode="strict")
        missed = list_misses(kernel)
        with pytest.raises(ScenarioNotTuned, match=r"no winner .* finish its tune by .* sweep"):
            launch(kernel)
        assert len(missed) == 1

    def test_it_is_tuned_once_it_may_be(self, unfinished: Path) -> None:
        kernel = decorate(unfinished, [DEFAULT, WRONG])
        with dejavu_cache.serving():
            assert launch(kernel)
            assert choice(kernel) == ("default", DEFAULT.kwargs)
        kernel.forget_choices()
        assert launch(kernel)
        assert choice(kernel) == ("exact", DEFAULT.kwargs)

    def test_without_the_comparison_the_timings_serve(self, unfinished: Path) -> None:
        kernel = decorate(unfinished, [DEFAULT, WRONG], mode="strict", check=False)
        assert choice(kernel) == ("exact", WRONG.kwargs)

    def test_a_pin_serves_if_the_launch_may_run_it(self, unfinished: Path) -> None:
        kernel = decorate(unfinished, [DEFAULT, RIGHT, WRONG], mode="reuse")
        add(kernel, pin=Pin(config=describe(RIGHT), at=now()))
        assert choice(kernel) == ("pinned", RIGHT.kwargs)
        without = decorate(unfinished, [DEFAULT, WRONG], mode="reuse")
        assert choice(without) == ("default", DEFAULT.kwargs)

    def test_a_winner_that_is_found_wrong_leaves_none(self, tmp_path: Path) -> None:
        """As on a server, which drops such a winner; the runner-up was not compared."""
        configs = [DEFAULT, RIGHT, triton.Config({"STEP": 3, "LIMIT": 1024})]
        assert launch(decorate(tmp_path, configs))
        kernel = decorate(tmp_path, configs, mode="reuse")
        assert choice(kernel) == ("exact", RIGHT.kwargs)
        failure = Failure(kind="wrong", reason="by an audit")
        add(kernel, measurements=(Measurement(config=describe(RIGHT), failure=failure, at=now()),))
        assert choice(kernel) == ("default", DEFAULT.kwargs)


def add(kernel: Any, **parts: Any) -> None:
    """Add something to the only record of a kernel's store."""
    context, record = first_record(kernel.home)
    kernel.home.put(context, [Record(scenario=record.scenario, **parts)])


def list_misses(kernel: Any) -> list[Scenario]:
    """Return a list of what comes on the worklist of a kernel's store."""
    missed: list[Scenario] = []
    kernel.home.miss = lambda _, scenario, launches: missed.append(scenario)
    return missed
