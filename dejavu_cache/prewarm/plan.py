"""Plan a prewarming: find the binaries that a program needs when it uses certain records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import PrewarmError
from ..model.decision_tree import Tree
from ..model.record import Record, RecordedLaunch
from ..model.scenario import Config, Context, Device, Scenario
from ..model.selection import winner
from ..runtime.launch_recorder import LAUNCH_METHOD
from ..stores import Store
from ..stores.manifest import PrewarmedKernel
from ..triton_internals.compilation import target_of, wheel
from ..triton_internals.config_names import describe
from ..triton_internals.hooks import set_target
from ..triton_internals.host_modules import platform_key
from .kernel_discovery import DiscoveredKernel, DiscoveredKernels, default_of, python_files
from .messages import BuildPlan, CompileJob, PrewarmSpec
from .toolchain import builder_toolchain, installed_triton, is_alike, refuse_toolchain

__all__ = ["plan"]


class _KernelRecords(NamedTuple):
    """The records of one kernel on one device."""

    kernel: DiscoveredKernel
    context: Context
    records: list[Record]


def plan(spec: PrewarmSpec, kernels: DiscoveredKernels, store: Store, own: Store) -> BuildPlan:
    """Return the binaries to compile and the records to copy.

    Args:
        spec: the options of the prewarming.
        kernels: the kernels of the named modules.
        store: all records that the program will use.
        own: the records among them that no package ships.

    Raises:
        PrewarmError: a device has no records, or they were made by another toolchain than the
            builder's and the user did not allow that.
    """
    notes = [
        f"{name} is left out: it cannot be imported here ({why})"
        for name, why in kernels.left_out.items()
    ]
    contexts = {
        name: _current_contexts(kernel, store, notes) for name, kernel in kernels.by_name.items()
    }
    devices = [_device(name, contexts, spec) for name in spec.devices]
    selected = [
        selection
        for device in devices
        for selection in _select_records(spec, kernels, contexts, device, store)
    ]
    _refuse_wheels(spec, selected, own)
    jobs: dict[str, CompileJob] = {}
    scenarios: Counter[str] = Counter()
    for selection in selected:
        # Functions for defaults or pruning may ask Triton for its target.
        set_target(target_of(selection.context.environment.device))
        for job in _jobs(spec, selection, selected, store, notes, scenarios):
            same = job.model_dump_json(exclude={"needed"})
            if job.needed or same not in jobs:
                jobs[same] = job
    return BuildPlan(
        jobs=tuple(jobs.values()),
        contexts=tuple(selection.context for selection in selected),
        devices=tuple(devices),
        codegen={device.name: builder_toolchain(device).codegen for device in devices},
        kernels=tuple(
            PrewarmedKernel(
                name=name,
                source=kernels.by_name[name].source,
                scenarios=scenarios[name],
            )
            for name in sorted({selection.kernel.name for selection in selected})
        ),
        notes=tuple(dict.fromkeys(notes)),
        wheel=wheel(),
        triton=installed_triton(),
        host_key=platform_key(),
        files=python_files([*spec.modules, *kernels.by_name]),
    )


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
) -> Iterator[_KernelRecords]:
    """Yield a device's records of the builder's toolchain, or of another one if that is allowed."""
    here = builder_toolchain(device)
    for name, kernel in kernels.by_name.items():
        ours = [context for context in contexts[name] if context.environment.device == device]
        alike = [context for context in ours if is_alike(context.environment, here)]
        if ours and not alike:
            refuse_toolchain(spec, ours[0].environment, here)
        for context in alike or ours:
            yield _KernelRecords(kernel, context, list(store.records(context)))


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


def _refuse_wheels(spec: PrewarmSpec, selected: list[_KernelRecords], own: Store) -> None:
    others = {
        launch.wheel
        for selection in selected
        if is_alike(
            selection.context.environment, builder_toolchain(selection.context.environment.device)
        )
        for record in own.records(selection.context)
        for launch in _distinct(record.launches or ())
        if launch.wheel != wheel()
    }
    if others and not spec.allowed.wheel:
        raise PrewarmError(
            f"the records were made by another build of Triton than is installed here "
            f"({', '.join(sorted(others))}, and this is {wheel()}), so its binaries would not be "
            "found where they were tuned: build with that Python and wheel, or compile for "
            "programs that run on this one with --allow-other-wheel"
        )


def _distinct(launches: Iterable[RecordedLaunch]) -> list[RecordedLaunch]:
    """Drop launches that only differ in the build of Triton, preferring the builder's own."""
    distinct: dict[str, RecordedLaunch] = {}
    for launch in launches:
        same = launch.model_dump_json(exclude={"wheel"})
        if launch.wheel == wheel() or same not in distinct:
            distinct[same] = launch
    return list(distinct.values())


