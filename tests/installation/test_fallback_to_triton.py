"""What `triton.autotune` accepts runs under `install()` too, whatever of the cache fails."""

import enum
import functools
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from support.addition import equal_times
from support.processes import in_own_process

from dejavu_cache import cached_autotune
from dejavu_cache.errors import ScenarioNotTuned
from dejavu_cache.installation.autotune_replacement import _TRITON_AUTOTUNE, install, uninstall
from dejavu_cache.runtime import autotuner, events, launch
from dejavu_cache.runtime.declaration import Declaration
from dejavu_cache.runtime.launch import Launch
from dejavu_cache.settings import current_settings
from dejavu_cache.system import notices
from dejavu_cache.triton_internals.versions import Autotuner

X = torch.ones(64)
BENCHMARKED: list[int] = []


class Number(enum.IntEnum):
    ONE = 1


class Color(enum.Enum):
    RED = 1


class Text(str):
    __slots__ = ()


@triton.jit
def copy_block(x, n: tl.constexpr, B: tl.constexpr, V: tl.constexpr = None):
    at = tl.arange(0, B) % 16
    tl.store(x + at, -tl.load(x + at))


def bench_falling(kernel_call: Any, quantiles: Any) -> list[float]:
    """Return a shorter time at each call."""
    kernel_call()
    BENCHMARKED.append(len(BENCHMARKED))
    return [1.0 / (1 + len(BENCHMARKED))] * 3


def bench_with(returned: Any) -> Callable[[Any, Any], Any]:
    def measure(kernel_call: Any, quantiles: Any) -> Any:
        kernel_call()
        return returned

    return measure


def bench_beside(kernel_call: Any, quantiles: Any, more: int) -> list[float]:
    return equal_times(kernel_call, quantiles)


VALUES = [
    *(float("inf"), float("-inf"), float("nan"), -0.0, True, None, 2**64, -(2**70)),
    *("a" * 501, "\n\x00\u2028é", "\ud800", "", Number.ONE, Color.RED, Text("a")),
    *(np.int64(3), np.float32(3), np.bool_(True), (1, 2), torch.float16, tl.float16),
    *(tl.constexpr(3), tl.constexpr(float("inf")), torch.Size([1, 2]), copy_block, len),
    *(torch.device("cpu"), np.dtype("float32"), 1j, b"a", range(3), frozenset({1}), ...),
]

OPTIONS: dict[str, dict[str, Any]] = {
    "a config of pruning": {
        "prune_configs_by": {"early_config_prune": lambda c, n, **_: [triton.Config({"B": 64})]}
    },
    "tuples": {"configs": (triton.Config({"B": 16}), triton.Config({"B": 32})), "key": ("n",)},
    "no key": {"key": []},
    "a key twice": {"key": ["n", "n"]},
    "a key as text": {"key": "n"},
    "a key as a set": {"key": {"n"}},
    "a misspelled key": {"key": ["n", "nn"]},
    "a misspelled field": {"configs": [triton.Config({"B": 16, "BB": b}) for b in (1, 2)]},
    "no configs": {"configs": []},
    "configs that are None": {"configs": None},
    "a scalar time": {"do_bench": bench_with(1.0)},
    "negative times": {"do_bench": bench_with([-1.0] * 3)},
    "infinite times": {"do_bench": bench_with([float("inf")] * 3)},
    "times as text": {"do_bench": bench_with("slow")},
    "no times": {"do_bench": bench_with(None)},
    "undefined times": {"do_bench": bench_with([float("nan")] * 3)},
    "a partial": {"do_bench": functools.partial(bench_beside, more=1)},
    "restored values": {"restore_value": ["x"]},
}
if triton.__version__ < "3.8":  # from then on Triton asks for the length
    OPTIONS["pruning yields"] = {
        "prune_configs_by": {"early_config_prune": lambda c, n, **_: iter([*c])}
    }


@pytest.fixture(autouse=True)
def with_installation() -> Iterator[None]:
    install()
    yield
    uninstall()


def run(decorate: Any, kernel: Any, value: Any, **options: Any) -> Any:
    configs = [triton.Config({"B": 16}), triton.Config({"B": 32})]
    options = {"configs": configs, "key": ["n"], "do_bench": equal_times, **options}
    tuned = decorate(**options)(kernel)
    for _ in range(2):
        tuned[(1,)](X, value)
    return tuned


