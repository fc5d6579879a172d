"""Programs read and write an autotuner's attributes, and its hooks and listeners hear of all."""

import copy
import pickle
from contextlib import suppress
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.addition import Bench
from support.processes import in_own_process

from dejavu_cache import Pow2, cached_autotune
from dejavu_cache.runtime.choices import ConfigCache
from dejavu_cache.settings import Mode
from dejavu_cache.stores import MemoryStore

CONFIGS = [triton.Config({"BLOCK": block}) for block in (64, 128, 256)]

pretended = in_own_process(TRITON_INTERPRET="0", DEJAVU_CACHE_CHECK="0")


@triton.jit
def add(x, out, M, A, K, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < M) + A, mask=at < M)


def make(decorate: Any = cached_autotune, **options: Any) -> tuple[Any, Bench]:
    bench = Bench(range(1, 100))
    options = {"configs": list(CONFIGS), "key": ["M", "K", "A"], "do_bench": bench, **options}
    return decorate(**options)(add), bench


def launch(kernel: Any, M: int = 512, A: int = 3) -> None:
    x, out = torch.ones(512), torch.zeros(512)
    kernel[lambda meta: (triton.cdiv(M, meta["BLOCK"]),)](x, out, M, A, 7)
    assert torch.equal(out[:M], x[:M] + A)


def test_the_cache_has_tritons_keys_and_timings() -> None:
    theirs, ours = make(triton.autotune)[0], make()[0]
    for kernel in (theirs, ours):
        launch(kernel)
        launch(kernel, M=100)
    assert list(ours.cache) == list(theirs.cache)
    assert list(map(str, ours.cache.values())) == list(map(str, theirs.cache.values()))
    assert len(ours.configs_timings) == len(theirs.configs_timings) == 3
    assert ours.nargs is theirs.nargs is None


def test_a_kept_launcher_calls_a_run_that_is_wrapped_later() -> None:
    kernel, _ = make()
    kept = kernel[(8,)]
    original, grids = kernel.run, []

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        grids.append(kwargs["grid"])
        return original(*args, **kwargs)

    kernel.run = wrapped
    x, out = torch.ones(512), torch.zeros(512)
    kept(x, out, 512, 3, 7)
    assert grids == [(8,)]
    assert torch.equal(out, x + 3)
    del kernel.run
    kept(x, out, 512, 4, 7)
    assert grids == [(8,)]
    assert torch.equal(out, x + 4)


def test_timings_of_an_assigned_benchmark_function_are_not_those_of_the_default_one() -> None:
    kernel, bench = make(do_bench=None)
    kernel.do_bench = bench
    launch(kernel)
    assert bench.calls == 3
    assert kernel.context.problem.method.startswith("custom:")
    other, _ = make(do_bench=None)
    launch(other)
    assert (other.benchmarked, other.context.problem.method) == (3, "wall")


def test_a_programs_config_in_a_bucket_is_for_its_key_alone() -> None:
    kernel, _ = make(buckets={"M": Pow2()})
    kernel.cache[(300, 7, 3, "torch.float32", "torch.float32")] = CONFIGS[2]
    for _ in range(2):
        launch(kernel, M=301)
        assert kernel.best_config is not CONFIGS[2]
        launch(kernel, M=300)
        assert kernel.best_config is CONFIGS[2]


def test_copies_do_not_disturb_each_other() -> None:
    kernel, bench = make()
    launch(kernel)
    assert bench.calls == 3
    shallow, deep = copy.copy(kernel), copy.deepcopy(kernel)
    for twin in (shallow, deep):
        launch(twin)
        assert bench.calls == 3
    shallow.configs = [CONFIGS[2]]
    shallow.cache = {}
    deep.cache = {next(iter(deep.cache)): CONFIGS[1]}
    for twin, block in ((shallow, 256), (deep, 128), (kernel, 64)):
        launch(twin)
        assert twin.best_config.kwargs["BLOCK"] == block
    for twin in (copy.copy(kernel.cache), pickle.loads(pickle.dumps(kernel.cache))):
        assert type(twin) is dict
        assert twin == kernel.cache


def test_an_entry_of_the_cache_is_the_programs_unless_it_was_reported() -> None:
    cache = ConfigCache({"a": 1})
    assert (cache.has_choices, cache.choice("a")) == (True, 1)
    cache.report("a", 2)
    assert cache["a"] == 1
    cache.report("b", 3)
    assert (cache["b"], cache.choice("b")) == (3, None)
    cache["b"] = 4
    assert cache.choice("b") == 4
    del cache["a"], cache["b"]
    cache.report("c", 4)
    cache |= {"c": 5}
    assert cache.choice("c") == 5
    assert cache.setdefault("d", 6) == cache.choice("d") == 6
    cache.clear()
    assert not cache.has_choices


@pretended
def test_launches_follow_random_changes_as_tritons_do() -> None:
    """Each change is made to both kinds of autotuner, with a launch on a pretended GPU after it."""
    from support.mutated_autotuners import compare_at_random

    assert [text for seed in range(12) for text in compare_at_random(seed, 60)] == []


@pytest.mark.parametrize("in_place", [True, False])
def test_keys_that_change_tell_launches_apart_as_tritons_do(in_place: bool) -> None:
    counts = []
    for decorate in (triton.autotune, cached_autotune):
        kernel, bench = make(decorate, key=["M"])
        launch(kernel, A=3)
        if in_place:
            kernel.keys.append("A")
        else:
            kernel.keys = ["M", "A"]
        for A in (3, 4, 4):
            launch(kernel, A=A)
        counts.append((bench.calls, [key[:2] for key in kernel.cache][-2:]))
    assert counts == [(9, [(512, 3), (512, 4)])] * 2


