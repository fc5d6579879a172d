"""Keep torch.compile from tracing the code behind a launch.

Torch mostly takes a kernel into its graph. Where it launches one while it compiles, as one of an
exported program or of a compiled backward pass, it would trace what a launch calls.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..system.import_hooks import after_import
from ..system.notices import warn_once

__all__ = ["leave_untraced"]

_PACKAGE = __name__.partition(".")[0]
_ROOMS = ("model", "runtime", "settings", "stores", "system", "triton_internals", "tuning")
"""What a launch calls; attention's own code may be traced."""


@cache
def leave_untraced() -> None:
    """Have torch run the code as it is, from now on or from when its compiler is imported."""
    after_import("torch._dynamo.trace_rules", _add_rules)


def _add_rules(trace_rules: Any) -> None:
    try:
        for room in _ROOMS:
            trace_rules.add(f"{_PACKAGE}.{room}")
    except Exception as error:  # private to torch, and may go or change
        warn_once(
            "untraced code",
            "torch.compile may trace the code behind launches of cached kernels: "
            f"{type(error).__name__}: {error}",
        )
