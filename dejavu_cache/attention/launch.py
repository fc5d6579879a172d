"""A kernel's launch, made but not yet done: what an implementation runs, and what a sweep tunes."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Launch"]


class Launch(NamedTuple):
    """A kernel, its grid and its arguments."""

    kernel: Any
    grid: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self) -> None:
        """Launches."""
        self.kernel[self.grid](*self.args, **self.kwargs)

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments by name."""
        return {**dict(zip(self.kernel.arg_names, self.args, strict=False)), **self.kwargs}
