"""What happens beside a launch: forks, hooks and listeners; on a pretended GPU."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest
import torch
import triton
from support.processes import in_fork, in_own_process
from support.records import context, record

from dejavu_cache import cached_autotune
from dejavu_cache.stores import MemoryStore
from dejavu_cache.system.fork_lock import ForkLock

pretended = in_own_process(TRITON_INTERPRET="0", DEJAVU_CACHE_CHECK="0")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pretended
def test_a_child_that_was_forked_while_a_thread_tuned_can_tune() -> None:
    from support.pretended_gpu import launch, make

    started, finish = threading.Event(), threading.Event()

    def bench(kernel_call: Any, quantiles: Any) -> list[float]:
        kernel_call()
        started.set()
        finish.wait()
        return [1.0] * 3

    def tune_other() -> None:
        launch(other, 4)
        assert other.benchmarked == 3

    tuned, other = make(cached_autotune, do_bench=bench), make(cached_autotune)
    thread = threading.Thread(target=launch, args=(tuned, 3))
    thread.start()
    started.wait()
    in_fork(tune_other)
    finish.set()
    thread.join()
    assert tuned.benchmarked == 3


@in_own_process(TRITON_INTERPRET="1")
def test_a_child_tunes_without_the_threads_of_torch_that_it_has_lost() -> None:
    from support.addition import make
    from support.kernels import launch

    kernel = make(store="memory://")
    torch.set_num_threads(2)
    torch.ones(1 << 22).sum()
    in_fork(lambda: launch(kernel))


@pretended
def test_a_child_finds_what_threads_of_its_parent_held_free() -> None:
    """And the thread's own locks and leases stay."""
    lock, mine, store = ForkLock(), ForkLock(), MemoryStore()
    held, finish = threading.Event(), threading.Event()

    def lease() -> Any:
        return store.lease(context(), record().scenario, wait=0)

    def hold() -> None:
        with lock, lease():
            held.set()
            finish.wait()

    def take() -> None:
        with lock, mine, lease() as leased:
            assert leased

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    with mine:  # this thread's own lock is still its own in the child
        in_fork(take)
    with lease() as leased:
        assert not leased
    finish.set()
    thread.join()


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
