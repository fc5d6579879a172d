"""Operations of engines as kernels whose configs to choose from depend on the size of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import triton

from ..runtime.cached_autotuner import CachedAutotuner
from ..runtime.options import CacheOptions
from ..tuning.result_check import CheckOptions
from .operation import EngineOperation

__all__ = ["HOPPER_SHARED_MEMORY", "distinct_configs", "sized_kernel"]

HOPPER_SHARED_MEMORY = 227 * 1024
"""Bytes of shared memory that a program of a Hopper GPU may have."""


def distinct_configs(
    entries: Iterable[Mapping[str, Any]], left_out: Sequence[str] = ()
) -> Iterator[Any]:
    """Yield the entries of tables as `triton.Config`, each once.

    Args:
        entries: the entries.
        left_out: names that an entry may have and the config must not.
    """
    seen = set()
    for entry in entries:
        values = {name: value for name, value in entry.items() if name not in left_out}
        options = {name: values.pop(name) for name in ("num_warps", "num_stages") if name in values}
        config = triton.Config(values, **options)
        if str(config) not in seen:
            seen.add(str(config))
            yield config


def sized_kernel(
    operation: EngineOperation,
    keys: Sequence[str],
    size_name: str,
    by_size: Mapping[int, Sequence[Any]],
    inputs: Sequence[str],
    repeatable: bool = True,
    tolerance: float | None = None,
) -> CachedAutotuner:
    """Return an operation as a kernel that tries the configs of its batch.

    It is measured by graphs with a cold L2 cache, since an engine runs other layers in between.

    Args:
        operation: the operation.
        keys: its key arguments.
        size_name: the key argument that is the batch's size.
        by_size: the configs by batch size; the first one of each is the default.
        inputs: tensors that the operation does not write.
        repeatable: whether two launches give the same bits; sums in any order do not.
        tolerance: the largest relative difference of results; None for that of their dtype.
    """
    configs = {str(config): config for size in by_size for config in by_size[size]}

    def prune(configs: list[Any], named: Mapping[str, Any], **_: Any) -> list[Any]:
        declared = {str(config): config for config in configs}
        return [declared[str(config)] for config in by_size[named[size_name]]]

    def default(named: Mapping[str, Any]) -> Any:
        return configs[str(by_size[named[size_name]][0])]

    options: CacheOptions = {
        "method": "cudagraph-cold",
        "default": default,
        "check": CheckOptions(tolerance, ignore=tuple(inputs), repeatable=repeatable),
    }
    early: dict[str, Callable[..., Any]] = {"early_config_prune": prune}
    return CachedAutotuner(
        operation,
        operation.arg_names,
        list(configs.values()),
        keys,
        None,
        None,
        prune_configs_by=early,
        options=options,
    )
