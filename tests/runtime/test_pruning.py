"""A config that pruning leaves out of a launch never runs in it, whatever chose it."""

from __future__ import annotations

import functools
import threading
from collections import ChainMap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.processes import in_own_process

from dejavu_cache import Edges, Multiple, Pow2, ScenarioNotTuned, cached_autotune, open_store
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


def run(kernel: Any, K: int, *, by_name: bool = False, shift: float = 0.0) -> tuple[int, int]:
    """Return a launch's result, and the block that computed it."""
    x, out = torch.ones(4096), torch.zeros(2)
    larger_is_faster.out = out  # type: ignore[attr-defined]
    if by_name:
        kernel[(1,)](x, out, K=K, shift=shift)
    else:
        kernel[(1,)](x, out, K, shift)
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
        assert resolution.only


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


def of_x_then_n_or_m(named: Any, more: Any) -> Any:
    return named["x"], named["n"] if named["x"] else named["m"]


READERS: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda named, more: named.get("N", "n" in named and len(named)), ""),
    (lambda named, more: sorted(named), ""),
    (lambda named, more: ChainMap(more, named)["n"], "n"),
    (lambda named, more: [named[name] for name in "nm"], "nm"),
    (lambda named, more: named.update(more) or named["n"], "n"),
    (lambda named, more: {**named}["n"], "xnm"),
    (of_x_then_n_or_m, "xn"),
    (lambda named, more: named["y"] is None, ""),
]


def pruning_of(**functions: Any) -> Pruning:
    kernel = make(prune_configs_by=functions)
    kernel.arg_names = ["x", "n", "m", "y"]
    return Pruning(kernel)


def pruning_with(reader: Callable[[Any, Any], Any]) -> Callable[..., int]:
    """Return a function that launches twice, and says how often a pruning by `reader` was asked."""
    asked = 0

    def prune(configs: Sequence[Any], named: dict[str, Any], **more: Any) -> list[Any]:
        nonlocal asked
        asked += 1
        reader(named, more)  # with `more`, all that is given by name
        return list(configs)

    def count(*args: Any, **kwargs: Any) -> int:
        before = asked
        for _ in range(2):
            pruning.answer(0, args, {"grid": (1,), "warmup": False, **kwargs})
        return asked - before

    pruning = pruning_of(early_config_prune=prune)
    return count


@pytest.mark.parametrize(("reader", "read"), READERS)
def test_a_bucket_asks_again_where_what_was_read_differs(reader: Any, read: str) -> None:
    asked = pruning_with(reader)
    assert asked(3, 3, 3, None, s=3) == 1
    for name in "xnms":
        other = {"x": 3, "n": 3, "m": 3, "s": 3, name: 5}
        again = asked(other["x"], other["n"], other["m"], None, s=other["s"])
        assert again == (name in f"{read}s"), name


STRIDED = torch.zeros(64, 64)
TENSORS = {
    "shape": torch.zeros(8, 4),
    "dtype": torch.zeros(4, 4, dtype=torch.float16),
    "strides": STRIDED[:4, :4],
    "alignment": STRIDED.view(-1)[1:17].view(4, 4),
    "nothing": torch.ones(4, 4),
}


def test_a_tensor_that_was_read_counts_by_all_but_its_elements() -> None:
    for launch in (lambda ask, y: ask(3, 3, 3, y), lambda ask, y: ask(3, 3, 3, y=y)):
        asked = pruning_with(lambda named, more: (more if "y" in more else named)["y"])
        assert launch(asked, torch.zeros(4, 4)) == 1
        for part, tensor in TENSORS.items():
            assert launch(asked, tensor) == (part != "nothing"), part
        assert launch(asked, None) == 1
        assert launch(asked, torch.nn.Parameter(torch.zeros(4, 4))) == 1


def test_a_model_is_asked_again_where_its_parameters_differ() -> None:
    asked: list[int] = []

    def by_some(n: int, B: int, **rest: Any) -> float:
        asked.append(n)
        return B

    def by_all(x: int, n: int, m: int, y: Any, s: int, B: int, **_: Any) -> float:
        return by_some(n, B)

    for model, read in ((by_some, "n"), (functools.partial(by_some), "xnms"), (by_all, "xnms")):
        pruning = pruning_of(perf_model=model, top_k=2)
        pruning.answer(0, [3, 3, 3, None], {"s": 3})
        for name in "xnms":
            asked.clear()
            other = {"x": 3, "n": 3, "m": 3, "s": 3, name: 5}
            pruning.answer(0, [other["x"], other["n"], other["m"], None], {"s": other["s"]})
            assert len(asked) == (len(CONFIGS) if name in read else 0), name


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


BUCKETS = [None, Pow2(), Pow2(min=64, max=128), Edges((1, 100)), Multiple(64)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_ran_is_always_what_pruning_left(data: st.DataObject, tmp_path: Path) -> None:
    """Draw rules, buckets, modes and orders of launches; results are right in all of them."""
    bucket = data.draw(st.sampled_from(BUCKETS))
    store = data.draw(st.sampled_from(["memory://", "folder"]))
    url = store if store == "memory://" else (tmp_path / f"{id(data)}").as_uri()
    home = open_store(url)  # one store for all kernels of the example
    sees_shift, keeps, drop = data.draw(
        st.tuples(st.booleans(), st.integers(1, 4), st.sets(st.sampled_from(BLOCKS), max_size=2))
    )

    def rule(configs: Sequence[Any], named: dict[str, Any], **more: Any) -> list[Any]:
        arguments = {**named, **more}
        left = only_divisors(configs, arguments)
        # Without a bucket, what is left for the first launch is left for all, as by Triton.
        if sees_shift and bucket and arguments["shift"] > 0:
            left = [config for config in left if config.kwargs["B"] not in drop] or left[:1]
        return left[::-1][:keeps]

    def fresh_kernel() -> Any:
        return make(
            buckets={} if bucket is None else {"K": bucket},
            prune_configs_by={"early_config_prune": rule},
            mode=data.draw(st.sampled_from(["tune", "tune", "reuse", "strict"])),
            default=data.draw(st.sampled_from([None, *CONFIGS])),
            store=home,
        )

    kernel = fresh_kernel()
    for _ in range(data.draw(st.integers(1, 8))):
        if data.draw(st.integers(0, 3)) == 0:
            kernel = fresh_kernel()
        K = 16 * data.draw(st.integers(1, 16))
        shift, by_name = data.draw(st.sampled_from([0.0, 1.0])), data.draw(st.booleans())
        try:
            total, block = run(kernel, K, by_name=by_name, shift=shift)
        except ScenarioNotTuned:
            assert kernel.mode.value == "strict"
            continue
        assert total == K + shift
        left = rule(CONFIGS, {"K": K, "shift": shift})
        assert block in [config.kwargs["B"] for config in left]


@pretended
def test_the_hot_path_runs_what_pruning_leaves_each_launch() -> None:
    """Thousands of random launches through the hot path of a pretended GPU."""
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