def _jobs(
    spec: PrewarmSpec,
    selection: _KernelRecords,
    selected: list[_KernelRecords],
    store: Store,
    notes: list[str],
    scenarios: Counter[str],
) -> Iterator[CompileJob]:
    environment = selection.context.environment
    arch = environment.device.arch
    if not is_alike(environment, builder_toolchain(environment.device)):
        notes.append(
            f"{selection.kernel.name}: records of Triton {environment.triton} only, no binaries"
        )
        return
    if selection.context.problem.method == LAUNCH_METHOD:
        yield from _jobs_without_config(selection, arch)
        return
    declared = selection.kernel.configs(target_of(environment.device).backend)
    extra = [
        launch
        for other in selected
        if other.context.problem.method == LAUNCH_METHOD
        and (other.kernel.name, other.context.environment) == (selection.kernel.name, environment)
        for record in other.records
        for launch in record.launches or ()
    ]
    trees = [
        tree
        for tree, _ in store.trees(selection.kernel.name)
        if tree.context.environment.device == environment.device
    ]
    bare = 0
    for record in selection.records:
        best = _chosen_config(selection, record, declared)
        if best is None:
            continue
        scenarios[selection.kernel.name] += 1
        launches = _distinct(
            [
                *(record.launches or ()),
                *(launch for launch in extra if _suits(launch, record.scenario)),
            ]
        )
        bare += not launches
        for launch in launches:
            yield from _of_launch(spec, selection, arch, launch, best, record, declared, trees)
    if bare:
        notes.append(
            f"{selection.kernel.name}: {bare} scenarios have a winner but nobody noted how it is "
            "launched, so they will be compiled at first use: launch them once where they may "
            "be tuned"
        )


def _chosen_config(
    selection: _KernelRecords, record: Record, declared: Mapping[Config, Any]
) -> Config | None:
    """Return the config that a launch runs: the pinned one if it is declared, or the winner."""
    if record.pinned is not None and record.pinned in declared:
        return record.pinned
    default = _default(selection, record, (record.launches or (None,))[0], declared)
    return winner(record, declared, default)


def _jobs_without_config(selection: _KernelRecords, arch: str) -> Iterator[CompileJob]:
    """Yield jobs for launches without a config, whose recorded values are complete."""
    for record in selection.records:
        for launch in _distinct(record.launches or ()):
            if set(launch.signature) == set(selection.kernel.function.arg_names):
                yield CompileJob(kernel=selection.kernel.name, arch=arch, launch=launch)


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


def _of_launch(
    spec: PrewarmSpec,
    selection: _KernelRecords,
    arch: str,
    launch: RecordedLaunch,
    best: Config,
    record: Record,
    declared: Mapping[Config, Any],
    trees: Sequence[Tree],
) -> Iterator[CompileJob]:
    configs = {best: True}
    if spec.fallbacks:
        for config in _fallbacks(selection, record, launch, declared, trees):
            configs.setdefault(config, False)
    for config, needed in configs.items():
        if launch.bound in (None, config):
            yield CompileJob(
                kernel=selection.kernel.name, arch=arch, launch=launch, config=config, needed=needed
            )


def _fallbacks(
    selection: _KernelRecords,
    record: Record,
    launch: RecordedLaunch,
    declared: Mapping[Config, Any],
    trees: Sequence[Tree],
) -> Iterator[Config]:
    """Yield the configs that may replace the winner: the default, and the choices of trees."""
    default = _default(selection, record, launch, declared)
    if default is not None:
        yield default
    for tree in trees:
        chosen = next(
            (config for config in tree.rank(record.scenario.values) if config in declared), None
        )
        if chosen is not None:
            yield chosen


def _default(
    selection: _KernelRecords,
    record: Record,
    launch: RecordedLaunch | None,
    declared: Mapping[Config, Any],
) -> Config | None:
    constants = launch.constants if launch else {}
    plain = {name: value for name, value in constants.items() if not _is_json(value)}
    for autotuner in selection.kernel.autotuners:
        default = default_of(autotuner, record.scenario, plain, next(iter(declared.values()), None))
        if default is not None:
            return describe(default)
    return None


def _is_json(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("json:")
