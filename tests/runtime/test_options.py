"""Options that cannot work, and keys that no record can hold, are refused by name."""

import math
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.addition import CONFIGS, Spy, add_one, make
from support.kernels import launch, load

from dejavu_cache import (
    CheckOptions,
    DejavuError,
    Edges,
    Exact,
    Mode,
    Multiple,
    Pow2,
    cached_autotune,
    config_space,
)
from dejavu_cache.errors import KeyArgumentError, SettingsError
from dejavu_cache.model.buckets import Bucket
from dejavu_cache.runtime.request import Request, TuningBudget
from dejavu_cache.runtime.rules import budgeted_count
from dejavu_cache.stores import MemoryStore


def decorate(**options: Any) -> Any:
    return cached_autotune(CONFIGS, ["n"], **options)(add_one)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "reus"}, r"mode='reus': did you mean 'reuse'\?"),
        ({"method": "event-cold"}, r"method='event-cold': did you mean 'events-cold'\?"),
        ({"consensus": "all"}, r"consensus='all': choose from none, ranks"),
        ({"prune_per": "scenarios"}, r"prune_per='scenarios': did you mean 'scenario'\?"),
        *(({f"tune_{of}": 0}, f"tune_{of}=0: .* greater than 0") for of in ("seconds", "configs")),
        ({"tune_configs": 1.5}, r"tune_configs=1.5: Input should be a valid integer"),
        ({"store": 7}, r"store=7: give a Store, a URL or a folder"),
        ({"store": "htps://host"}, r"scheme 'htps' of 'htps://host': did you mean 'https'\?"),
        ({"store": "https//host"}, r"'https//host' names no store: give a folder"),
        ({"store": ""}, r"'' names no store: give a folder"),
        ({"buckets": {"n": 16}}, r"buckets\['n'\]: 16 is no bucket, such as Multiple\(16\)"),
        ({"buckets": {"n": "powr2"}}, r"buckets\['n'\]: 'powr2' is no bucket"),
        ({"buckets": {"n": {"kind": "pow2", "max": 3}}}, r"max: give a power of two"),
        ({"buckets": "pow2"}, r"buckets='pow2': Input should be a valid dictionary"),
        ({"buckets": {"BLOCK": "pow2"}}, r"buckets name 'BLOCK', which is not in key: add it to"),
        ({"buckets": {"N": "pow2"}}, r"buckets name 'N', which is not in key: did you mean 'n'\?"),
        ({"check": CheckOptions(ignore=["zz"])}, r"check: ignore names 'zz', which is no argument"),
        ({"check": CheckOptions(outputs=["z"])}, r"outputs names 'z', which is no argument"),
        ({"check": CheckOptions({"zz": 0.1})}, r"tolerance names 'zz', .*: choose from x"),
        ({"check": CheckOptions(-1)}, r"check: tolerance=-1: Input should be greater than or"),
        ({"check": CheckOptions(math.nan)}, r"check: tolerance=nan: .* finite number"),
        ({"check": CheckOptions({"y_ptr": -2})}, r"check: tolerance=-2: Input should be greater"),
        ({"check": CheckOptions(outputs="y_ptr")}, r"outputs='y_ptr': give a list: \['y_ptr'\]"),
        ({"check": CheckOptions(ignore=CONFIGS)}, r"ignore=<.*: Input should be a valid string"),
        ({"check": CheckOptions(reference=CONFIGS[0])}, r"reference=<.*: Input should be callable"),
        ({"check": CheckOptions(repeatable=CONFIGS[0])}, r"=<.*: Input should be a valid boolean"),
        ({"default": triton.Config({"BLOCK": 7})}, r"not among the 3 declared configs: add it"),
        ({"default": {"BLOCK": 7}}, r"default=\{'BLOCK': 7\}: none of the 3 declared configs has"),
        ({"default": {"BLOK": 16}}, r"no config sets 'BLOK': did you mean 'BLOCK'\?"),
        ({"default": "first"}, r"default='first': give a triton.Config, its values by name, or"),
        ({"bucket": {}}, r"has no option 'bucket': did you mean 'buckets'\?"),
        ({"zzz": 1}, r"has no option 'zzz': choose from buckets, store, .*, configs, key"),
        *(({"configs": given}, r"to choose from: give") for given in (3, [*CONFIGS, 3], [])),
        *(({name: 3}, f"{name}=3: give a ") for name in ("key", "pre_hook", "do_bench")),
        (
            {"configs": [*CONFIGS, triton.Config({"BLOCK": 64, "num_warp": 8})]},
            r"configs\[3\] sets 'num_warp', .*: did you mean 'num_warps'\?",
        ),
        (
            {"configs": config_space({"BLOCK": [16]}, hip={"wave_per_eu": [2]})},
            r"its config_space sets 'wave_per_eu', .*: did you mean 'waves_per_eu'\?",
        ),
        ({"configs": config_space({"BLOCK": [16]}), "default": {"BLOK": 1}}, r"'BLOK': did you"),
        ({"key": ["n", "stride"]}, r"key names 'stride', .*: choose from x_ptr, y_ptr, n, BLOCK"),
        ({"restore_value": ["y"]}, r"restore_value names 'y', which is no argument: choose from x"),
        ({"prune_configs_by": {"early": print}}, r"has no 'early': choose from early_config_prun"),
        ({"check": CheckOptions}, r"check=<class .*: Input should be a dictionary or an instance"),
    ],
)
def test_a_bad_option_is_an_error_that_names_kernel_value_and_remedy(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DejavuError, match=rf"add_one: (.*){message}") as refused:
        cached_autotune(**{"configs": CONFIGS, "key": ["n"], **options})(add_one)
    assert "\n" not in str(refused.value), "one sentence"


