"""Plan a prewarming: the records that a program will use, and the binaries that they need.

This machine has no GPU: what a GPU would launch is read from the records.
"""

from __future__ import annotations

import importlib
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import triton

from .. import __version__
from ..errors import PrewarmError
from ..model.record import MOST_LAUNCHES, Record, RecordedLaunch
from ..model.scenario import Context, Device, Environment, Kernel, Scenario, now
from ..model.selection import winner
from ..runtime.launch_recorder import LAUNCH_METHOD, CompiledLaunch
from ..settings import current_settings
from ..stores import (
    FileStore,
    MemoryStore,
    Store,
    TieredStore,
    open_patiently,
    shipped_stores,
    tiers_of,
)
from ..stores.manifest import RECORDS, Manifest, PrewarmedKernel
from ..system.notices import counted
from ..triton_internals.compilation import binary_key, target_of, wheel
from ..triton_internals.environment import (
    backend_for,
    backend_hash,
    compiler_settings,
    describe_codegen,
)
from ..triton_internals.generated_code import COMPARED_ONLY, has_equal_code
from ..triton_internals.hooks import noting_compilations, set_target
from ..triton_internals.identity import is_decorated_alike
from ..triton_internals.versions import TYPE_NAMES
from ..tuning.compile_ahead import compile_together
from .build import BuildPlan, CompileJob, PrewarmSpec
from .discovered_kernels import DiscoveredKernel, DiscoveredKernels

GPUS = (
    Device(name="NVIDIA H100 80GB HBM3", arch="sm_90", units=132, memory_gib=79),
    Device(name="NVIDIA H200", arch="sm_90", units=132, memory_gib=140),
)
"""GPUs that an engine may be prewarmed for without any record of them."""


def builder_environment(device: Device) -> Environment:
    """Return the environment of what is compiled here for a device.

    Raises:
        PrewarmError: nothing can be compiled for it here.
    """
    try:
        backend = backend_hash(target_of(device.arch))
    except Exception as error:
        raise PrewarmError(
            f"--device {device.name!r}: nothing can be compiled for it here: {error}"
        ) from None
    return Environment(
        device=device,
        triton=triton.__version__,
        codegen=describe_codegen(backend),
        variables=compiler_settings(),
    )


def plan(spec: PrewarmSpec, kernels: DiscoveredKernels) -> BuildPlan:
    """Copy the records that a program will use to the folder, and list the binaries to compile.

    Raises:
        PrewarmError: a device has no records, or they were made by another toolchain than the
            builder's.
    """
    notes = [
        f"{name} is left out: it cannot be imported here ({why})"
        for name, why in kernels.left_out.items()
    ]
    environments, selected = _select_records(spec, kernels, notes)
    jobs = JobList(selected)
    target = FileStore(Path(spec.folder) / RECORDS)
    for records in selected:
        target.put(records.context, records.records)
    return BuildPlan(
        jobs=tuple(jobs.needed),
        fallbacks=tuple(job for job in jobs.fallbacks if job not in jobs.needed),
        manifest=_manifest(environments, selected, jobs.scenarios),
        notes=tuple(dict.fromkeys([*notes, *jobs.notes])),
    )


def _select_records(
    spec: PrewarmSpec, kernels: DiscoveredKernels, notes: list[str]
) -> tuple[list[Environment], list[KernelRecords]]:
    """Return the devices' environments, by name, and the records of what is launched on them."""
    with open_patiently(spec.store) as own:
        shipped = shipped_stores() if current_settings().shipped else []
        store = _with_equal_code(TieredStore([*shipped, *tiers_of(own)]), kernels)
        contexts = _current_contexts(kernels, store, notes)
        environments = [
            builder_environment(_device(name, contexts, spec)) for name in sorted(spec.devices)
        ]
        if spec.engine:  # it needs no records of kernels that it does not launch
            found = TieredStore([MemoryStore()])
            for environment in environments if spec.options else ():
                dry_run(spec.engine, spec.options, environment, found)
            store = TieredStore([*tiers_of(own), *found.tiers])
            contexts = _current_contexts(kernels, store, notes)
        selected = [
            KernelRecords(kernels.by_name[context.kernel.name], context, [*store.records(context)])
            for environment in environments
            for context in _contexts_of(environment, contexts)
        ]
    if not selected:
        raise PrewarmError(
            f"{spec.store} says nothing of what the engine launches: start it once with this store "
            "and what is installed here, or name its model by --option model=config.json"
            + "".join(f" ({note})" for note in notes[:1])
        )
    return environments, selected


