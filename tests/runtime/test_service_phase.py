"""While a process serves, no launch benchmarks, and none compiles where a kernel stands in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import triton
from support.processes import in_own_process

from dejavu_cache import cached_autotune, serving, warmup
from dejavu_cache.model.record import Pin, Record
from dejavu_cache.model.scenario import now
from dejavu_cache.system.notices import logger

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


class Silent:
    """Stands between an autotuner and its function, and returns nothing."""

    def __init__(self, fn: Any) -> None:
        self.fn, self.arg_names = fn, fn.arg_names

    def run(self, *args: Any, **kwargs: Any) -> None:
        self.fn.run(*args, **kwargs)


@pretended
def test_a_function_that_returns_nothing_is_launched_once() -> None:
    make, _ = count_work()
    from support.pretended_gpu import launch

    silent = make("reuse")
    silent.fn = Silent(silent.fn)
    launch(silent, 32)
    with serving():
        assert len(launch(silent, 32)) == 1
        assert len(launch(silent, 32, dtype=torch.float16)) == 1
