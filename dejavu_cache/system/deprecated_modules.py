"""Import moved modules under their former names, with a DeprecationWarning.

A finder at the end of `sys.meta_path` answers only for the names in its table, and only after every
other finder has failed: a module that exists is never shadowed, and other imports do not slow down.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

__all__ = ["LIBRARY_MOVES", "RENAMED_NAMES", "redirect_modules"]

LIBRARY_MOVES = {
    "adopting": "runtime.foreign_results",
    "attention.arguments": "attention.batch",
    "attention.auto": "attention.dispatch",
    "attention.cases": "attention.sweep_suite",
    "attention.common": "attention.kernels.softmax_tiles",
    "attention.hopper": "attention.kernels.hopper attention.kernels.hopper_coverage",
    "attention.hopper_kernel": "attention.kernels.hopper_kernel",
    "attention.launch": (
        "attention.kernels.kernel_call attention.kernels.counters attention.kernels.multiprocessors"
    ),
    "attention.naive": "attention.kernels.naive",
    "attention.qblock": "attention.kernels.qblock",
    "attention.segmented": "attention.kernels.segmented",
    "attention.spaces": "attention.search_space attention.hopper_search_space",
    "attention.static_grid": "attention.kernels.static_grid",
    "autotune": "runtime.autotuner",
    "buckets": "model.buckets",
    "bundle": "prewarm.bundle",
    "bundle.archive": "prewarm.bundle.archive",
    "bundle.fit": "prewarm.bundle.compatibility",
    "bundle.oci": "prewarm.bundle.oci_image",
    "configs": "triton_internals.config_names",
    "consensus": "runtime.consensus",
    "deprecated_modules": "system.deprecated_modules",
    "environment": "triton_internals.environment",
    "graphs": "runtime.graphs",
    "imported": "model.foreign_result integrations.foreign_files",
    "keys": "triton_internals.scenario_key triton_internals.triton_objects",
    "launch": "runtime.hot_path runtime.choices",
    "launch_key": "triton_internals.binder",
    "launch_versions": "triton_internals.versions",
    "launches": (
        "triton_internals.compilation triton_internals.environment triton_internals.triton_objects"
    ),
    "manifest": "stores.manifest",
    "notices": "system.notices",
    "noting": "runtime.launch_recorder",
    "prewarm.host": "prewarm.host_modules",
    "prewarm.kernels": "prewarm.kernel_discovery",
    "prewarm.pool": "prewarm.worker_pool",
    "prewarm.source": "prewarm.record_source",
    "prewarmed": "runtime.prewarmed_binaries triton_internals.cache_managers",
    "process": "stores.default",
    "provenance": "system.provenance",
    "records": "model.scenario model.record model.merge model.difference",
    "resolution": "model.resolution",
    "resolver": "runtime.resolver runtime.request",
    "selection": "model.selection",
    "shipped": "attention.records",
    "source": "triton_internals.source_hash triton_internals.triton_objects",
    "spaces": "tuning.config_space",
    "stores.frozen": "stores.snapshot",
    "stores.layout": "stores.file_layout",
    "sweep.axes": "report.axes",
    "sweep.choices": "report.selection_rules",
    "sweep.cluster": "sweep.ray_hosts",
    "sweep.columns": "heuristics.features",
    "sweep.comparison": "report.comparison",
    "sweep.costs": "heuristics.slowdowns",
    "sweep.fit": "heuristics.fit",
    "sweep.grow": "heuristics.tree_growth",
    "sweep.plots": "report.svg",
    "sweep.python": "heuristics.python_export",
    "sweep.report": "report.page",
    "sweep.section": "report.section",
    "sweep.subset": "heuristics.config_subset",
    "tree": "model.decision_tree",
    "tuning.benchmark": "tuning.benchmark_methods",
    "tuning.compiling": "tuning.compile_ahead",
    "tuning.keeping": "tuning.measurement_writer",
    "tuning.progress": "tuning.progress_bar",
    "tuning.timing": "tuning.device_timer",
    "watch": "runtime.activity_report triton_internals.cache_managers",
    "workers": "system.worker_connection system.worker_process",
    "workers.connection": "system.worker_connection",
    "workers.process": "system.worker_process",
}
"""Former module to the modules, separated by spaces, that now hold its names."""

RENAMED_NAMES = {
    "dejavu_cache.adopting": {
        "measured": "record_from_triton_cache",
        "stand_in": "find_foreign_config",
    },
    "dejavu_cache.attention.arguments": {"checked_batch": "make_batch"},
    "dejavu_cache.attention.launch": {"Launch": "KernelCall"},
    "dejavu_cache.attention.spaces": {
        "hopper_pruned": "hopper_prune_rules",
        "pruned": "prune_rules",
        "usual": "default_rule",
    },
    "dejavu_cache.bundle.fit": {"Field": "CompatibilityCheck", "fields": "compatibility_checks"},
    "dejavu_cache.configs": {"Declared": "DeclaredConfigs"},
    "dejavu_cache.environment": {
        "capturing": "is_capturing_graph",
        "codegen": "describe_codegen",
        "interpreting": "is_interpreting",
    },
    "dejavu_cache.imported": {
        "Imported": "ForeignResult",
        "Timing": "ForeignTiming",
        "letters": "alphanumeric",
        "read_foreign": "read_foreign_files",
        "read_imported": "parse_foreign_results",
        "write_imported": "format_foreign_results",
    },
    "dejavu_cache.keys": {"LaunchKey": "ScenarioKey"},
    "dejavu_cache.launch": {"Chosen": "ChosenConfig"},
    "dejavu_cache.launch_key": {"OPEN": "SET_BY_CONFIG"},
    "dejavu_cache.launch_versions": {"WATCHED": "WATCHED_KNOBS"},
    "dejavu_cache.launches": {"compilation": "recreate_compilation"},
    "dejavu_cache.manifest": {"checked": "verify_folder", "described": "describe_file"},
    "dejavu_cache.noting": {
        "METHOD": "LAUNCH_METHOD",
        "note_launches": "record_launches",
        "quiet": "pause_recording",
    },
    "dejavu_cache.prewarm.host": {"Host": "HostModuleBuilder"},
    "dejavu_cache.prewarm.kernels": {
        "Kernels": "DiscoveredKernels",
        "Known": "DiscoveredKernel",
        "values_of": "launch_values",
    },
    "dejavu_cache.prewarm.pool": {"Process": "CompileProcess"},
    "dejavu_cache.prewarmed": {"use_prewarmed": "use_prewarmed_binaries"},
    "dejavu_cache.records": {"Launch": "RecordedLaunch"},
    "dejavu_cache.resolver": {"Plan": "TuningBudget"},
    "dejavu_cache.sweep.choices": {
        "Choice": "SelectionRule",
        "by_default": "default_rule",
        "by_one": "single_config_rule",
        "by_tree": "tree_rule",
    },
    "dejavu_cache.sweep.columns": {"Columns": "ScenarioEncoder"},
    "dejavu_cache.sweep.costs": {"Costs": "SlowdownTable"},
    "dejavu_cache.sweep.grow": {"grown": "grow_tree"},
    "dejavu_cache.sweep.plots": {"Bar": "PlotBar", "Cell": "PlotCell", "Line": "PlotLine"},
    "dejavu_cache.tuning.keeping": {"Keeper": "MeasurementWriter"},
    "dejavu_cache.tree": {"prepared": "compile_tree"},
    "dejavu_cache.watch": {
        "Event": "ActivityEvent",
        "events": "read_events",
        "tell": "report_event",
        "tell_resolved": "report_resolution",
        "watch": "report_triton_activity",
    },
    "dejavu_client.circuit": {"Circuit": "CircuitBreaker"},
    "dejavu_client.client": {"Client": "ProtocolClient", "address": "split_server_url"},
    "dejavu_client.output": {"opened": "open_chosen_store"},
}
"""Former names of classes and functions to their present ones, by former module."""


def redirect_modules(package: str, moves: Mapping[str, str]) -> None:
    """Make the former module names of a package importable.

    Args:
        package: the package's name.
        moves: former module to present modules, relative to the package.
    """
    for former, targets in moves.items():
        _targets[f"{package}.{former}"] = [f"{package}.{target}" for target in targets.split()]
    if _finder not in sys.meta_path:
        sys.meta_path.append(_finder)


class _MovedModuleFinder:
    """Find and load the modules of the table.

    It has no base class from `importlib.abc`, whose import takes longer than that
    of the rest of this package.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for a former name, and None for any other."""
        if fullname not in _targets:
            return None
        had_submodules = any(former.startswith(f"{fullname}.") for former in _targets)
        loader = cast("Loader", self)
        return ModuleSpec(fullname, loader, is_package=had_submodules)

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make the module object."""

    def exec_module(self, module: ModuleType) -> None:
        """Warn, and let the module take its attributes from the present modules."""
        targets = _targets[module.__name__]
        warnings.warn(
            f"{module.__name__} has moved: import {' or '.join(targets)} instead",
            DeprecationWarning,
            stacklevel=2,
        )
        present = [importlib.import_module(target) for target in targets]

        renamed = RENAMED_NAMES.get(module.__name__, {})

        def find_attribute(name: str) -> Any:
            if name == "__path__":  # else submodules would be loaded a second time from there
                raise AttributeError(name)
            for candidate in (name, renamed.get(name, name)):
                for target in present:
                    if hasattr(target, candidate):
                        return getattr(target, candidate)
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        module.__dict__["__getattr__"] = find_attribute
        module.__dict__["__all__"] = sorted(
            {name for target in present for name in getattr(target, "__all__", ())}
        )


_targets: dict[str, list[str]] = {}
_finder = _MovedModuleFinder()
