"""Identify a kernel alike in every process, or say why that is impossible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..errors import UnreadableKernelError
from .compiler_settings import unreadable_settings
from .constants import plain_text
from .environment import is_interpreting
from .name_values import NamedCallee
from .source_hash import hash_source, value_hash
from .triton_objects import unwrap

__all__ = ["KernelIdentity", "identify"]


class KernelIdentity(NamedTuple):
    """What tells a kernel's code from any other's.

    Attributes:
        source: the source hash; None where the kernel has none.
        unstored: why its timings mean nothing to another process, or None if they do.
        may_change: whether the program can change what the source hash stands for.
        callees: the jit functions that the kernel reaches.
    """

    source: str | None
    unstored: str | None
    may_change: bool = False
    callees: tuple[NamedCallee, ...] = ()

    @property
    def after_replacement(self) -> KernelIdentity | None:
        """The identity once a jit function that the kernel calls was defined anew, or None.

        Triton goes on with the binaries and the key of the earlier function, and compiles the
        later one: a timing means neither.
        """
        replaced = next((callee for callee in self.callees if callee.is_replaced), None)
        if replaced is None:
            return None
        return KernelIdentity(None, f"{replaced} was defined anew after the kernel was launched")


def identify(kernel: Any, config_values: Iterable[Mapping[str, Any]]) -> KernelIdentity:
    """Return a kernel's identity.

    Args:
        kernel: a jit function, or heuristics around one.
        config_values: each config's meta-parameters.
    """
    try:
        source, may_change, callees = hash_source(kernel)
        for value in _values_with_code(config_values):
            value_hash(value)
        settings = [] if is_interpreting() else unreadable_settings()
    except (UnreadableKernelError, OSError) as error:
        return KernelIdentity(None, str(error))
    except Exception as error:  # plain Triton would launch the kernel all the same
        return KernelIdentity(None, f"its identity raises {type(error).__name__}: {error}")
    reason = f"{', '.join(settings)} has no text that stands for it" if settings else None
    return KernelIdentity(source, reason, may_change, callees)


def _values_with_code(config_values: Iterable[Mapping[str, Any]]) -> Iterable[Any]:
    """Return the values that are not plain, each once."""
    return {
        id(value): value
        for config in config_values
        for value in config.values()
        if plain_text(unwrap(value)[0]) is None
    }.values()