@pytest.mark.parametrize("decorate", [cached_autotune, triton.autotune])
def test_hooks_can_read_the_launchs_arguments_from_the_autotuner(decorate: Any) -> None:
    seen: list[Any] = []

    def note(*_: Any, **__: Any) -> None:
        seen.append(kernel.nargs["M"])

    configs = [triton.Config({"BLOCK": block}, pre_hook=note) for block in (64, 128)]
    kernel, _ = make(decorate, configs=configs, pre_hook=note, post_hook=note)
    launch(kernel)
    launch(kernel, M=100)
    assert {*seen} == {512, 100}
    assert kernel.nargs is None


@pytest.mark.parametrize("decorate", [cached_autotune, triton.autotune])
def test_timings_that_are_numbers_are_reported_as_numbers(decorate: Any) -> None:
    kernel, _ = make(decorate, do_bench=lambda call, quantiles: call() or 1.5)
    launch(kernel)
    assert list(kernel.configs_timings.items()) == [(config, 1.5) for config in CONFIGS]


@pytest.mark.parametrize("decorate", [cached_autotune, triton.autotune])
def test_pruning_that_leaves_nothing_raises_tritons_kind_of_error(decorate: Any) -> None:
    pruning = {"perf_model": lambda **_: 1.0, "top_k": 0}
    kernel, _ = make(decorate, prune_configs_by=pruning)
    with pytest.raises(ValueError, match=r"is empty|empty sequence|leaves no config"):
        launch(kernel)


@pretended
def test_a_single_config_is_not_pruned() -> None:
    from support.pretended_gpu import launch, make

    pruning = {"perf_model": lambda **_: 1.0, "top_k": "no number"}
    for decorate in (triton.autotune, cached_autotune):
        assert launch(make(decorate, (16,), prune_configs_by=pruning), 3) == [16]


@pytest.mark.parametrize("is_adopted", [False, True])
def test_a_config_added_in_place_that_no_record_may_hold_leaves_its_kernel_to_triton(
    is_adopted: bool,
) -> None:
    store = MemoryStore()
    kernel, bench = make(store=store)
    kernel.is_adopted = is_adopted
    launch(kernel)
    kernel.configs.append(triton.Config({"BLOCK": 512}, ir_override="other.ttir"))
    launch(kernel, M=100)
    assert kernel.mode is Mode.OFF
    assert bench.calls == 7, "Triton measures all four"
    assert len(kernel.cache) == 2
    recorded = [
        measurement.config
        for record_set in store.record_sets()
        for record in record_set.records
        for measurement in record.measurements
    ]
    assert len(recorded) == 3


@pretended
def test_hooks_hear_of_configs_and_launches_that_fail_as_they_do_from_triton() -> None:
    from support import pretended_gpu
    from triton.runtime.errors import OutOfResources

    compile_pretended = triton.compiler.compile

    def compile_or_fail(src: Any, *arguments: Any, **options: Any) -> Any:
        if src.constants[(2,)] == 32:
            raise OutOfResources(2, 1, "shared memory")
        return compile_pretended(src, *arguments, **options)

    def heard_by(decorate: Any, *arguments: Any, **options: Any) -> list[Any]:
        heard: list[Any] = []

        def before(named: dict[str, Any], reset_only: bool = False) -> None:
            heard.extend([] if reset_only else [named["B"]])

        def after(named: dict[str, Any], exception: Exception | None) -> None:
            heard.append((named["B"], type(exception).__name__))

        kernel = pretended_gpu.make(decorate, pre_hook=before, post_hook=after, **options)
        with suppress(TypeError):
            kernel[(1,)](*arguments)
        return heard

    triton.compiler.compile = compile_or_fail
    for arguments in ((torch.empty(64), 3), (torch.empty(64),)):  # the last one lacks an argument
        theirs = heard_by(triton.autotune, *arguments)
        assert sorted(theirs, key=str) == sorted(heard_by(cached_autotune, *arguments), key=str)
        failed = (32, "OutOfResources") if len(arguments) == 2 else (16, "TypeError")
        assert failed in theirs


@pretended
def test_the_listener_gets_the_jit_function_and_the_timings() -> None:
    """Tools read the function's `cache_key` and `fn`; one config that is left is no choice."""
    from support.pretended_gpu import launch, make

    def prune(configs: list[Any], named: dict[str, Any], **_: Any) -> list[Any]:
        return configs if named["n"] == 5 else configs[:1]

    events: list[dict[str, Any]] = []
    triton.knobs.autotuning.listener = lambda **event: events.append(event)
    for is_known in (False, True):
        kernel = make(cached_autotune, prune_configs_by={"early_config_prune": prune})
        launch(kernel, 5, 5, 6)
        (event,) = events
        events.clear()
        assert event["fn"] is kernel.fn
        assert event["fn"].cache_key
        assert event["key"] == (5, "torch.float32")
        assert event["best_config"] in event["configs_timings"]
        assert [len(times) for times in event["configs_timings"].values()] == [3, 3, 3]
        assert (event["cache_hit"], event["duration"] is None) == (is_known, is_known)
