"""Whether a kernel has an identity that means the same in every process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import UnreadableKernelError
from .compiler_settings import unreadable_settings
from .constants import plain_text, unwrap
from .environment import is_interpreting
from .source_hash import source_hash, value_hash

__all__ = ["why_not_stored"]


def why_not_stored(kernel: Any, config_values: Iterable[Mapping[str, Any]]) -> str | None:
    """Return why a kernel's timings mean nothing to another process, or None if they do.

    Args:
        kernel: a jit function, or heuristics around one.
        config_values: each config's meta-parameters.
    """
    values = {
        id(value): value
        for config in config_values
        for value in config.values()
        if plain_text(unwrap(value)[0]) is None
    }
    try:
        source_hash(kernel)
        for value in values.values():
            value_hash(value)
    except (UnreadableKernelError, OSError) as error:
        return str(error)
    settings = [] if is_interpreting() else unreadable_settings()
    return f"{', '.join(settings)} has no text that stands for it" if settings else None