def _manifest(
    environments: Sequence[Environment],
    selected: Sequence[KernelRecords],
    scenarios: Mapping[str, int],
) -> Manifest:
    """Return a folder's manifest, without its files."""
    targets = (target_of(environment.device.arch) for environment in environments)
    sources = {records.kernel.name: records.kernel.source for records in selected}
    return Manifest(
        made_by=__version__,
        triton=triton.__version__,
        wheel=wheel(),
        abi=str(sysconfig.get_config_var("EXT_SUFFIX")),
        platform=sysconfig.get_platform(),
        host_key=sysconfig.get_platform(),
        devices=tuple(environment.device for environment in environments),
        targets=tuple(sorted({f"{target.backend}:{target.arch}" for target in targets})),
        codegen={own.device.name: own.codegen for own in environments},
        kernels=tuple(
            PrewarmedKernel(name=name, source=source, scenarios=scenarios[name])
            for name, source in sorted(sources.items())
        ),
        files={},
    )


def _with_equal_code(store: TieredStore, kernels: DiscoveredKernels) -> TieredStore:
    """Return a store that also has the records of equal code under the installed code's key."""
    equal = MemoryStore()
    for kernel in kernels.by_name.values():
        every = list(store.contexts(kernel.name))
        for context in every:
            if context.kernel.source in kernel.sources or not _is_comparable(kernel, context):
                continue
            target = target_of(context.environment.device.arch)
            set_target(target)
            declared = kernel.configs(target.backend)
            installed = Kernel(name=kernel.name, source=kernel.autotuners[0].declaration.source)
            current = context.model_copy(update={"kernel": installed})
            known = set(store.scenario_texts(current)) if current in every else set()
            records = [
                record.as_adopted(now())
                for record in store.records(context)
                if record.scenario.text not in known
                and has_equal_code(kernel.function, record, declared)
            ]
            if records:
                equal.put(current, records)
    return TieredStore([*store.tiers, equal])


def _is_comparable(kernel: DiscoveredKernel, context: Context) -> bool:
    """Return whether a context's code can be generated here."""
    return (
        bool(kernel.autotuners)
        and context.problem.method != LAUNCH_METHOD
        and context.environment.triton == triton.__version__
        and is_decorated_alike(context.kernel.source, kernel.source)
    )


def dry_run(
    engine: str, options: Mapping[str, str], environment: Environment, store: TieredStore
) -> None:
    """Record what an engine would launch on a GPU, by `dejavu_cache.engines.ENGINE.dry_run`.

    Raises:
        SettingsError: an option is wrong.
    """
    target = target_of(environment.device.arch)
    backend = backend_for(target)
    set_target(target, environment.device)
    with noting_compilations() as noted, compile_together():
        importlib.import_module(f"dejavu_cache.engines.{engine}.dry_run").launch_all(options)
    for source, given in noted:
        parsed = backend.parse_options({**given, **source.parse_options()})
        metadata = {**vars(parsed), "hash": binary_key(source, backend, parsed), "target": target}
        CompiledLaunch(source, metadata, None, store, environment).write()


def _current_contexts(kernels: DiscoveredKernels, store: Store, notes: list[str]) -> list[Context]:
    """Return the contexts of kernels' installed code."""
    current: list[Context] = []
    for kernel in kernels.by_name.values():
        every = list(store.contexts(kernel.name))
        ours = [context for context in every if context.kernel.source in kernel.sources]
        if every and not ours:
            notes.append(
                f"{kernel.name} is left out: its records are of other source code than is "
                "installed here"
            )
        current += ours
    return current


