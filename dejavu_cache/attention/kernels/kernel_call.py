"""Prepared kernel launches, which implementations run and sweeps tune."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...triton_internals.environment import is_interpreting
from ...triton_internals.launch_form import form_of_launch
from ...triton_internals.repeated_launch import RepeatedLaunch
from ...triton_internals.versions import only_alignment_counts
from ...tuning.compile_together import begins_compilation

__all__ = ["KernelCall"]


class KernelCall(NamedTuple):
    """A kernel with its grid and arguments."""

    kernel: Any
    grid: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self) -> Any:
        """Launch the kernel, and return it as it was compiled.

        Returns:
            None in Triton's interpreter, and within `compile_together`, which launches nothing.
        """
        if begins_compilation(*self):
            return None
        return self.kernel[self.grid](*self.args, **self.kwargs)

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments by name."""
        return {**dict(zip(self.kernel.arg_names, self.args, strict=False)), **self.kwargs}

    def launch(self, changing: Sequence[str]) -> RepeatedLaunch | None:
        """Launch the kernel, and return a launch that takes other values of some arguments.

        Only the first launch of a form in this process is bound by Triton, which takes as long as
        several layers. The kernel must have one config, or no autotuner.

        Args:
            changing: names of these arguments.

        Returns:
            None where calling it does, and nothing can be repeated.
        """
        if begins_compilation(*self):
            return None
        form = None if is_interpreting() else form_of_launch(self.kernel, self.args, self.kwargs)
        given = dict(zip(self.kernel.arg_names, self.args, strict=False))
        kept = _kept.get(form)
        if kept is not None:
            launch = kept.with_values(self.grid, given, changing)
            if not launch(*(launch.expand(name, given[name]) for name in changing)):
                self()
            return launch
        kernel = self()
        if kernel is None:
            return None
        config = getattr(self.kernel, "best_config", None)
        function = self.kernel if config is None else self.kernel.fn
        arguments = {**self.arguments, **({} if config is None else config.kwargs)}
        ordered = {name: arguments[name] for name in self.kernel.arg_names}
        kept = RepeatedLaunch(kernel, self.grid, ordered, list(given))
        if form is not None and only_alignment_counts(function):
            if len(_kept) >= MOST_KEPT:
                _kept.clear()
            _kept[form] = kept
        return kept.with_values(self.grid, given, changing)


MOST_KEPT = 4096
"""Limit of the forms whose compiled kernels are kept."""

_kept: dict[Any, RepeatedLaunch] = {}
