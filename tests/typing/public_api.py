"""Every public name as a user would write it; type checkers read this file, and nothing runs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from dejavu_cache import (
    CachedAutotuner,
    CheckOptions,
    ConfigSpace,
    DejavuError,
    Edges,
    Exact,
    Mode,
    Multiple,
    NoValidConfigError,
    Pow2,
    Resolution,
    ScenarioNotTuned,
    Settings,
    StoreError,
    __version__,
    cached_autotune,
    config_space,
    errors,
    install,
    open_store,
    serving,
    uninstall,
    warmup,
)

version: str = __version__
space: ConfigSpace = config_space(
    {"BLOCK": [64, 128]},
    num_warps=[4, 8],
    where=lambda BLOCK, num_warps: BLOCK // num_warps >= 16,
    hip={"waves_per_eu": [0, 2]},
)
configs = [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})]


def choose_default(arguments: Mapping[str, Any]) -> triton.Config:
    """Choose a default by an argument's value."""
    return configs[0 if arguments["n"] < 1024 else 1]


def add(x_ptr: torch.Tensor, y_ptr: torch.Tensor, n: int, BLOCK: tl.constexpr) -> None:
    """Stand for a kernel."""


by_position: CachedAutotuner = cached_autotune(configs, ["n"])(add)
with_options: CachedAutotuner = cached_autotune(
    configs=space,
    key=["n", "m", "k"],
    restore_value=["x_ptr"],
    buckets={"n": "pow2", "m": Pow2(max=4096), "k": {"kind": "edges", "edges": [1, 16]}},
    store=Path("records"),
    mode="reuse",
    default=choose_default,
    method="cudagraph-cold",
    tune_seconds=30.0,
    tune_configs=16,
    consensus="ranks",
    prune_per="scenario",
)(add)
with_objects: CachedAutotuner = cached_autotune(
    configs,
    key=["n", "m", "k"],
    buckets={"n": Exact(), "m": Edges((1, 16, 256)), "k": Multiple(16)},
    store=open_store("memory://"),
    mode=Mode.STRICT,
    default=configs[1],
)(add)

cached_autotune(configs, ["n"], mode="fast")  # type: ignore[arg-type]
cached_autotune(configs, ["n"], method="events")  # type: ignore[arg-type]
cached_autotune(configs, ["n"], consensus="all")  # type: ignore[arg-type]
cached_autotune(configs, ["n"], buckets={"n": "powers"})  # type: ignore[dict-item]
cached_autotune(configs, ["n"], bucket={})  # type: ignore[call-arg]
cached_autotune(configs, ["n"], tune_configs="16")  # type: ignore[arg-type]
checked = cached_autotune(
    configs, ["n"], check=CheckOptions(tolerance={"y": 0.1}, ignore=["scratch"], repeatable=False)
)
cached_autotune(configs, ["n"], check=False)
cached_autotune(configs, ["n"], check="off")  # type: ignore[arg-type]


def launch(x: torch.Tensor, y: torch.Tensor) -> str:
    """Launch a kernel and ask how it found its config."""
    by_position[(16,)](x, y, 1024)
    by_position[lambda meta: (triton.cdiv(1024, meta["BLOCK"]),)](x, y, n=1024)
    resolution: Resolution = by_position.explain(x, y, 1024)
    mode: Mode = by_position.mode
    count: int = by_position.benchmarked
    return f"{resolution.how} {resolution.gain:.1f} {mode.value} {count}"


def run() -> float:
    """Read the settings and handle every public error."""
    install()
    uninstall()
    try:
        return Settings.from_environment().wait
    except (NoValidConfigError, ScenarioNotTuned, StoreError, errors.SettingsError) as error:
        root: DejavuError = error
        raise root from None


with warmup():
    by_position.benchmarked += 0
with serving():
    by_position.benchmarked += 0
