"""Plan a prewarming: find the binaries that a program needs when it uses certain records."""

from __future__ import annotations

import sysconfig
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import triton

from .. import __version__
from ..errors import PrewarmError
from ..model.decision_tree import Tree
from ..model.record import Record, RecordedLaunch, RecordSet
from ..model.scenario import Config, Context, Device, Environment, Scenario
from ..model.selection import winner
from ..runtime.launch_recorder import LAUNCH_METHOD
from ..stores import FileStore, MemoryStore, Store, TieredStore, tiers_of
from ..stores.manifest import RECORDS, Manifest, PrewarmedKernel
from ..system.notices import counted
from ..triton_internals.compilation import target_of, wheel
from ..triton_internals.config_names import describe
from ..triton_internals.environment import backend_hash, compiler_settings, describe_codegen
from ..triton_internals.hooks import platform_key, set_target
from .compilers import BuildPlan, CompileJob, PrewarmSpec, all_records, own_records
from .kernel_discovery import DiscoveredKernel, DiscoveredKernels, default_of, python_files
from .recorded_code import equal_records

__all__ = ["Toolchain", "builder_toolchain", "plan"]


class Toolchain(NamedTuple):
    """What decides, besides the source and the device, which binary a compilation gives."""

    triton: str
    codegen: str
    variables: dict[str, str]


def builder_toolchain(device: Device) -> Toolchain:
    """Return the builder's toolchain for a device."""
    try:
        backend = backend_hash(target_of(device))
    except Exception as error:
        raise PrewarmError(
            f"--device {device.name!r}: nothing can be compiled for it here: {error}"
        ) from None
    return Toolchain(triton.__version__, describe_codegen(backend), compiler_settings())


def _is_alike(environment: Environment, here: Toolchain) -> bool:
    """Return whether records were made with the same toolchain."""
    return (environment.triton, environment.codegen, environment.variables) == here


def _refuse_toolchain(spec: PrewarmSpec, theirs: Environment, here: Toolchain) -> None:
    """Refuse records of another toolchain, unless that is allowed.

    Raises:
        PrewarmError: it is not allowed; the message names the remedy.
    """
    if spec.allowed.triton:
        return
    if theirs.triton != here.triton:
        remedy = f"pip install triton=={theirs.triton}"
    elif theirs.codegen != here.codegen:
        remedy = f"install the build of Triton that brings {theirs.codegen}"
    else:
        variables = (
            " ".join(f"{name}={value}" for name, value in theirs.variables.items())
            or "none of them"
        )
        remedy = f"set the variables that change what Triton generates as they were: {variables}"
    raise PrewarmError(
        f"the records for {theirs.device.name} were made by Triton {theirs.triton} with "
        f"{theirs.codegen}, and this is Triton {here.triton} with {here.codegen}: {remedy}, "
        "or take the records alone with --allow-other-triton"
    )


@dataclass
class KernelJobs:
    """The binaries that a program needs when it uses one kernel's records of one device.

    Attributes:
        kernel: the kernel.
        context: the context of the records.
        records: the records.
        extra: launches of the kernel that are recorded apart from its scenarios.
        trees: decision trees that choose configs for scenarios without records; None if what stands
            in for winners, these and the default, is not compiled.
        scenarios: the number of scenarios with a config, once the jobs were listed.
        notes: remarks for the user, once the jobs were listed.
    """

    kernel: DiscoveredKernel
    context: Context
    records: list[Record]
    extra: Sequence[RecordedLaunch] = ()
    trees: Sequence[Tree] | None = None
    scenarios: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def _device(self) -> Device:
        return self.context.environment.device

    @cached_property
    def _declared(self) -> dict[Config, Any]:
        return self.kernel.configs(target_of(self._device).backend)

    def jobs(self) -> Iterator[CompileJob]:
        """Yield the jobs; one may come more than once."""
        if self.context.problem.method == LAUNCH_METHOD:
            yield from self._jobs_without_config()
        else:
            yield from self._jobs_of_scenarios()

    def _jobs_without_config(self) -> Iterator[CompileJob]:
        """Yield jobs for launches without a config, whose recorded values are complete."""
        for record in self.records:
            for launch in distinct_launches(record.launches or ()):
                if set(launch.signature) == set(self.kernel.function.arg_names):
                    yield CompileJob(kernel=self.kernel.name, arch=self._device.arch, launch=launch)

    def _jobs_of_scenarios(self) -> Iterator[CompileJob]:
        without_launch = unfinished = 0
        for record in self.records:
            best = self._chosen_config(record)
            if best is None:
                continue
            self.scenarios += 1
            unfinished += record.is_unfinished
            extra = [launch for launch in self.extra if _suits(launch, record.scenario)]
            launches = distinct_launches([*(record.launches or ()), *extra])
            without_launch += not launches
            for launch in launches:
                yield from self._jobs_of_launch(launch, best, record)
        if unfinished:
            self.notes.append(
                f"{self.kernel.name}: "
                f"{counted(unfinished, 'scenario has', 'scenarios have')} timings but no winner "
                "whose results were compared: launches take a fallback there; finish the tunes by "
                "`dejavu-cache sweep`"
            )
        if without_launch:
            self.notes.append(
                f"{self.kernel.name}: "
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
                    kernel=self.kernel.name,
                    arch=self._device.arch,
                    launch=launch,
                    config=config,
                    needed=needed,
                )

    def _fallbacks(self, record: Record, launch: RecordedLaunch) -> Iterator[Config]:
        """Yield the configs that may replace the winner: the default, and the choices of trees."""
        if self.trees is None:
            return
        default = self._default(record, launch)
        if default is not None:
            yield default
        for tree in self.trees:
            ranked = tree.rank(record.scenario.values)
            yield from [config for config in ranked if config in self._declared][:1]

    def _default(self, record: Record, launch: RecordedLaunch | None) -> Config | None:
        constants = launch.constants if launch else {}
        plain = {name: value for name, value in constants.items() if not _is_json(value)}
        for autotuner in self.kernel.autotuners:
            default = default_of(autotuner, record.scenario, plain, self._declared.values())
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


