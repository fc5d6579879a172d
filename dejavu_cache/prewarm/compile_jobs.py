"""List the binaries that launches of one kernel need, by its records of one device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ..model.decision_tree import Tree
from ..model.record import Record, RecordedLaunch
from ..model.scenario import Config, Context, Scenario
from ..model.selection import winner
from ..runtime.launch_recorder import LAUNCH_METHOD
from ..system.plurals import counted
from ..triton_internals.compilation import target_of, wheel
from ..triton_internals.config_names import describe
from .kernel_discovery import DiscoveredKernel, default_of
from .messages import CompileJob

__all__ = ["KernelJobs", "KernelRecords", "distinct_launches"]


class KernelRecords(NamedTuple):
    """The records of one kernel on one device."""

    kernel: DiscoveredKernel
    context: Context
    records: list[Record]


class KernelJobs:
    """The binaries that a program needs when it uses one kernel's records.

    Args:
        selection: the records.
        extra: launches of the kernel that are recorded apart from its scenarios.
        trees: decision trees that choose configs for scenarios without records; None if what stands
            in for winners, these and the default, is not compiled.

    Attributes:
        scenarios: the number of scenarios with a config, once the jobs were listed.
        notes: remarks for the user.
    """

    def __init__(
        self,
        selection: KernelRecords,
        extra: Sequence[RecordedLaunch],
        trees: Sequence[Tree] | None,
    ) -> None:
        """List nothing yet; the arguments are described at the class."""
        self.scenarios = 0
        self.notes: list[str] = []
        self._kernel = selection.kernel
        self._context = selection.context
        self._records = selection.records
        self._arch = selection.context.environment.device.arch
        self._declared = self._kernel.configs(target_of(self._context.environment.device).backend)
        self._extra = extra
        self._trees = trees

    def jobs(self) -> Iterator[CompileJob]:
        """Yield the jobs; one may come more than once."""
        if self._context.problem.method == LAUNCH_METHOD:
            yield from self._jobs_without_config()
        else:
            yield from self._jobs_of_scenarios()

    def _jobs_without_config(self) -> Iterator[CompileJob]:
        """Yield jobs for launches without a config, whose recorded values are complete."""
        for record in self._records:
            for launch in distinct_launches(record.launches or ()):
                if set(launch.signature) == set(self._kernel.function.arg_names):
                    yield CompileJob(kernel=self._kernel.name, arch=self._arch, launch=launch)

    def _jobs_of_scenarios(self) -> Iterator[CompileJob]:
        without_launch = unfinished = 0
        for record in self._records:
            best = self._chosen_config(record)
            if best is None:
                continue
            self.scenarios += 1
            unfinished += record.is_unfinished
            extra = [launch for launch in self._extra if _suits(launch, record.scenario)]
            launches = distinct_launches([*(record.launches or ()), *extra])
            without_launch += not launches
            for launch in launches:
                yield from self._jobs_of_launch(launch, best, record)
        if unfinished:
            self.notes.append(
                f"{self._kernel.name}: "
                f"{counted(unfinished, 'scenario has', 'scenarios have')} timings but no winner "
                "whose results were compared: launches take a fallback there; finish the tunes by "
                "`dejavu-cache sweep`"
            )
        if without_launch:
            self.notes.append(
                f"{self._kernel.name}: "
                f"{counted(without_launch, 'scenario has', 'scenarios have')} a winner but nobody "
                "noted how it is launched, so they will be compiled at first use: launch them once "
                "where they may be tuned"
            )

    def _chosen_config(self, record: Record) -> Config | None:
        """Return the config that a launch runs: the pinned one if it is declared, or the winner."""
        if record.pinned is not None and record.pinned in self._declared:
            return record.pinned
        default = self._default(record, (record.launches or (None,))[0])
        return winner(record, self._declared, default)

    def _jobs_of_launch(
        self, launch: RecordedLaunch, best: Config, record: Record
    ) -> Iterator[CompileJob]:
        configs = {best: True}
        for config in self._fallbacks(record, launch):
            configs.setdefault(config, False)
        for config, needed in configs.items():
            if launch.bound in (None, config):
                yield CompileJob(
                    kernel=self._kernel.name,
                    arch=self._arch,
                    launch=launch,
                    config=config,
                    needed=needed,
                )

    def _fallbacks(self, record: Record, launch: RecordedLaunch) -> Iterator[Config]:
        """Yield the configs that may replace the winner: the default, and the choices of trees."""
        if self._trees is None:
            return
        default = self._default(record, launch)
        if default is not None:
            yield default
        for tree in self._trees:
            ranked = tree.rank(record.scenario.values)
            yield from [config for config in ranked if config in self._declared][:1]

    def _default(self, record: Record, launch: RecordedLaunch | None) -> Config | None:
        constants = launch.constants if launch else {}
        plain = {name: value for name, value in constants.items() if not _is_json(value)}
        first = next(iter(self._declared.values()), None)
        for autotuner in self._kernel.autotuners:
            default = default_of(autotuner, record.scenario, plain, first)
            if default is not None:
                return describe(default)
        return None


def distinct_launches(launches: Iterable[RecordedLaunch]) -> list[RecordedLaunch]:
    """Drop launches that compile alike, preferring those by the builder's own build of Triton."""
    distinct: dict[str, RecordedLaunch] = {}
    for launch in launches:
        same = launch.model_dump_json(exclude={"wheel", "config", "code"})
        if launch.wheel == wheel() or same not in distinct:
            distinct[same] = launch
    return list(distinct.values())


_TYPES = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "bool": "i1",
}
"""Triton's names of PyTorch's dtypes."""


def _suits(launch: RecordedLaunch, scenario: Scenario) -> bool:
    """Return whether a launch fits a scenario's dtypes and its values that are compiled in."""
    for name, dtype in scenario.dtypes.items():
        type_ = launch.signature.get(name, "")
        if type_.startswith("*") and _TYPES.get(dtype, type_.lstrip("*k")) != type_.lstrip("*k"):
            return False
    return all(
        launch.constants[name] == value or name not in launch.signature
        for name, value in scenario.args.items()
        if launch.signature.get(name) == "constexpr" and name in launch.constants
    )


def _is_json(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("json:")
