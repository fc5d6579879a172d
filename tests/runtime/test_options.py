"""Options of `cached_autotune` that cannot work are refused where the kernel is decorated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
from support.addition import CONFIGS, add_one

from dejavu_cache import (
    CheckOptions,
    DejavuError,
    Exact,
    Mode,
    Pow2,
    cached_autotune,
    config_space,
)
from dejavu_cache.errors import SettingsError
from dejavu_cache.runtime.request import Request, TuningBudget


def decorate(**options: Any) -> Any:
    return cached_autotune(CONFIGS, ["n"], **options)(add_one)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "fast"}, r"mode='fast': choose one of tune, reuse, strict, off"),
        ({"mode": 3}, r"mode=3: choose one of tune"),
        ({"method": "events"}, r"method='events': choose one of events-cold, "),
        ({"consensus": "all"}, r"consensus='all': choose one of none, ranks"),
        ({"max_distance": -1}, r"max_distance=-1: give a finite number of powers of two"),
        ({"max_distance": float("nan")}, r"max_distance=nan: give a finite number"),
        ({"tune_seconds": 0}, r"tune_seconds=0: give a finite number of seconds above 0"),
        ({"tune_seconds": "9"}, r"tune_seconds='9': give a finite number of seconds"),
        ({"tune_configs": 0}, r"tune_configs=0: give a number of configs, 1 or more"),
        ({"tune_configs": 1.5}, r"tune_configs=1.5: give a number of configs"),
        ({"store": 7}, r"store=7: give a Store, a URL or a folder"),
        ({"buckets": {"n": "powers"}}, r"buckets\['n'\]='powers': .*Pow2\(max=4096\)"),
        ({"buckets": {"n": {"kind": "edges"}}}, r"buckets\['n'\]=.*Field required"),
        ({"buckets": {"n": {"kind": "pow2", "max": 3}}}, r"max=3 is not a power of two"),
        ({"buckets": "pow2"}, r"buckets='pow2': give a mapping"),
        ({"buckets": {"m": "pow2"}}, r"buckets name 'm', which is not in key: add it to key"),
        ({"check": CheckOptions(ignore=["zz"])}, r"check: ignore names 'zz', which is no argument"),
        (
            {"check": CheckOptions(tolerance={"zz": 0.1})},
            r"tolerance names 'zz', .*: choose from x",
        ),
        ({"default": triton.Config({"BLOCK": 7})}, r"not among the 3 declared configs: add it"),
        ({"default": {"BLOCK": 16}}, r"default=\{'BLOCK': 16\}: give a triton.Config, or a func"),
        ({"bucket": {}}, r"has no option 'bucket': did you mean 'buckets'\?"),
        ({"zzz": 1}, r"has no option 'zzz': it takes those of triton.autotune, and buckets, store"),
    ],
)
def test_a_bad_option_is_an_error_that_names_kernel_value_and_remedy(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DejavuError, match=rf"add_one: .*{message}|add_one: {message}"):
        decorate(**options)


def plain_function(x_ptr: Any, n: int) -> None:
    """No kernel: it lacks `@triton.jit`."""


CONFIG = triton.Config({"BLOCK": 16})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"configs": [64]}, r"configs\[0\] is 64: give a triton.Config such as triton.Config\("),
        ({"configs": [CONFIG, {"BLOCK": 64}]}, r"configs\[1\] is \{'BLOCK': 64\}: give a triton"),
        ({"configs": [CONFIGS]}, r"configs\[0\] is \["),
        ({"configs": CONFIG}, r"configs=.*: give a list such as \[triton.Config\("),
        ({"configs": iter(CONFIGS)}, r"configs=.*: give a list such as"),
        ({"key": "n"}, r"key='n': give a list such as \[\"n\"\]"),
        ({"key": None}, r"key=None: give a list"),
        ({"key": [1]}, r"key holds 1: give the names of arguments"),
        ({"restore_value": ["zz"]}, r"restore_value names 'zz', which is no argument: choose from"),
        ({"reset_to_zero": "y_ptr"}, r"reset_to_zero='y_ptr': give a list such as \[\"y_ptr\"\]"),
        ({"prune_configs_by": {"early": print}}, r"has 'early': choose from early_config_prune, "),
        ({"prune_configs_by": print}, r"prune_configs_by=.*: give a dictionary"),
        ({"do_bench": 3}, r"do_bench=3: give a function"),
        ({"post_hook": "x"}, r"post_hook='x': give a function"),
        ({"check": CheckOptions(ignore="y_ptr")}, r"ignore is a string: give a list such as"),
        ({"check": CheckOptions(tolerance="x")}, r"give a tolerance of 0 or more"),  # type: ignore[arg-type]
        ({"check": CheckOptions(tolerance={"y_ptr": -1})}, r"give a tolerance of 0 or more"),
    ],
)
def test_a_first_mistake_is_an_error_that_names_kernel_value_and_remedy(
    parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=rf"addition.add_one: .*{message}"):
        cached_autotune(**{"configs": CONFIGS, "key": ["n"], **parameters})(add_one)


@pytest.mark.parametrize("undecorated", [plain_function, 3])
def test_what_is_no_kernel_is_told_so(undecorated: Any) -> None:
    with pytest.raises(SettingsError, match=r"(plain_function|3): .* put @triton.jit directly"):
        cached_autotune(CONFIGS, ["n"])(undecorated)


def test_a_default_that_returns_no_config_is_named() -> None:
    kernel = decorate(mode="reuse", default=lambda arguments: 3)
    with pytest.raises(SettingsError, match=r"its function default returns 3: return one of"):
        kernel.explain(torch.ones(1), torch.ones(1), 100)


def test_triton_has_a_config_for_a_kernel_without_any() -> None:
    assert len(cached_autotune([], ["n"])(add_one).configs) == 1


def test_none_is_an_option_that_is_not_given() -> None:
    kernel = decorate(mode=None, buckets=None, default=None, store=None, tune_configs=None)
    assert kernel.mode is Mode.TUNE


@pytest.mark.parametrize("mode", ["reuse", "REUSE", Mode.REUSE])
def test_a_mode_is_a_name_or_a_member(mode: Any) -> None:
    assert decorate(mode=mode).mode is Mode.REUSE


@pytest.mark.parametrize(
    ("spelling", "bucket"),
    [
        ("pow2", Pow2()),
        ("exact", Exact()),
        ({"kind": "pow2", "max": 16}, Pow2(max=16)),
        (Pow2(max=16), Pow2(max=16)),
    ],
)
def test_a_bucket_is_spelled_as_in_the_policy_file(spelling: Any, bucket: Any) -> None:
    request = decorate(buckets={"n": spelling}).request(None, None, 100)
    assert request.scenario.args == {"n": bucket(100)}


def test_a_config_space_is_not_built_to_look_for_the_default() -> None:
    space = config_space({"BLOCK": [16, 32]})
    cached_autotune(space, ["n"], default=triton.Config({"BLOCK": 32}))(add_one)
    assert "_configs" not in vars(space)


@pytest.mark.parametrize(
    ("limit", "due", "allowed"), [(None, 3, 3), (2, 3, 2), (2, 1, 0), (2, 0, 0)]
)
def test_a_spent_budget_allows_no_config(limit: int | None, due: int, allowed: int) -> None:
    request = decorate(tune_configs=limit).request(None, None, 100)
    assert isinstance(request, Request)
    assert request.budget == TuningBudget(configs=limit)
    assert request.budgeted_count(due) == allowed
