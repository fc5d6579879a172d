"""An error in the author's code reaches the author as Triton raises it, without our calls."""

import itertools
import logging
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
import triton
import triton.language as tl
from support.addition import equal_times
from support.processes import in_own_process

from dejavu_cache import cached_autotune
from dejavu_cache.errors import KeyArgumentError
from dejavu_cache.stores import MemoryStore
from dejavu_cache.system.notices import logger


class AuthorError(Exception):
    """Raised by the author's code."""


def fail(*args: Any, **kwargs: Any) -> Any:
    raise AuthorError("as the author wrote it")


@triton.jit
def add_one(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


@triton.jit
def name_nothing(x, n, BLOCK: tl.constexpr):
    tl.store(x + nothing_has_this_name, 1)  # type: ignore[name-defined]  # noqa: F821


@triton.jit
def refuse_blocks(x, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK == 7, "BLOCK must be 7")


@triton.jit
def multiply_scalars(x, n, BLOCK: tl.constexpr):
    tl.store(x, tl.dot(n, n))


def configs(count: int = 2, **options: Any) -> list[triton.Config]:
    return [triton.Config({"BLOCK": 16 << place}, **options) for place in range(count)]


CASES: dict[str, dict[str, Any]] = {
    "a config's hook": {"configs": configs(pre_hook=fail)},
    "a hook before": {"pre_hook": fail},
    "a hook after": {"post_hook": fail},
    "pruning": {"prune_configs_by": {"early_config_prune": fail}},
    "a performance model": {"prune_configs_by": {"perf_model": fail, "top_k": 1}},
    "a benchmark function": {"do_bench": fail},
    "a grid": {"grid": fail},
    "a heuristic": {"kernel": triton.heuristics({"n": fail})(add_one), "args": ()},
    "a name that is not there": {"kernel": name_nothing},
    "a name, with one config": {"kernel": name_nothing, "configs": configs(1)},
    "a static assertion": {"kernel": refuse_blocks},
}


def error_of(
    decorate: Callable[..., Any], case: Mapping[str, Any], is_adopted: bool = False, **options: Any
) -> Exception:
    options = {"configs": configs(), "key": ["n"], "do_bench": equal_times, **case, **options}
    grid, kernel = options.pop("grid", (4,)), options.pop("kernel", add_one)
    args = options.pop("args", (64,))
    decorated = decorate(**options)(kernel)
    decorated.is_adopted = is_adopted
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever Triton raises
        decorated[grid](torch.zeros(64), *args)
    return raised.value


def files(error: Exception) -> list[str]:
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def our_calls(error: Exception) -> list[str]:
    """Return the files of this package's calls, without the one that Python 3.10 always keeps."""
    return [file for file in files(error) if "/dejavu_cache/" in file][sys.version_info < (3, 11) :]


@pytest.mark.parametrize("is_adopted", [False, True])
@pytest.mark.parametrize("what", CASES)
def test_the_error_is_tritons_and_has_no_frame_of_ours(
    what: str, is_adopted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = error_of(triton.autotune, CASES[what])
    ours = error_of(cached_autotune, CASES[what], is_adopted, store=MemoryStore())
    assert (type(ours), str(ours)) == (type(theirs), str(theirs))
    assert (type(ours.__cause__), ours.__context__) == (type(theirs.__cause__), ours.__cause__)
    assert files(ours)[-1] == files(theirs)[-1]
    assert not our_calls(ours)
    assert len(files(ours)) <= len(files(theirs))
    assert "tuned by Triton alone" not in caplog.text


def test_debug_messages_keep_the_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    error = error_of(cached_autotune, CASES["a benchmark function"], store=MemoryStore())
    assert our_calls(error)


def test_an_error_of_this_package_keeps_its_frames() -> None:
    error = error_of(cached_autotune, {"args": (object(),)}, store=MemoryStore())
    assert isinstance(error, KeyArgumentError)
    assert "/dejavu_cache/" in files(error)[-1]


@in_own_process(TRITON_INTERPRET="0")
def test_a_kernel_that_does_not_compile_raises_what_the_compiler_says() -> None:
    import importlib

    import support.pretended_gpu  # replaces the driver
    from triton.backends.compiler import GPUTarget

    pretend = triton.compiler.compile
    really = importlib.import_module("triton.compiler.compiler").compile
    assert support.pretended_gpu.LAUNCHED == []

    def check_and_pretend(src: Any, target: Any = None, options: Any = None, **_: Any) -> Any:
        really(src, target=GPUTarget("cuda", 90, 32), options=options)
        return pretend(src, target, options)

    triton.compiler.compile = check_and_pretend
    for kernel, kind in (
        (name_nothing, "CompilationError"),
        (refuse_blocks, "CompileTimeAssertionFailure"),
        (multiply_scalars, "CompilationError"),
    ):
        said = []
        for decorate in (triton.autotune, partial(cached_autotune, store=MemoryStore())):
            error = error_of(decorate, {"kernel": kernel})
            said.append((type(error).__name__, str(error), repr(error.__cause__)))
            assert not our_calls(error)
        assert said[0] == said[1]
        assert said[0][0] == kind


@in_own_process(TRITON_INTERPRET="0")
def test_no_launch_drops_the_error_of_a_signal_handler() -> None:
    """Neither while a recorded config compiles, nor on the hot path."""
    from support.compiling_gpu import pretend_gpu

    def make() -> Any:
        decorate = partial(cached_autotune, do_bench=equal_times, check=False, store=store)
        kernel = decorate(configs(), ["n"])(triton.jit(add_one.fn))
        return partial(kernel[(1,)], torch.zeros(64), 64)

    def meet_one_signal(owner: Any, name: str, launch: Callable[[], object]) -> None:
        really, calls = getattr(owner, name), itertools.count()

        def fail_at_first(*args: Any, **named: Any) -> Any:
            return really(*args, **named) if next(calls) else fail()

        with patch.object(owner, name, fail_at_first), pytest.raises(AuthorError):
            launch()

    pretend_gpu("cuda:90")
    signal.signal(signal.SIGUSR1, fail)
    store = MemoryStore()
    known = make()
    known()
    known()
    meet_one_signal(triton.compiler, "compile", make())
    meet_one_signal(triton.runtime.driver.active, "get_current_device", known)
