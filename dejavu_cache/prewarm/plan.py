"""Plan a prewarming: find the binaries that a program needs when it uses certain records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ..errors import PrewarmError
from ..model.record import RecordSet
from ..model.scenario import Context, Device
from ..runtime.launch_recorder import LAUNCH_METHOD
from ..stores import MemoryStore, Store, TieredStore, tiers_of
from ..stores.manifest import PrewarmedKernel
from ..triton_internals.compilation import target_of, wheel
from ..triton_internals.hooks import set_target
from ..triton_internals.host_modules import platform_key
from .compile_jobs import KernelJobs, KernelRecords, distinct_launches
from .kernel_discovery import DiscoveredKernel, DiscoveredKernels, python_files
from .messages import BuildPlan, CompileJob, PrewarmSpec
from .recorded_code import equal_records
from .toolchain import builder_toolchain, installed_triton, is_alike, refuse_toolchain

__all__ = ["plan"]


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
    adopted = [one for kernel in kernels.by_name.values() for one in equal_records(kernel, store)]
    store = TieredStore([*tiers_of(store), _memory_of(adopted)]) if adopted else store
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
    jobs, scenarios = _compile_jobs(spec, selected, store, notes)
    return BuildPlan(
        jobs=jobs,
        contexts=tuple(selection.context for selection in selected),
        adopted=tuple(adopted),
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
) -> Iterator[KernelRecords]:
    """Yield a device's records of the builder's toolchain, or of another one if that is allowed."""
    here = builder_toolchain(device)
    for name, kernel in kernels.by_name.items():
        ours = [context for context in contexts[name] if context.environment.device == device]
        alike = [context for context in ours if is_alike(context.environment, here)]
        if ours and not alike:
            refuse_toolchain(spec, ours[0].environment, here)
        for context in alike or ours:
            yield KernelRecords(kernel, context, list(store.records(context)))


def _compile_jobs(
    spec: PrewarmSpec, selected: list[KernelRecords], store: Store, notes: list[str]
) -> tuple[tuple[CompileJob, ...], Counter[str]]:
    """Return the binaries to compile, each once, and the number of scenarios by kernel."""
    jobs: dict[str, CompileJob] = {}
    scenarios: Counter[str] = Counter()
    for selection in selected:
        name, environment = selection.kernel.name, selection.context.environment
        if not is_alike(environment, builder_toolchain(environment.device)):
            notes.append(f"{name}: records of Triton {environment.triton} only, no binaries")
            continue
        wanted = _kernel_jobs(spec, selection, selected, store)
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


def _kernel_jobs(
    spec: PrewarmSpec, selection: KernelRecords, selected: list[KernelRecords], store: Store
) -> KernelJobs:
    """Return the jobs of a selection's records, with what other records say of its kernel."""
    name, environment = selection.kernel.name, selection.context.environment
    # Functions for defaults or pruning may ask Triton for its target.
    set_target(target_of(environment.device))
    extra = [
        launch
        for other in selected
        if other.context.problem.method == LAUNCH_METHOD
        and (other.kernel.name, other.context.environment) == (name, environment)
        for record in other.records
        for launch in record.launches or ()
    ]
    trees = [
        tree
        for tree, _ in store.trees(name)
        if tree.context.environment.device == environment.device
    ]
    return KernelJobs(selection, extra, trees if spec.fallbacks else None)


def _refuse_wheels(spec: PrewarmSpec, selected: list[KernelRecords], own: Store) -> None:
    """Raise `PrewarmError` if launches were only recorded with another build of Triton."""
    others = {
        launch.wheel
        for selection in selected
        if is_alike(
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
