"""Modes and phases decide what a launch of an unknown scenario does, and `explain` says it."""

import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest
import torch
import triton
from support.addition import CONFIGS, Bench, Spy, make
from support.kernels import launch
from support.processes import in_own_process

from dejavu_cache import Exact, Resolution, ScenarioNotTuned, cached_autotune, serving, warmup
from dejavu_cache.model.record import Pin, Record
from dejavu_cache.model.scenario import now
from dejavu_cache.model.worth import MissCount
from dejavu_cache.runtime import resolver
from dejavu_cache.stores import MemoryStore
from dejavu_cache.system.notices import logger, whoami


@pytest.mark.parametrize("mode", ["tune", "reuse"])
def test_a_program_with_ever_new_sizes_keeps_a_limited_number_of_choices(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    for module in ("choices", "resolver"):
        monkeypatch.setattr(f"dejavu_cache.runtime.{module}.MOST_CHOICES", 3)
    kernel = make(mode=mode, store="memory://")
    for n in range(1, 9):  # without work
        kernel[(0,)](torch.ones(n), torch.ones(n), n)
    assert len(kernel._choices._idle) <= 3
    for _ in range(2):
        for n in range(1, 9):
            launch(kernel, n)
            assert len(kernel._choices.kept) <= 3
    assert len(kernel.resolver(None)._missed) <= 3
    assert kernel.benchmarked == (8 * len(CONFIGS) if mode == "tune" else 0)


@pytest.mark.parametrize(
    ("times", "options", "block"),
    [
        ((3.0, 1.0, 2.0), {}, 32),
        ((1.1, 1.0, 2.0), {}, 16),  # a single record makes little of it
        ((3.0, 1.0, 2.0), {"buckets": {"n": Exact()}}, 16),  # only exact will do
    ],
)
def test_reuse_takes_what_is_surely_faster_by_the_records_of_others(
    times: tuple[float, ...], options: dict[str, Any], block: int
) -> None:
    launch(make(Bench(times)), 128)
    bench = Bench()
    kernel = make(bench, mode="reuse", **options)
    launch(kernel, 256)
    assert (bench.calls, kernel.best_config.kwargs) == (0, {"BLOCK": block})


@pytest.mark.parametrize("mode", ["tune", "reuse"])
def test_a_default_that_is_not_declared_gives_way_to_the_first_config(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    kernel = make(bench, mode=mode, default=lambda named: triton.Config({"BLOCK": 128}))
    for n in (100, 200):
        launch(kernel, n)
        assert kernel.best_config is CONFIGS[1 if mode == "tune" else 0]
    assert bench.calls == (6 if mode == "tune" else 0)
    (warning,) = (text for text in caplog.messages if "declared" in text)
    assert "add_one: no declared config is its default (BLOCK: 128" in warning


def test_what_no_store_keeps_is_said_to_be_of_this_process_alone(tmp_path: Path) -> None:
    kernel = make(store=f"{tmp_path.as_uri()}?read_only=1")
    launch(kernel, 128)
    assert {chosen.resolution.store for chosen in kernel._choices.kept.values()} == {"memory://"}


def test_strict_names_the_nearest_record_and_what_differs() -> None:
    kernel = make(mode="strict")
    with pytest.raises(ScenarioNotTuned, match="no record of this kernel exists"):
        launch(kernel, 100)
    launch(make(), 128)
    with pytest.raises(ScenarioNotTuned, match=r"args\.n: 128 recorded, 256 wanted"):
        launch(kernel, 256)
    launch(kernel, 128)


def test_capturing_a_graph_never_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dejavu_cache.runtime.resolver.is_capturing_graph", lambda: True)
    bench = Bench()
    kernel = make(bench)
    launch(kernel, 100)
    assert (bench.calls, kernel.best_config) == (0, CONFIGS[0])


def test_explain_runs_and_writes_nothing(tmp_path: Path) -> None:
    kernel = make(store=tmp_path / "store")
    resolution = kernel.explain(torch.ones(1), torch.ones(1), 100)
    assert isinstance(resolution, Resolution)
    assert (resolution.how, resolution.config) == ("default", CONFIGS[0])
    assert "unmeasured configs: 3" in str(resolution)
    assert not (tmp_path / "store").exists()
    launch(kernel, 100)
    resolution = kernel.explain(torch.ones(100), torch.ones(100), 100)
    assert (resolution.how, resolution.store) == ("tuned", (tmp_path / "store").as_uri())
    assert "BLOCK: 32" in str(resolution)
    assert resolution.context.environment.triton == triton.__version__


def test_explain_tells_what_was_measured_and_from_what_is_predicted(tmp_path: Path) -> None:
    launch(make(store=tmp_path), 128)
    arguments = torch.ones(1), torch.ones(1)
    text = str(make(store=tmp_path).explain(*arguments, 128))
    assert "time: 1 ms (1 to 1)" in text
    assert re.search(rf"measured: \d+ seconds ago, 20.* UTC, by {re.escape(whoami())}", text)
    assert re.search(r"runner-up: BLOCK=64.*, 2\.00x", text)
    assert re.search(r"default: BLOCK=16.*, 3\.00x", text)
    near = make(store=tmp_path, mode="reuse").explain(*arguments, 256)
    assert (near.how, near.predicted_from) == ("predicted", 1)
    assert 0.5 < near.gain < 0.7, "it took a third of the default's time at n=128"
    assert [str(each) for each in near.differences] == ["args.n: 128 recorded, 256 wanted"]
    assert near.recorded_for.args["n"] == 128
    assert "time: 1 ms" in str(near)
    found = r"found:  predicted from 1 record to save \d\d% of the default's time in"
    assert re.search(found, str(near))
    launch(make(Bench([1.1, 1.0, 2.0]), store=(little := tmp_path / "little")), 128)
    far = make(store=little, mode="reuse").explain(*arguments, 128 * 64)
    assert far.how == "default"
    assert "time: " not in str(far)
    assert "the nearest record is at distance 6" in str(far)


def test_explain_tells_the_truth_in_mode_off(tmp_path: Path) -> None:
    launch(make(store=tmp_path), 128)
    bench = Bench([1.0, 2.0, 3.0])
    kernel = make(bench, store=tmp_path, mode="off")
    arguments = torch.ones(1), torch.ones(1), 128
    before = kernel.explain(*arguments)
    assert (before.by_triton, before.config, before.store, before.final) == (True, None, None, True)
    assert "Triton chooses it at the first launch" in str(before)
    (records,) = tmp_path.rglob("*.json")
    text = records.read_text()
    launch(kernel, 128)
    assert (bench.calls, records.read_text()) == (3, text), "it neither reads nor writes"
    after = kernel.explain(*arguments)
    assert (after.by_triton, after.config) == (True, kernel.best_config)
    assert after.config is CONFIGS[0]  # the record's winner is another one
    assert kernel.look_up(*arguments).config is CONFIGS[0]


pretended = in_own_process(TRITON_INTERPRET="0", DEJAVU_CACHE_SHIPPED="0", DEJAVU_CACHE_CHECK="0")


def count_work() -> tuple[Callable[..., Any], Callable[[], tuple[int, int]]]:
    """Return a decorator, and what tells how often was benchmarked and compiled since."""
    import support.pretended_gpu  # replaces the driver

    compile_pretended, counts = triton.compiler.compile, Counter[str]()
    assert support.pretended_gpu.LAUNCHED == []

    def compile_and_count(*arguments: Any, **options: Any) -> Any:
        counts["compiled"] += 1
        return compile_pretended(*arguments, **options)

    def bench(kernel_call: Any, quantiles: Any) -> list[float]:
        counts["benchmarked"] += 1
        kernel_call()
        return [1.0] * 3

    def take() -> tuple[int, int]:
        taken = counts["benchmarked"], counts["compiled"]
        counts.clear()
        return taken

    triton.compiler.compile = compile_and_count

    def make(mode: Any, **options: Any) -> Any:
        return support.pretended_gpu.make(cached_autotune, do_bench=bench, mode=mode, **options)

    return make, take


@pretended
def test_launches_that_miss_are_reported_whenever_they_have_doubled() -> None:
    from support.pretended_gpu import launch, make

    reports, clock = list[int](), [0.0]
    MemoryStore.miss = lambda store, *miss: reports.append(miss[-1].launches)  # type: ignore
    time.monotonic = lambda: clock[0]
    kernel = make(cached_autotune, mode="reuse", store="memory://")
    for clock[0] in (0, 1, 2, 3, 6, 17, 18, 19, 20, 21, 38):  # looked up at 0, 6, 17 and 38
        launch(kernel, 3)
    clock[0] = 100
    both, note_miss = Barrier(2), resolver.Resolver.note_miss
    resolver.Resolver.note_miss = lambda *miss: (both.wait(10), note_miss(*miss))[1]  # type: ignore
    threads = [Thread(target=launch, args=(kernel, 3)) for _ in range(2)]
    for step in (Thread.start, Thread.join):
        [*map(step, threads)]
    assert reports[::2] == [1, 4, 6], "each tier is told"
    kernel.resolver(None).finish(1.0)
    assert reports[::2] == [1, 4, 6, 2], "the program's end leaves out none"


def test_what_a_tune_saves_is_predicted_without_another_read(tmp_path: Path) -> None:
    launch(make(store=str(tmp_path)), 100)
    kernel, reports = make(mode="reuse", store=str(tmp_path)), list[MissCount]()
    kernel.home.remote, kernel.home.miss = True, lambda *miss: reports.append(miss[-1])
    launch(kernel, 200)
    kernel.look_up(*[torch.zeros(300)] * 2, 300)
    kernel.home.get = None
    resolver._reporter.finish(60.0)
    assert None not in (saving for _, saving in reports)


@pretended
def test_an_untuned_launch_runs_the_default_and_compiles_only_what_must_be() -> None:
    make, take = count_work()
    from support.pretended_gpu import launch

    said: list[str] = []
    logger.warning = lambda text, *values, **_: said.append(text % values)  # type: ignore
    tuned, off = make("tune"), make("off")
    with warmup():
        launch(tuned, 32)
    take()
    phase = serving()
    assert launch(tuned, 32, 48, 48, 64) == [16] * 4
    assert launch(off, 32, 48) == [16, 16], "Triton tunes nothing either"
    assert take()[0] == 0
    with warmup():
        assert len(launch(tuned, 80)) > 1
        assert take()[0] == 3
    launch(tuned, 32, dtype=torch.float16)  # nothing in memory fits these arguments
    assert take() == (0, 1)
    assert any("is compiled while requests wait" in line for line in said)
    phase.end()
    launch(tuned, 96)
    assert take()[0] == 3


@pretended
def test_a_recorded_config_that_is_not_compiled_gives_way_to_one_that_is() -> None:
    make, take = count_work()
    from support.pretended_gpu import launch

    kernel = make("reuse")
    first = launch(kernel, 32)
    request = kernel.request(torch.empty(64), 112)
    unlike = next(
        config for config in request.declared if request.declared[config].kwargs["B"] != first[0]
    )
    pin = Pin(config=unlike, by="somebody", at=now())
    kernel.home.put(request.context, [Record(scenario=request.scenario, pin=pin)])
    take()
    with serving():
        assert (launch(kernel, 112), take()) == (first, (0, 0))
    assert launch(make("reuse"), 112) == [unlike.params["B"]]


@pretended
def test_a_hooks_own_kernel_is_never_refused() -> None:
    make, _ = count_work()
    from support.pretended_gpu import LAUNCHED, body, launch

    cleared, scratch = triton.jit(body), [torch.empty(64)]

    def clear_scratch(arguments: Any) -> None:
        cleared[(1,)](scratch[0], 0, B=8)

    configs = [triton.Config({"B": block}, pre_hook=clear_scratch) for block in (16, 32)]
    hooked = make("reuse", configs=configs)
    launch(hooked, 32)
    scratch[0] = torch.empty(64, dtype=torch.float16)  # it is not compiled for that yet
    with serving():
        LAUNCHED.clear()
        launch(hooked, 32)
    assert [kernel.constant("B") for kernel in LAUNCHED] == [8, 16]


class Silent(Spy):
    """Stands between an autotuner and its function, and returns nothing."""

    def run(self, *args: Any, **kwargs: Any) -> None:
        self.fn.run(*args, **kwargs)


@pretended
def test_a_function_that_returns_nothing_is_launched_once() -> None:
    make, _ = count_work()
    from support.pretended_gpu import launch

    silent = make("reuse")
    silent.fn = Silent(fn=silent.fn)
    launch(silent, 32)
    with serving():
        assert len(launch(silent, 32)) == 1
        assert len(launch(silent, 32, dtype=torch.float16)) == 1
