"""Parse configs and timings as other tools write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.scenario import Config

__all__ = ["finite_times", "parse_config"]

_OPTIONS = frozenset({"num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override"})
_REMOVED_FIELDS = frozenset(
    {"num_buffers_warp_spec", "num_consumer_groups", "reg_dec_producer", "reg_inc_consumer"}
)
"""Fields of `triton.Config` that later versions of Triton dropped."""

_IGNORED = _REMOVED_FIELDS | {"pre_hook"}


def parse_config(fields: Mapping[str, Any]) -> Config:
    """Parse a `triton.Config` from its fields, meta-parameters under `kwargs` or beside it.

    Raises:
        ValueError: these are no fields, or a value is none of a config.
    """
    if not isinstance(fields, Mapping) or not isinstance(fields.get("kwargs", {}), Mapping):
        raise ValueError(f"{fields!r:.100} is no config")
    values = {**fields.get("kwargs", {}), **fields}
    values.pop("kwargs", None)
    params = {
        name: value
        for name, value in values.items()
        if name not in _OPTIONS and name not in _IGNORED
    }
    options = {
        name: value for name, value in values.items() if name in _OPTIONS and value is not None
    }
    return Config(params=params, options=options)


def finite_times(times: Any) -> list[float]:
    """Return times as floats, or none if one is infinite, which marks a config that failed."""
    values = [float(value) for value in (times if isinstance(times, list) else [times])]
    return values if all(0 <= value < float("inf") for value in values) else []
