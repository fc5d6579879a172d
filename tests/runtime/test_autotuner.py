"""`cached_autotune` acts as `triton.autotune`, and benchmarks each config of a scenario once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.addition import CONFIGS, Bench, add_one, equal_times, make
from support.kernels import launch
from support.processes import fork_python

from dejavu_cache import Exact, Pow2


@pytest.mark.parametrize(
    ("options", "launches", "benchmarked"),
    [
        ({}, [(100,), (100,), (100,)], 3),
        ({}, [(100,), (101,), (100, "float16")], 9),
        ({"buckets": {"n": Pow2()}}, [(32,), (33,)], 3),
        ({"buckets": {"n": Pow2()}}, [(32,), (33,), (64,)], 6),
    ],
    ids=["one scenario", "another value or dtype", "one bucket", "two buckets"],
)
def test_a_scenario_is_benchmarked_once_per_config(
    options: dict[str, Any], launches: list[tuple[Any, ...]], benchmarked: int
) -> None:
    bench = Bench()
    kernel = make(bench, **options)
    for arguments in launches:
        launch(kernel, *arguments)
    assert bench.calls == benchmarked
    assert kernel.best_config.kwargs == {"BLOCK": 32}


@pytest.mark.parametrize(
    ("options", "benchmarked"),
    [
        ({}, 0),
        ({"buckets": {"n": Exact()}}, 0),  # what no bucket means
        ({"buckets": {"n": Pow2()}}, 3),
        ({"buckets": {"n": Pow2(max=16)}}, 3),
        ({"do_bench": equal_times}, 3),
    ],
    ids=["the same", "exact", "a bucket", "another bucket", "another method"],
)
def test_another_process_benchmarks_nothing_unless_it_means_something_else(
    options: dict[str, Any], benchmarked: int
) -> None:
    launch(make(), 100)
    again = make(**options)
    launch(again, 100)
    assert again.benchmarked == benchmarked
    how = again.explain(torch.ones(1), torch.ones(1), 100).how
    assert how == ("tuned" if benchmarked else "exact")


@pytest.mark.parametrize("outside", [True, False])
def test_it_stacks_with_heuristics_on_either_side(outside: bool) -> None:
    @triton.jit
    def kernel(x_ptr, y_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = (at < n) if not EVEN else (at >= 0)
        tl.store(y_ptr + at, tl.load(x_ptr + at, mask=inside) + 1, mask=inside)

    even = triton.heuristics({"EVEN": lambda args: args["n"] % 64 == 0})
    bench = Bench()
    stacked = (
        even(make(bench, fn=kernel, key=["n", "EVEN"])) if outside else make(bench, fn=even(kernel))
    )
    launch(stacked, 128)
    launch(stacked, 100)
    launch(stacked, 100)
    assert bench.calls == 6


def test_hooks_run_as_upstream_runs_them() -> None:
    """Configs read from a record run the hook of the declared config."""
    seen: list[str] = []

    def hooked_config(name: str) -> Any:
        return triton.Config(
            {"BLOCK": int(name)}, pre_hook=lambda args: seen.append(f"{name} n={args['n']}")
        )

    options: dict[str, Any] = {
        "configs": [hooked_config("16"), hooked_config("32")],
        "pre_hook": lambda args, reset_only=False: seen.append("reset" if reset_only else "pre"),
        "post_hook": lambda args, exception: seen.append("post"),
        "check": False,  # comparing results launches configs too
    }
    launch(make(**options), 100)
    assert seen == ["16 n=100", "pre", "post", "32 n=100", "pre", "post", "reset", "32 n=100"]
    seen.clear()
    launch(make(**options), 100)
    assert seen == ["32 n=100"]


@pytest.mark.skipif(
    not hasattr(add_one, "warmup"), reason="this Triton's interpreter has no warmup"
)
def test_warmup_is_upstreams() -> None:
    kernel = make()
    kernel.warmup(torch.float32, torch.float32, 100, grid=(1,))
    assert kernel.benchmarked == 0


def test_threads_tune_a_scenario_once() -> None:
    bench = Bench()
    kernel = make(bench)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(launch, [kernel] * 8, [100] * 8))
    assert bench.calls == 3


def test_what_tuning_found_is_printed_as_upstream_prints_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton.knobs.autotuning, "print", True)
    launch(make(), 100)
    assert "Triton autotuning for function add_one" in capsys.readouterr().out


def test_a_tune_draws_none_of_the_programs_random_numbers(tmp_path: Path) -> None:
    """In a process of its own, since other tests' threads may draw some."""
    code = """
        import random, sys
        from support.addition import CONFIGS, add_one
        from support.kernels import launch
        from dejavu_cache import cached_autotune
        kernel = cached_autotune(CONFIGS, ["n"], store=sys.argv[1])(add_one)
        state = random.getstate()
        launch(kernel, 100)
        print(kernel.benchmarked, random.getstate() == state)
    """
    done = fork_python(code, str(tmp_path), TRITON_INTERPRET="1")
    assert done.stdout.split() == [str(len(CONFIGS)), "True"]