def _device(name: str, contexts: Sequence[Context], spec: PrewarmSpec) -> Device:
    """Return the device of a name, as the kernels' records describe it.

    Raises:
        PrewarmError: there is none, or there are several.
    """
    devices = {context.environment.device for context in contexts}
    if spec.engine:
        devices |= {gpu for gpu in GPUS if gpu.name not in {device.name for device in devices}}
    named = [device for device in devices if device.name == name]
    if len(named) == 1:
        return named[0]
    if named:
        variants = "; ".join(f"{device.units} units, {device.memory_gib} GiB" for device in named)
        raise PrewarmError(
            f"--device {name!r}: the records know several of that name ({variants}): "
            "keep one kind apart"
        )
    if not devices:
        raise PrewarmError(
            f"{spec.store} has no records of the kernels in {', '.join(spec.modules)} as they "
            "are installed here: tune them first, or look with `dejavu-cache ls`"
        )
    others = ", ".join(sorted(repr(device.name) for device in devices))
    raise PrewarmError(f"--device {name!r}: no records; choose among {others}")


def _contexts_of(environment: Environment, contexts: Sequence[Context]) -> list[Context]:
    """Return the contexts that fit the builder's environment.

    Raises:
        PrewarmError: a kernel's records for the device are all of other environments.
    """
    alike = [context for context in contexts if _fits(context, environment)]
    covered = {context.kernel.name for context in alike}
    for context in contexts:
        theirs = context.environment
        if theirs.device == environment.device and context.kernel.name not in covered:
            raise PrewarmError(
                f"the records of {context.kernel.name} for {theirs.device.name} were made by "
                f"{_toolchain(theirs)}, and this is {_toolchain(environment)}: install what they "
                f"were made by (pip install triton=={theirs.triton}), and set the same variables"
            )
    return alike


def _fits(context: Context, environment: Environment) -> bool:
    """Return whether records are an environment's; launches fit by what is in Triton's keys."""
    if context.problem.method != LAUNCH_METHOD:
        return context.environment == environment
    both = (context.environment, environment)
    theirs, ours = ((side.device.arch, side.triton, side.codegen, side.settings) for side in both)
    return theirs == ours


def _toolchain(environment: Environment) -> str:
    variables = (f" {name}={value}" for name, value in environment.variables.items())
    return f"Triton {environment.triton} with {environment.codegen}{''.join(variables)}"


class KernelRecords(NamedTuple):
    """A kernel's records of one context."""

    kernel: DiscoveredKernel
    context: Context
    records: Sequence[Record]

    @property
    def arch(self) -> str:
        """Architecture that they are compiled for."""
        return self.context.environment.device.arch

    @property
    def has_no_configs(self) -> bool:
        """Whether these are launches of a kernel that were recorded apart from its scenarios."""
        return self.context.problem.method == LAUNCH_METHOD


class JobList:
    """The binaries that a program needs when it uses certain records.

    Attributes:
        needed: the jobs of winners, and of launches that have no config.
        fallbacks: the jobs of defaults, which stand in for winners.
        scenarios: the number of scenarios with a config, by kernel.
        notes: remarks for the user.
    """

    def __init__(self, selected: Sequence[KernelRecords]) -> None:
        """List the jobs."""
        self.needed: dict[CompileJob, None] = {}
        self.fallbacks: dict[CompileJob, None] = {}
        self.scenarios: Counter[str] = Counter()
        self.notes: list[str] = []
        self._apart: defaultdict[tuple[str, str], list[RecordedLaunch]] = defaultdict(list)
        for own in selected:
            if own.has_no_configs:
                launches = (record.launches or () for record in own.records)
                self._apart[own.kernel.name, own.arch] += chain.from_iterable(launches)
        for own in selected:
            # Functions for defaults or pruning may ask Triton for its target.
            set_target(target_of(own.arch))
            if own.has_no_configs:
                self._add_launches(own)
            else:
                self._add_scenarios(own)

    def _add_launches(self, own: KernelRecords) -> None:
        """Add launches without a config, if their values are complete, and those of other sizes."""
        name, function = own.kernel.name, own.kernel.function
        names, apart = set(function.arg_names), _distinct(self._apart[name, own.arch])
        launches = [launch for launch in apart if set(launch.signature) == names]
        others = _with_all_kinds(function, launches)
        for jobs, added in ((self.needed, launches), (self.fallbacks, others)):
            for launch in added:
                jobs[CompileJob(kernel=name, arch=own.arch, launch=launch)] = None
        if len(others) > len(launches):
            count = counted(len(others) - len(launches), "launch", "launches")
            self.notes.append(f"{name}: also {count} of other kinds of sizes than were recorded")

    def _add_scenarios(self, own: KernelRecords) -> None:
        name, apart = own.kernel.name, self._apart[own.kernel.name, own.arch]
        declared = own.kernel.configs(target_of(own.arch).backend)
        unlaunched = unfinished = 0
        for record in own.records:
            first = next(iter(record.launches or ()), None)
            default = own.kernel.default(declared, record.scenario, first)
            pinned = record.pinned if record.pinned in declared else None
            chosen = pinned or winner(record, declared, default)
            if chosen is None:
                continue
            self.scenarios[name] += 1
            unfinished += record.is_unfinished
            further = [launch for launch in apart if _suits(launch, record.scenario)]
            launches = _distinct([*(record.launches or ()), *further])
            unlaunched += not launches
            for launch in launches:
                job = CompileJob(kernel=name, arch=own.arch, launch=launch)
                default = own.kernel.default(declared, record.scenario, launch)
                for config in filter(None, (chosen, default)):
                    if launch.bound in (None, config):
                        kind = self.needed if config == chosen else self.fallbacks
                        kind[job.model_copy(update={"config": config})] = None
        if unfinished:
            self.notes.append(
                f"{name}: {counted(unfinished, 'scenario has', 'scenarios have')} timings but no "
                "winner whose results were compared: launches take a fallback there; finish the "
                "tunes by `dejavu-cache sweep`"
            )
        if unlaunched:
            self.notes.append(
                f"{name}: {counted(unlaunched, 'scenario has', 'scenarios have')} a winner but "
                "nobody noted how it is launched, so they will be compiled at first use: launch "
                "them once where they may be tuned"
            )


