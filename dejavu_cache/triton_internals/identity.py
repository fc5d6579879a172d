"""Identify a kernel alike in every process, or say why that is impossible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..errors import UnreadableKernelError
from .compiler_settings import unreadable_settings
from .constants import plain_text
from .environment import is_interpreting
from .name_values import NamedCallee
from .running_code import text_of_code
from .source_hash import hash_source, source_hash, value_hash
from .triton_objects import python_function, unwrap

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
        later one: a timing means neither, unless their code is equal.
        """
        for callee in self.callees:
            if not _is_equal_code(callee.callee, callee.successor):
                reason = f"{callee} was defined anew after the kernel was launched"
                return KernelIdentity(None, reason)
        return None


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


def _is_equal_code(function: Any, successor: Any) -> bool:
    """Return whether a jit function is the same as before, or its text and its globals are."""
    if successor is function:
        return True
    if type(successor) is not type(function):
        return False
    try:
        # Of an interpreted function, the hash is of what the file holds by now.
        codes = [python_function(kernel).__code__ for kernel in (function, successor)]
        texts = {text_of_code(code.replace(co_firstlineno=1)) for code in codes}
        return len(texts) == 1 and source_hash(function) == source_hash(successor)
    except Exception:  # what cannot be read counts as other code
        return False


def _values_with_code(config_values: Iterable[Mapping[str, Any]]) -> Iterable[Any]:
    """Return the values that are not plain, each once."""
    return {
        id(value): value
        for config in config_values
        for value in config.values()
        if plain_text(unwrap(value)[0]) is None
    }.values()
