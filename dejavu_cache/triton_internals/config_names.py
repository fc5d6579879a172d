"""Convert `triton.Config`, which can carry code, to and from a record's `Config`, which cannot."""

from __future__ import annotations

import enum
import hashlib
import reprlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import is_dataclass
from functools import cache, cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ..errors import did_you_mean
from ..model.scenario import Config, Scalar, is_scalar, share_config
from ..system.notices import warn_once
from .identity import PROCESS, dtype_name, value_text

if TYPE_CHECKING:
    from triton import Config as TritonConfig

TUNING_OPTIONS = frozenset(
    {
        "allow_flush_denorm",
        "enable_fp_fusion",
        "kpack",
        "launch_cooperative_grid",
        "launch_pdl",
        "matrix_instr_nonkdim",
        "maxnreg",
        "num_buffers_warp_spec",
        "num_consumer_groups",
        "num_ctas",
        "num_stages",
        "num_warps",
        "reg_dec_producer",
        "reg_inc_producer",
        "schedule_hint",
        "waves_per_eu",
    }
)
"""Triton's options that only tune a kernel: their values are numbers or names from a fixed set.

Other options name files (`ir_override`, `extern_libs`) or pass words to a command (`ptx_options`):
what they do is not in their value, so that no record may set them.
"""

LAUNCH_OPTIONS = TUNING_OPTIONS | {
    "allowed_dot_input_precisions",
    "debug",
    "default_dot_input_precision",
    "deprecated_fp8_dot_operand_dtypes",
    "enable_reflect_ftz",
    "max_num_imprecise_acc_default",
    "ptx_version",
    "sanitize_overflow",
    "supported_fp8_dtypes",
    "warp_size",
}
"""Options that a launch may set and a record may hold, for the same reason."""


def unknown_name(names: Iterable[str], parameters: Sequence[str]) -> str | None:
    """Say which name of a config is neither a kernel's parameter nor an option of any compiler.

    Triton raises for such a name at the first launch, whatever reads it before.
    """
    for name in names:
        if name not in parameters and name not in _compiler_options():
            return (
                f"{name!r}, which is neither an argument nor an option of a compiler: "
                f"{did_you_mean(name, [*parameters, *TUNING_OPTIONS])}"
            )
    return None


@cache
def _compiler_options() -> frozenset[str]:
    """Return the options of all backends of this Triton, and those that tune in its others."""
    from triton.backends import backends

    modules = [sys.modules[backend.compiler.__module__] for backend in backends.values()]
    kinds = [kind for module in modules for kind in vars(module).values() if is_dataclass(kind)]
    return TUNING_OPTIONS.union(*(kind.__dataclass_fields__ for kind in kinds))


def can_be_recorded(
    kernel: str, configs: Sequence[TritonConfig], parameters: Sequence[str]
) -> bool:
    """Return whether records can and may hold all configs of a kernel; if not, warn once.

    What is none of the kernel's parameters is a compiler option of a config.
    """
    allowed = TUNING_OPTIONS.union(parameters)
    refused: set[str] = set()
    reason = None
    for config in configs:
        for name, value in config.all_kwargs().items():
            if name not in allowed:
                refused.add(name)
            elif not is_scalar(_scalar(value)):
                reason = f"{name} to {reprlib.repr(value)}, which no record can hold"
    if refused:
        reason = unknown_name(sorted(refused), parameters) or (
            f"{', '.join(sorted(refused))}, whose effect is not part of a record's key"
        )
    if reason is not None:
        warn_once(
            f"options {kernel}",
            f"{kernel}: its configs set {reason}: it is tuned by Triton, and nothing is recorded",
        )
    return reason is None


def describe(config: TritonConfig) -> Config:
    """Return a `triton.Config` as a record keeps it: everything but its hook."""
    everything = config.all_kwargs()
    # The first launch of a scenario describes all configs, so descriptions are cached. Their key is
    # the content and not the object, since a hook may change a config.
    content = (len(config.kwargs), *everything.items(), *map(type, everything.values()))
    try:
        return _described[content]
    except (KeyError, TypeError):
        pass
    params, options = dict(sorted(config.kwargs.items())), dict(sorted(everything.items()))
    for name, value in params.items():
        params[name] = _scalar(value)
        del options[name]
    values = {"options": options, "params": params}
    if not {int, bool, str, type(None)}.issuperset(map(type, everything.values())):
        return Config.model_validate(values)
    _described[content] = described = share_config(values, Config.model_validate)
    return described


_described: dict[Any, Config] = {}


def _scalar(value: Any) -> Scalar:
    """Return a meta-parameter's value, as text if JSON has nothing better; it is only compared."""
    if isinstance(value, enum.Enum):  # an `IntEnum` is more to a kernel than its number
        return _text(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if type(value).__name__ == "constexpr":
        return _scalar(value.value)
    if type(value).__name__ == "dtype":
        return dtype_name(value)
    return _text(value)


def _text(value: Any) -> str:
    return value_text(value) or f"{type(value).__qualname__[:400]} unreadable {PROCESS}"


class DeclaredConfigs(dict[Config, Any]):
    """The `triton.Config`s that a kernel declares, in order, by their descriptions in records.

    A config from a store only selects one of these, so no store can make a launch run code or
    values that the kernel's author did not write.
    """

    def __init__(self, kernel: str, configs: Iterable[TritonConfig]) -> None:
        """Describe the configs, and warn if two of one description have different hooks."""
        super().__init__()
        for config in configs:
            first = self.setdefault(describe(config), config)
            if first.pre_hook is not config.pre_hook:
                warn_once(
                    f"hooks {kernel}",
                    f"{kernel} declares ({describe(config)}) twice with different hooks: "
                    "the first is used",
                )

    @cached_property
    def digest(self) -> str:
        """A digest of the configs, whatever their order."""
        texts = sorted(map(attrgetter("text"), self))
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:24]
