"""Launches while a process serves: a compiled config stands in for one that is not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ..model.scenario import Scenario
from ..model.selection import distance
from ..system.notices import logger
from ..triton_internals.hooks import refusing_compilation
from ..triton_internals.triton_objects import jit_function
from .choices import ChosenConfig
from .service_phase import is_serving, note_compilation

__all__ = ["CompiledConfigs"]

_MOST_SCENARIOS = 4096

_RETRY_AFTER = 5.0
"""Seconds until the config that a stand-in replaces is tried again: a warm-up may compile it."""


class CompiledConfigs:
    """Configs that an autotuner has launched, and thus compiled, by scenario.

    Args:
        kernel: the kernel's name, for the log.
    """

    def __init__(self, kernel: str) -> None:
        """Begin with none."""
        self._kernel = kernel
        self._launched: dict[Scenario, Any] = {}

    def launch(
        self,
        autotuner: Any,
        chosen: ChosenConfig,
        launch: Callable[[ChosenConfig], Any],
        usable: Callable[[], Sequence[Any]],
        *,
        may_compile: bool,
    ) -> tuple[Any, ChosenConfig]:
        """Launch the chosen config, or while the process serves one whose kernel is in memory.

        Args:
            autotuner: the `CachedAutotuner` that launches.
            chosen: the config that the launch should run.
            launch: launches a config.
            usable: returns the configs that the launch may run.
            may_compile: whether the chosen config is launched in any case.

        Returns:
            What `launch` returned, and the config. If no usable kernel is in memory, the chosen
            config is compiled after all.
        """
        if not may_compile and is_serving():
            launched = self._launch_from_memory(autotuner, chosen, launch, usable)
            if launched is not None:
                return launched
            note_compilation(self._kernel)
        result = launch(chosen)
        if chosen.resolution is not None:
            scenario = chosen.resolution.scenario
            if scenario in self._launched or len(self._launched) < _MOST_SCENARIOS:
                self._launched[scenario] = chosen.config
        return result, chosen

    def _launch_from_memory(
        self,
        autotuner: Any,
        chosen: ChosenConfig,
        launch: Callable[[ChosenConfig], Any],
        usable: Callable[[], Sequence[Any]],
    ) -> tuple[Any, ChosenConfig] | None:
        with refusing_compilation(jit_function(autotuner)) as refused:
            result = launch(chosen)
            if not refused.count:
                return result, chosen
            for config in self._nearest_first(chosen, usable):
                until = time.monotonic() + _RETRY_AFTER
                stand_in = chosen._replace(config=config, options=config.all_kwargs(), until=until)
                refused.count = 0
                result = launch(stand_in)
                if not refused.count:
                    logger.info("%s: (%s) stands in for (%s)", self._kernel, config, chosen.config)
                    return result, stand_in
        return None

    def _nearest_first(
        self, chosen: ChosenConfig, usable: Callable[[], Sequence[Any]]
    ) -> Sequence[Any]:
        """Return the usable configs that were launched, those of the nearest scenarios first."""
        launched = dict(self._launched)
        if chosen.resolution is None or not launched:
            return []
        scenario = chosen.resolution.scenario
        nearest = sorted(launched, key=lambda other: distance(scenario, other))
        allowed = {id(config) for config in usable()}
        distinct = {id(launched[other]): launched[other] for other in nearest}
        return [
            config
            for identity, config in distinct.items()
            if identity in allowed and config is not chosen.config
        ]