def plain_function(x_ptr: Any, n: int) -> None:
    """No kernel: it lacks `@triton.jit`."""


@pytest.mark.parametrize("undecorated", [plain_function, 3])
def test_what_is_no_kernel_is_told_so(undecorated: Any) -> None:
    with pytest.raises(SettingsError, match=r"(plain_function|3): .* put @triton.jit directly"):
        cached_autotune(CONFIGS, ["n"])(undecorated)


@pytest.mark.parametrize(
    "option", ["matrix_instr_nonkdim", "maxnreg", "num_consumer_groups", "instrumentation_mode"]
)
def test_an_option_of_another_backend_or_version_is_no_typo(option: str) -> None:
    cached_autotune([triton.Config({"BLOCK": 64, option: 1})], ["n"])(add_one)


class KeepsSome(Spy):
    """An object of the author's own above a kernel, which keeps some of a config for itself."""

    def run(self, *args: Any, split: int = 1, **kwargs: Any) -> Any:
        return super().run(*args, **kwargs)


def test_a_name_that_does_not_reach_triton_is_no_typo() -> None:
    configs = [triton.Config({"BLOCK": 64, "split": 2})]
    cached_autotune(configs, ["n"])(KeepsSome())
    with pytest.raises(SettingsError, match="'split', which is neither"):
        cached_autotune(configs, ["n"])(add_one)


@pytest.mark.parametrize("configs", [CONFIGS, config_space({"BLOCK": [16, 32, 64]})])
@pytest.mark.parametrize(
    "default", [{"BLOCK": 64}, {"num_warps": 4, "BLOCK": 64}, lambda arguments: {"BLOCK": 64}]
)
def test_a_default_may_be_some_of_its_values(configs: Any, default: Any) -> None:
    kernel = cached_autotune(configs, ["n"], default=default, mode="reuse")(add_one)
    assert kernel.explain(torch.ones(1), torch.ones(1), 100).config is configs[2]


def test_values_that_no_config_of_a_space_has_leave_the_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    space = config_space({"BLOCK": [16, 32]})
    kernel = cached_autotune(space, ["n"], default={"BLOCK": 7}, mode="reuse")(add_one)
    assert kernel.explain(torch.ones(1), torch.ones(1), 100).config is space[0]
    assert "no declared config is its default ({'BLOCK': 7})" in caplog.text


@pytest.mark.parametrize(
    ("given", "mode"), [(None, Mode.TUNE), ("reuse", Mode.REUSE), (Mode.REUSE, Mode.REUSE)]
)
def test_an_option_that_is_none_is_not_given_and_a_mode_is_a_name_or_a_member(
    given: Any, mode: Mode
) -> None:
    unpruned = {"early_config_prune": None, "perf_model": None, "top_k": None}
    kernel = decorate(mode=given, buckets=None, default=None, store=None, prune_configs_by=unpruned)
    assert kernel.mode is mode


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