def plan(spec: PrewarmSpec, kernels: DiscoveredKernels) -> BuildPlan:
    """Copy the records that a program will use to the folder, and list the binaries to compile.

    Args:
        spec: the options of the prewarming.
        kernels: the kernels of the named modules.

    Raises:
        PrewarmError: a device has no records, or they were made by another toolchain than the
            builder's and the user did not allow that.
    """
    notes = [
        f"{name} is left out: it cannot be imported here ({why})"
        for name, why in kernels.left_out.items()
    ]
    with own_records(spec.store) as own:
        store = all_records(own)
        adopted = [
            new for kernel in kernels.by_name.values() for new in equal_records(kernel, store)
        ]
        store = TieredStore([*tiers_of(store), _memory_of(adopted)]) if adopted else store
        contexts = {
            name: _current_contexts(kernel, store, notes)
            for name, kernel in kernels.by_name.items()
        }
        devices = [_device(name, contexts, spec) for name in spec.devices]
        selected = [
            selection
            for device in devices
            for selection in _select_records(spec, kernels, contexts, device, store)
        ]
        _refuse_wheels(spec, selected, own)
        jobs, scenarios = _compile_jobs(spec, selected, store, notes)
        _copy_records(selected, devices, store, FileStore(Path(spec.folder) / RECORDS))
    targets = {target_of(device) for device in devices}
    return BuildPlan(
        jobs=jobs,
        manifest=Manifest(
            made_by=__version__,
            triton=triton.__version__,
            wheel=wheel(),
            abi=str(sysconfig.get_config_var("EXT_SUFFIX")),
            platform=sysconfig.get_platform(),
            host_key=platform_key(),
            devices=tuple(sorted(devices, key=lambda device: device.name)),
            targets=tuple(sorted(f"{target.backend}:{target.arch}" for target in targets)),
            codegen={device.name: builder_toolchain(device).codegen for device in devices},
            kernels=tuple(
                PrewarmedKernel(
                    name=name, source=kernels.by_name[name].source, scenarios=scenarios[name]
                )
                for name in sorted({selection.kernel.name for selection in selected})
            ),
            files={},
        ),
        notes=tuple(dict.fromkeys(notes)),
        files=python_files([*spec.modules, *kernels.by_name]),
    )


def _copy_records(
    selected: Sequence[KernelJobs], devices: Collection[Device], source: Store, target: FileStore
) -> None:
    for selection in selected:
        target.put(selection.context, selection.records)
    for kernel in {selection.kernel.name for selection in selected}:
        for tree, _ in source.trees(kernel):
            if tree.context.environment.device in devices:
                target.put_tree(tree)


def _memory_of(sets: Iterable[RecordSet]) -> MemoryStore:
    """Return a store of record sets."""
    store = MemoryStore()
    for records in sets:
        store.put(records.context, records.records)
    return store


def _current_contexts(kernel: DiscoveredKernel, store: Store, notes: list[str]) -> list[Context]:
    """Return the contexts of a kernel's present source code."""
    every = list(store.contexts(kernel.name))
    ours = [context for context in every if context.kernel.source in kernel.sources]
    if every and not ours:
        notes.append(
            f"{kernel.name} is left out: its records are of other source code than is installed "
            "here"
        )
    return ours