def _distinct(launches: Iterable[RecordedLaunch]) -> list[RecordedLaunch]:
    """Drop launches that compile alike or nowhere, and what they say of who noted them."""
    alike = {"wheel": wheel(), "config": None, "code": None}
    compiled = (launch for launch in launches if launch.options != COMPARED_ONLY)
    return list(dict.fromkeys(launch.model_copy(update=alike) for launch in compiled))


MULTIPLE = ("i32", '[["tt.divisibility", 16]]', None)
KINDS = (MULTIPLE, ("i32", "[]", None), ("constexpr", None, 1))
"""What launches have of a multiple of 16, other numbers, and 1: type, attribute and constant."""


def _kind(launch: RecordedLaunch, name: str) -> tuple[object, ...]:
    return launch.signature[name], launch.attrs.get(name), launch.constants.get(name)


def _of_kind(launch: RecordedLaunch, name: str, kind: tuple[Any, ...]) -> RecordedLaunch:
    fields = launch.model_dump()
    for field, value in zip(("signature", "attrs", "constants"), kind, strict=True):
        fields[field].pop(name, None)
        if value is not None:
            fields[field][name] = value
    return RecordedLaunch.model_validate(fields)


def _with_all_kinds(function: Any, launches: Sequence[RecordedLaunch]) -> Sequence[RecordedLaunch]:
    """Return a kernel's launches, some hundred at most, with all kinds of numbers that vary.

    These have several kinds, or one that is not a multiple: limits and shapes of models mostly are,
    and strides, known by their names, follow from these.
    """
    for name in (value.name for value in function.params if not value.is_constexpr):
        seen = {_kind(launch, name) for launch in launches}.intersection(KINDS)
        varies = len(seen) > 1 or (seen - {MULTIPLE} and "stride" not in name.lower())
        if varies and len(launches) < MOST_LAUNCHES:
            numbers = [launch for launch in launches if _kind(launch, name) in KINDS]
            others = (_of_kind(launch, name, kind) for launch in numbers for kind in KINDS)
            launches = _distinct([*launches, *others])
    return launches


def _suits(launch: RecordedLaunch, scenario: Scenario) -> bool:
    """Return whether a launch fits a scenario's dtypes and its values that are compiled in."""
    for name, dtype in scenario.dtypes.items():
        type_ = launch.signature.get(name, "")
        element = type_.lstrip("*k")
        if type_.startswith("*") and TYPE_NAMES.get(dtype, element) != element:
            return False
    return all(
        launch.constants[name] == value or name not in launch.signature
        for name, value in scenario.args.items()
        if launch.signature.get(name) == "constexpr" and name in launch.constants
    )
