"""Tuning requests made from the cases of a suite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ..errors import SettingsError
from ..model.scenario import Context, Scenario
from ..runtime.autotuner import CachedAutotuner
from ..runtime.request import Request
from ..triton_internals.environment import (
    INTERPRETER_INDEX,
    current_device,
    current_environment,
    is_interpreting,
)
from ..triton_internals.identity import kernel_name
from .messages import MissedScenario
from .suite import Case, Suite

__all__ = ["cases_of_misses", "make_request", "requested_scenario"]


def make_request(case: Case) -> Request:
    """Return the request that a launch of a case would make.

    `triton.heuristics` around the autotuner add their arguments, as they would in a launch.

    Raises:
        SettingsError: the case's kernel is not decorated with `cached_autotune`, or its arguments
            are not a function that returns them by name.
    """
    arguments = _make_arguments(case)
    *outer_layers, autotuner = _decorator_layers(case.kernel)
    if not isinstance(autotuner, CachedAutotuner):
        raise SettingsError(f"case {case.name}: its kernel is not decorated with @cached_autotune")
    for layer in outer_layers:
        for name, heuristic in getattr(layer, "values", {}).items():
            arguments[name] = heuristic(dict(arguments))
    positional = []
    for name in autotuner.arg_names:  # by position where possible, as pruning functions expect
        if name not in arguments:
            break
        positional.append(arguments.pop(name))
    return autotuner.request(*positional, grid=case.grid, warmup=False, **arguments)


def _make_arguments(case: Case) -> dict[str, Any]:
    made: object = case.arguments() if callable(case.arguments) else None
    if not isinstance(made, Mapping):
        raise SettingsError(
            f"case {case.name}: arguments is not a function that returns a dict of them by name"
        )
    return dict(made)


def requested_scenario(context: Context, scenario: Scenario) -> MissedScenario:
    """Return a request's scenario as a program that missed it would report it."""
    return MissedScenario(
        kernel=context.kernel.name, device=context.environment.device.name, scenario=scenario
    )


def cases_of_misses(
    suite: Suite, cases: Sequence[Case], misses: Sequence[MissedScenario]
) -> Iterator[tuple[Case, MissedScenario]]:
    """Yield the cases that a suite makes for the misses of its cases' kernels on this device.

    If the suite raises for a miss, the miss's case raises the same error when its turn comes.
    """
    kernels = {
        kernel_name(layer.fn)
        for case in cases
        for layer in _decorator_layers(case.kernel)
        if isinstance(layer, CachedAutotuner)
    }
    index = INTERPRETER_INDEX if is_interpreting() else current_device()
    device = current_environment(index).device.name
    for miss in misses:
        if miss.kernel not in kernels or miss.device != device:
            continue
        try:
            made = suite.cases_for(miss.kernel, miss.scenario)
        except Exception as error:
            made = [Case(f"{miss.kernel}{miss.scenario}", None, None, partial(_raise, error))]
        for case in made:
            yield case, miss


def _raise(error: Exception) -> Mapping[str, Any]:
    raise error


def _decorator_layers(kernel: Any) -> Iterator[Any]:
    """Yield a kernel and the layers below it, down to the cached autotuner if it has one."""
    yield kernel
    while not isinstance(kernel, CachedAutotuner):
        kernel = getattr(kernel, "fn", None)
        if kernel is None:
            return
        yield kernel
