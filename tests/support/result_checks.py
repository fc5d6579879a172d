"""Checkers of launches that are functions of their arguments, and such launches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from dejavu_cache.model.record import OutputVerdict, sum_up
from dejavu_cache.triton_internals.argument_access import Accesses
from dejavu_cache.tuning.expected_results import describe_difference, scale_of
from dejavu_cache.tuning.result_check import CheckOptions, ResultCheck

Write = Callable[[dict[str, Any]], None]


class Checker(ResultCheck):
    """A prepared checker of launches that are functions of the arguments."""

    def __init__(
        self,
        arguments: dict[str, Any],
        default: Write,
        known: Callable[[Write], Accesses | None],
        options: CheckOptions,
    ) -> None:
        """Compute the expected results."""
        autotuner = SimpleNamespace(nargs=arguments, reset_to_zero=[], user_defined_pre_hook=None)
        launch: Any = SimpleNamespace(autotuner=autotuner, kwargs={})
        mark: Any = None
        super().__init__(launch, default, mark, options)
        self._known = known
        self.prepare()

    def judge(self, config: Any) -> OutputVerdict:
        """Return the verdict on a config."""
        return sum_up(self.verdicts(config))

    @contextmanager
    def launched(self, config: Write) -> Iterator[None]:
        """Call a function."""
        config(self._arguments)
        yield

    def accesses(self, config: Write) -> Accesses | None:
        """Return what the code of a function says."""
        return self._known(config)


def checker(
    arguments: dict[str, Any],
    default: Write,
    *,
    accesses: Accesses | Callable[[Write], Accesses | None] | None = None,
    **options: Any,
) -> Checker:
    """Return a prepared checker of launches that are functions of the arguments.

    Args:
        arguments: the launch's arguments.
        default: computes the expected results.
        accesses: what the code says of all functions, or of each; by default nothing.
        **options: declarations.
    """
    known = accesses if callable(accesses) else lambda write: accesses
    return Checker(arguments, default, known, CheckOptions(**options))


def compare_tensors(actual: torch.Tensor, expected: torch.Tensor) -> str:
    """Describe how far a tensor is from the expected one; return an empty string if they agree."""
    parts = [(actual, expected)] if expected.numel() else []
    return describe_difference(parts, scale_of(expected)) if parts else ""


def double(arguments: dict[str, Any]) -> None:
    """Write twice the input."""
    arguments["out"].copy_(arguments["x"] * 2)


def launch_arguments(dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Return an input, an output of NaN, and the number of their elements."""
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    return {"x": x, "out": torch.full_like(x, float("nan")), "n": 1000}


def both(write: Write, more: Callable[[dict[str, Any]], object]) -> Write:
    """Return a function that writes what another one does, and more."""

    def write_both(arguments: dict[str, Any]) -> None:
        write(arguments)
        more(arguments)

    return write_both


def half_of_it(arguments: dict[str, Any]) -> None:
    """Write half of the output."""
    out, x = (arguments[name].chunk(2)[0] for name in ("out", "x"))
    out.copy_(x * 2)


def write_nothing(arguments: dict[str, Any]) -> None:
    """Leave the output as it is."""


def one_element_off(arguments: dict[str, Any]) -> None:
    """Write one wrong element."""
    double(arguments)
    arguments["out"][7] += 1