@pytest.mark.parametrize(
    ("limit", "due", "allowed"), [(None, 3, 3), (2, 3, 2), (2, 1, 0), (2, 0, 0)]
)
def test_a_spent_budget_allows_no_config(limit: int | None, due: int, allowed: int) -> None:
    request = decorate(tune_configs=limit).request(None, None, 100)
    assert isinstance(request, Request)
    assert request.budget == TuningBudget(configs=limit)
    assert budgeted_count(request, due) == allowed


INFINITE = [float("nan"), float("inf"), -float("inf")]
NAMELESS = [torch.ones(1), [1], object(), 1 + 2j, *INFINITE, "x" * 501, "\ud800", 2**64]
"""Values that records have no form for."""

CASES: list[tuple[Any, Bucket | None]] = [(value, None) for value in NAMELESS]
CASES += [(value, bucket) for value in INFINITE for bucket in (Pow2(), Multiple(16))]
CASES += [(torch.ones(2), bucket) for bucket in (Pow2(), Multiple(16), Edges((1, 2)))]


@triton.jit
def ignores(x_ptr, odd: tl.constexpr, BLOCK: tl.constexpr):
    pass


@pytest.mark.parametrize(("value", "bucket"), CASES)
def test_a_key_that_no_record_can_hold_names_its_argument(
    value: object, bucket: Bucket | None
) -> None:
    kernel = make(fn=ignores, key=["odd"], buckets={"odd": bucket} if bucket else None)
    said = "Tensor" if isinstance(value, torch.Tensor) else ""
    with pytest.raises(KeyArgumentError, match=f"key argument 'odd' is {said}"):
        kernel[(1,)](torch.ones(1), value)


@pytest.mark.parametrize("value", [float("inf"), "x" * 501, "\ud800", 2**64])
def test_a_config_that_no_record_can_hold_leaves_its_kernel_to_triton(
    value: object, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    configs = [triton.Config({"BLOCK": 16, "odd": each}) for each in (value, 1)]
    kernel = make(fn=ignores, configs=configs, key=[], store=store)
    kernel[(1,)](torch.ones(1))
    assert list(store.record_sets()) == []
    assert "its configs set odd to" in caplog.text


@pytest.mark.parametrize("name", ["a" * 501, "a\x1b[31m\nb", "a\udc80", "\u202e"])
def test_a_kernel_of_any_name_is_recorded_and_explained(name: str) -> None:
    store = MemoryStore()
    renamed = triton.jit(ignores.fn)
    renamed.fn = FunctionType(ignores.fn.__code__, globals())
    renamed.fn.__qualname__ = name
    kernel = make(fn=renamed, key=[], store=store, check=False)
    arguments = [torch.ones(1)] * 2
    before = str(kernel.explain(*arguments))
    kernel[(1,)](*arguments)
    recorded = next(store.contexts()).kernel.name
    assert len(recorded) <= 500
    assert recorded.isprintable()
    assert before.startswith(f"{recorded}(")
    assert str(kernel.explain(*arguments)).startswith(f"{recorded}(")


CELL = """
@triton.jit
def shift(x):
    return x + SHIFT
"""


def run_cell(path: Path, cell: str, names: dict[str, Any]) -> None:
    path.write_text(cell)
    exec(compile(cell, path, "exec"), names)


@pytest.mark.parametrize(
    ("cell", "sources"),
    [(CELL, 1), ("# a comment\n\n" + CELL, 1), (CELL.replace("x + SHIFT", "x - -SHIFT"), 2)],
    ids=["as it was", "further down", "edited"],
)
def test_a_helper_that_is_defined_anew_counts_by_its_code(
    tmp_path: Path, cell: str, sources: int
) -> None:
    """As in a notebook, whose cell of helpers is run again; the interpreter runs the later one."""
    module: Any = load(tmp_path / "kernels.py")
    run_cell(tmp_path / "cell1", CELL, vars(module))
    store = MemoryStore()
    kernel = cached_autotune(configs=module.CONFIGS, key=["n"], store=store)(module.add.fn)
    launch(kernel, 100)
    run_cell(tmp_path / "cell2", cell, vars(module))
    launch(kernel, 101)
    assert len({found.context.kernel.source for found in store.record_sets()}) == sources
