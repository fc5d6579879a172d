"""A config that pruning leaves out of a launch never runs in it, whatever chose it."""

import functools
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.processes import in_own_process

from dejavu_cache import Pow2, cached_autotune
from dejavu_cache.model.record import Failure, Measurement, Record
from dejavu_cache.model.scenario import now
from dejavu_cache.policy import Policy
from dejavu_cache.runtime import options
from dejavu_cache.runtime.autotuner import CachedAutotuner
from dejavu_cache.runtime.declaration import Pruning
from dejavu_cache.triton_internals.config_names import describe

pretended = in_own_process(TRITON_INTERPRET="0", DEJAVU_CACHE_URL="memory://")

BLOCKS = (16, 32, 64, 128)
CONFIGS = [triton.Config({"B": block}) for block in BLOCKS]


@triton.jit
def row_sum(x, out, K: tl.constexpr, shift, B: tl.constexpr):
    """Sum K elements without a mask: right only where B divides K."""
    total = 0.0
    for first in range((K + B - 1) // B):
        total += tl.sum(tl.load(x + first * B + tl.arange(0, B)))
    tl.store(out, total + shift)
    tl.store(out + 1, B)


def only_divisors(configs: Sequence[Any], named: dict[str, Any], **more: Any) -> list[Any]:
    K = {**named, **more}["K"]
    return [config for config in configs if K % config.kwargs["B"] == 0]


def larger_is_faster(call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
    """Time a config by its block, which the kernel writes beside its result."""
    call()
    return [1.0 / larger_is_faster.out[1].item()] * 3  # type: ignore[attr-defined]


def make(**options: Any) -> Any:
    options = {
        "configs": CONFIGS,
        "key": ["K"],
        "buckets": {"K": Pow2()},
        "do_bench": larger_is_faster,
        "check": False,  # the block beside the result differs by design
        "prune_configs_by": {"early_config_prune": only_divisors},
        **options,
    }
    return cached_autotune(**options)(row_sum)


def run(kernel: Any, K: int) -> tuple[int, int]:
    """Return a launch's result, and the block that computed it."""
    x, out = torch.ones(4096), torch.zeros(2)
    larger_is_faster.out = out  # type: ignore[attr-defined]
    kernel[(1,)](x, out, K, 0.0)
    assert int(out[1]) == kernel.best_config.kwargs["B"]
    return int(out[0]), int(out[1])


@pytest.mark.parametrize("default", [CONFIGS[2], lambda named: CONFIGS[2], "of the policy"])
def test_a_default_that_is_left_out_gives_way_to_the_first_that_is_left(
    default: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(default, str):
        (path := tmp_path / "dejavu.toml").write_text('[[kernel]]\nmatch = "*"\ndefault.B = 64\n')
        monkeypatch.setattr(options, "current_policy", lambda: Policy.read(path))
        default = None
    kernel = make(mode="reuse", default=default)
    assert run(kernel, 96) == (96, 16)
    assert run(kernel, 64) == (64, 64)


def test_one_config_left_is_neither_benchmarked_nor_a_miss() -> None:
    for mode in ("tune", "reuse", "strict"):
        kernel = make(mode=mode, store="memory://")
        assert run(kernel, 80) == (80, 16)
        assert kernel.benchmarked == 0
        resolution = kernel.explain(torch.ones(4096), torch.zeros(2), 80, 0.0)
        assert resolution.final
        assert resolution.has_no_choice


def test_the_best_of_a_scenario_survives_a_launch_that_it_is_left_out_of() -> None:
    kernel = make()
    run(kernel, 64)
    record_of = kernel.home.get
    request = kernel.request(torch.ones(1), torch.ones(1), 64, 0.0)
    run(make(configs=[*CONFIGS, triton.Config({"B": 32}, num_warps=8)]), 96)
    found = record_of(request.context, request.scenario)
    assert found is not None
    assert found.record.winner is not None
    assert found.record.winner.config == describe(CONFIGS[2])


def test_what_a_tune_leaves_out_is_left_out_of_each_launch_that_prunes_otherwise(
    tmp_path: Path,
) -> None:
    """In later processes too, and a tune that may lose nothing measures the rest."""
    configs = [
        triton.Config({"B": block}, num_warps=warps, num_stages=stages)
        for block in BLOCKS[:3]
        for warps in (1, 2, 4, 8)
        for stages in range(1, 9)
    ]

    def measured(**options: Any) -> int:
        kernel = make(configs=configs, store=tmp_path.as_uri(), **options)
        assert [run(kernel, K)[1] for K in (96, 64)] == [32, 64]
        return int(kernel.benchmarked)

    few = measured()
    assert few < len(configs)
    assert measured() == 0
    kernel = make(configs=configs, store=tmp_path.as_uri())
    request = kernel.request(torch.ones(1), torch.ones(1), 96, 0.0)
    (record,) = kernel.home.records(request.context)
    best = next(config for config in record.by_config if config.params["B"] == 32)
    failure = Failure(kind="wrong", reason="found later")
    lost = Measurement(config=best, failure=failure, at=now() + timedelta(seconds=1))
    kernel.home.put(request.context, [Record(scenario=record.scenario, measurements=(lost,))])
    assert record.omits(request.declared.digest, 0.01)
    assert not next(kernel.home.records(request.context)).omits(request.declared.digest, 0.01)
    assert measured(tune_loss=0) >= len(configs) - few > 0


@pytest.mark.parametrize(
    "pruning",
    [
        lambda prune: {"early_config_prune": prune},
        lambda prune: {"perf_model": lambda K, B, **more: len(prune([], {"K": K})), "top_k": 2},
    ],
    ids=["early_config_prune", "perf_model"],
)
def test_without_buckets_pruning_is_asked_as_often_as_by_triton(pruning: Any) -> None:
    asked: list[int] = []

    def count(configs: Sequence[Any], named: dict[str, Any], **more: Any) -> list[Any]:
        asked.append({**named, **more}["K"])
        return list(configs[1:])

    counts = []
    for autotune in (triton.autotune, functools.partial(cached_autotune, check=False)):
        kernel = autotune(
            configs=CONFIGS,
            key=["K"],
            do_bench=lambda call, quantiles: [1.0] * 3,
            prune_configs_by=pruning(count),
        )(row_sum)
        asked.clear()
        for step, K in enumerate((64, 96, 64, 96, 128, 64)):
            x = torch.ones(4096 + step, dtype=torch.float16 if step > 3 else torch.float32)
            kernel[(1,)](x, torch.zeros(2), K, 0.5 * step)
        counts.append(list(asked))
    assert counts[0] == counts[1]


def test_a_subclass_that_prunes_itself_is_asked_again_where_what_it_reads_differs() -> None:
    class Pruned(CachedAutotuner):
        def prune_configs(self, kwargs: dict[str, Any]) -> list[Any]:
            asked.append(self.nargs["n"])  # type: ignore[index]
            return [*self.configs[: 1 + kwargs["s"] % 2]]

    asked: list[int] = []
    kernel = Pruned(row_sum, row_sum.arg_names, CONFIGS, ["K"], None, None)
    kernel.arg_names = ["x", "n", "m", "y"]
    pruning = Pruning(kernel)
    for x, n, s in ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 2, 1), (1, 2, 2)):
        pruned = pruning.answer(0, [x, n, 0, None], {"s": s})
        assert len(pruned.configs) == 1 + s % 2
    assert asked == [1, 2, 2]


def test_pruning_per_scenario_is_asked_once_for_a_bucket() -> None:
    asked = []

    def count(configs: Sequence[Any], named: dict[str, Any], **more: Any) -> list[Any]:
        asked.append(named["K"])
        return list(configs[:2])

    kernel = make(prune_configs_by={"early_config_prune": count}, prune_per="scenario")
    for K in (64, 96, 80, 64):
        run(kernel, K)
    assert asked == [64]


def test_configs_that_pruning_makes_itself_are_told_apart() -> None:
    def remade(configs: Sequence[Any], named: dict[str, Any], **more: Any) -> list[Any]:
        blocks = [block for block in BLOCKS if named["K"] % block == 0]
        return [triton.Config({"B": block}, num_warps=2) for block in blocks]

    kernel = make(prune_configs_by={"early_config_prune": remade})
    for K, best in ((64, 64), (96, 32), (64, 64)):
        assert run(kernel, K) == (K, best)
        assert kernel.best_config.num_warps == 2


def test_an_argument_that_cannot_be_compared_asks_at_every_launch() -> None:
    class Odd(int):
        pass

    kernel = make(key=["shift"], buckets={"shift": Pow2()})
    for K, best in ((64, 64), (96, 32), (64, 64)):
        assert run(kernel, Odd(K)) == (K, best)


@pretended
def test_the_hot_path_runs_what_pruning_leaves_each_launch() -> None:
    """Thousands of random launches, of any mode and mostly by the hot path."""
    from support.pruned_launches import launch_at_random

    counts = launch_at_random(seed=7, count=3000)
    assert counts["left out"] == 0
    assert counts["hot"] > 1000, "most launches take the hot path"


@pretended
def test_the_hot_path_is_left_only_where_pruning_may_answer_otherwise() -> None:
    """And a launcher that was kept prunes once a config is added."""
    from support.pruned_launches import launch_after_changes, launch_with_changes

    assert {*launch_with_changes(count=40).values()} == {0}
    # Of 64, 80 and 96, which the best two of more configs divide best.
    assert launch_after_changes() == [32, 32, 32] * 2 + [64, 64, 32] * 4


def test_configs_that_are_assigned_while_a_launch_prunes_are_chosen_from_afterwards() -> None:
    """Two configs of one place would else pass for each other."""
    pruning, assigned = threading.Event(), threading.Event()

    def wait(configs: Sequence[Any], named: dict[str, Any], **more: Any) -> list[Any]:
        left = list(configs)
        if not assigned.is_set():
            pruning.set()
            assigned.wait(240)
        return left

    kernel = make(prune_configs_by={"early_config_prune": wait}, configs=CONFIGS[:2])
    launcher = threading.Thread(target=run, args=(kernel, 128))
    launcher.start()
    assert pruning.wait(240)
    kernel.configs = CONFIGS[2:]
    assigned.set()
    launcher.join()
    for _ in range(2):
        assert run(kernel, 128) == (128, 128)