def assert_like_triton(run_with: Callable[[Any], Any]) -> None:
    """Check that both run the same config, or raise the same error."""
    outcomes = []
    for decorate in (_TRITON_AUTOTUNE, triton.autotune):
        try:
            outcomes.append(str(run_with(decorate).best_config))
        except Exception as error:
            outcomes.append(f"{type(error).__name__}: {error}")
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}-{value!r:.9}")
def test_any_value_of_a_key_or_a_config_runs(value: Any) -> None:
    assert_like_triton(lambda decorate: run(decorate, copy_block, value))
    configs = [triton.Config({"B": block, "V": value}) for block in (16, 32)]
    assert_like_triton(lambda decorate: run(decorate, copy_block, 3, configs=configs))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_any_option_of_triton_runs(options: dict[str, Any]) -> None:
    assert_like_triton(lambda decorate: run(decorate, copy_block, 3, **options))


def test_a_launch_that_sets_what_configs_set_fails_as_with_triton_beside_a_record() -> None:
    def run_with_block(decorate: Any) -> Any:
        if decorate is triton.autotune:
            run(decorate, copy_block, 3)
        configs = [triton.Config({"B": 16}), triton.Config({"B": 32})]
        tuned = decorate(configs=configs, key=["n"], do_bench=equal_times)(copy_block)
        tuned[(1,)](X, 3, B=16)
        return tuned

    assert_like_triton(run_with_block)


STEPS = [
    (Declaration, "of"), (Launch, "request"), (Declaration, "context"), (Launch, "_find_key"),
    (Launch, "_choose"), (launch, "toolchain_on"), (autotuner, "current_settings"),
    (launch, "current_settings"), (autotuner, "Resolver"), (events, "tell_triton"),
    (launch, "emit"), (events, "launch_key"),
]  # fmt: skip


@pytest.mark.parametrize(("owner", "name"), STEPS, ids=[name for _, name in STEPS])
def test_whatever_step_fails_the_launch_goes_on_and_says_so_once(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing = Mock(side_effect=ZeroDivisionError("this step fails"))
    monkeypatch.setattr(owner, name, failing, raising=False)
    benched = []

    def count(kernel_call: Any, quantiles: Any) -> list[float]:
        benched.append(kernel_call())
        return [1.0, 1.0, 1.0]

    for value in (3, 3, 4):
        kernel = run(triton.autotune, copy_block, value, do_bench=count)
        del benched[:]
        kernel[(1,)](X, value)
        assert not benched, "a scenario is benchmarked once"
    assert caplog.text.count("tuned by Triton alone") == 1
    assert "this step fails" in caplog.text


def test_strict_mode_still_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEJAVU_CACHE_MODE", "strict")
    current_settings.cache_clear()
    with pytest.raises(ScenarioNotTuned):
        run(triton.autotune, copy_block, 3)
    pruned = {"early_config_prune": lambda configs, named, **_: configs[1:]}
    kernel = run(triton.autotune, copy_block, 3, prune_configs_by=pruned)
    assert (kernel.best_config.kwargs, kernel.benchmarked) == ({"B": 32}, 0)


@pytest.mark.parametrize("before", [True, False])
def test_another_packages_run_launches(
    before: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Engines have a switch that makes Triton's autotuner run its first config."""
    launched = []

    def run_first(self: Any, *args: Any, **kwargs: Any) -> Any:
        launched.append(self)
        self.best_config = self.configs[0]
        return self.fn.run(*args, **kwargs, **self.configs[0].all_kwargs())

    if before:
        uninstall()
    theirs = Autotuner.run
    Autotuner.run = run_first
    try:
        install()
        kernel = run(triton.autotune, copy_block, 3)
        assert launched == [kernel, kernel]
        assert kernel.benchmarked == 0
        assert "has replaced Autotuner.run" in caplog.text
        uninstall()
        assert Autotuner.run is run_first
    finally:
        Autotuner.run = theirs


@in_own_process(TRITON_INTERPRET="0")
def test_a_backend_without_identity_is_left_to_triton() -> None:
    """Neither CUDA nor HIP, for which CUDA's compiler stands in: each launch is Triton's."""
    from support.pretended_gpu import launch, make
    from triton.runtime import driver

    target, other = driver.active.get_current_target(), SimpleNamespace(backend="xpu", arch="pvc")
    said: list[str] = []

    def target_for_caller() -> Any:
        caller = sys._getframe(1).f_globals["__name__"]
        return other if caller.startswith("dejavu") else target

    driver.active.get_current_target = target_for_caller
    notices.logger.warning = lambda text, *values, **_: said.append(str(text) % values)  # type: ignore
    install()
    for decorate in (triton.autotune, cached_autotune):
        BENCHMARKED.clear()
        kernel = make(decorate, do_bench=bench_falling)
        launch(kernel, 5, 5)
        assert (len(BENCHMARKED), kernel.best_config.kwargs) == (3, {"B": 64})
    assert sum("kernels are tuned by Triton alone" in text for text in said) == 1
    assert any("backend 'xpu'" in text for text in said)