def _select_records(
    spec: PrewarmSpec,
    kernels: DiscoveredKernels,
    contexts: Mapping[str, list[Context]],
    device: Device,
    store: Store,
) -> Iterator[KernelJobs]:
    """Yield a device's records of the builder's toolchain, or of another one if that is allowed."""
    here = builder_toolchain(device)
    for name, kernel in kernels.by_name.items():
        ours = [context for context in contexts[name] if context.environment.device == device]
        alike = [context for context in ours if _is_alike(context.environment, here)]
        if ours and not alike:
            _refuse_toolchain(spec, ours[0].environment, here)
        for context in alike or ours:
            yield KernelJobs(kernel, context, list(store.records(context)))


def _compile_jobs(
    spec: PrewarmSpec, selected: list[KernelJobs], store: Store, notes: list[str]
) -> tuple[tuple[CompileJob, ...], Counter[str]]:
    """Return the binaries to compile, each once, and the number of scenarios by kernel."""
    jobs: dict[str, CompileJob] = {}
    scenarios: Counter[str] = Counter()
    for wanted in selected:
        name, environment = wanted.kernel.name, wanted.context.environment
        if not _is_alike(environment, builder_toolchain(environment.device)):
            notes.append(f"{name}: records of Triton {environment.triton} only, no binaries")
            continue
        # Functions for defaults or pruning may ask Triton for its target.
        set_target(target_of(environment.device))
        wanted.extra = [
            launch
            for other in selected
            if other.context.problem.method == LAUNCH_METHOD
            and (other.kernel.name, other.context.environment) == (name, environment)
            for record in other.records
            for launch in record.launches or ()
        ]
        if spec.fallbacks:
            trees = (tree for tree, _ in store.trees(name))
            wanted.trees = [
                tree for tree in trees if tree.context.environment.device == environment.device
            ]
        for job in wanted.jobs():
            without_need = job.model_dump_json(exclude={"needed"})
            if job.needed or without_need not in jobs:
                jobs[without_need] = job
        scenarios[name] += wanted.scenarios
        notes.extend(wanted.notes)
    return tuple(jobs.values()), scenarios


def _device(name: str, contexts: Mapping[str, list[Context]], spec: PrewarmSpec) -> Device:
    """Return the device of a name, as the kernels' records describe it.

    Raises:
        PrewarmError: there is none.
    """
    counts = Counter(context.environment.device for group in contexts.values() for context in group)
    named = [device for device, _ in _most_common(counts) if device.name == name]
    if len(named) > 1:
        variants = "; ".join(f"{device.units} units, {device.memory_gib} GiB" for device in named)
        raise PrewarmError(
            f"--device {name!r}: the records know several of that name ({variants}): "
            "keep one kind apart"
        )
    if named:
        return named[0]
    if not counts:
        raise PrewarmError(
            f"{spec.store} has no records of the kernels in {', '.join(spec.modules)} as they "
            "are installed here: tune them first, or look with `dejavu-cache ls`"
        )
    recorded = ", ".join(sorted({f"{device.name!r} ({device.arch})" for device in counts}))
    near = [
        device.name
        for device in counts
        if device.name.split()[:2] == name.split()[:2] or _same_family(name, device)
    ]
    hint = (
        f"; the nearest of its family is {near[0]!r}, whose timings are not its own" if near else ""
    )
    raise PrewarmError(f"--device {name!r}: no records; there are some for {recorded}{hint}")


def _most_common(counts: Counter[Device]) -> list[tuple[Device, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0].model_dump_json()))


_FAMILIES = (
    {"A100", "A800", "A30"},
    {"H100", "H200", "H20", "H800", "GH200"},
    {"B100", "B200", "GB200"},
    {"B300", "GB300"},
    {"MI300X", "MI300A", "MI325X", "MI308X"},
    {"L4", "L40", "L40S"},
)
"""Groups of device models that one compiled kernel runs on."""


def _same_family(name: str, device: Device) -> bool:
    wanted, there = (
        {*text.replace("-", " ").replace("_", " ").split()} for text in (name, device.name)
    )
    return any(wanted & family and there & family for family in _FAMILIES)


def _refuse_wheels(spec: PrewarmSpec, selected: list[KernelJobs], own: Store) -> None:
    """Raise `PrewarmError` if launches were only recorded with another build of Triton."""
    others = {
        launch.wheel
        for selection in selected
        if _is_alike(
            selection.context.environment, builder_toolchain(selection.context.environment.device)
        )
        for record in own.records(selection.context)
        for launch in distinct_launches(record.launches or ())
        if launch.wheel != wheel()
    }
    if others and not spec.allowed.wheel:
        raise PrewarmError(
            f"the records were made by another build of Triton than is installed here "
            f"({', '.join(sorted(others))}, and this is {wheel()}), so its binaries would not be "
            "found where they were tuned: build with that Python and wheel, or compile for "
            "programs that run on this one with --allow-other-wheel"
        )
