"""Give torch.compile the recorded configs of the cached kernels that it traces.

Inductor takes a user's autotuner with all its configs and benchmarks them itself. A pass over the
traced graph looks the record up with the traced tensors, and puts its config in the place of all.

Inductor finds a graph that it has compiled by a key, and runs no pass over it again. So notes
beside its cache keep what the records said, and the notes that no longer agree with the records are
a part of the key: a graph is found only while its configs' notes agree.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .. import __version__
from ..model.buckets import Exact
from ..model.scenario import Scenario, canonical_json
from ..runtime.autotuner import CachedAutotuner
from ..settings import Mode, current_settings
from ..system.background_threads import dropping_errors
from ..system.import_hooks import after_import
from ..system.safe_files import open_to_append, read_file
from ..triton_internals.versions import Autotuner

_FILE = "dejavu-cache-choices.jsonl"
"""Grows by a line with each choice that a graph was compiled by, and is deleted with the graphs.

A line that is dropped would let the graphs be found again that it keeps from being found.
"""


def _note_choice(kernel: CachedAutotuner, scenario: Scenario) -> None:
    """Note what the records say of a scenario, before a graph is compiled by it.

    Raises:
        OSError: the note cannot be written.
    """
    note = _note(kernel, scenario)
    path = _notes_file()
    if note not in _read_notes(path):
        handle = open_to_append(path)
        try:
            os.write(handle, f"{note}\n".encode())
        finally:
            os.close(handle)


def _outdated_notes(kernels: Iterable[CachedAutotuner]) -> str:
    """Return a digest of the notes of some kernels that no longer agree with the records."""
    notes = _read_notes(_notes_file())
    by_owner = {_owner(kernel): kernel for kernel in kernels} if notes else {}
    outdated = sorted(note for note in notes if _is_outdated(note, by_owner))
    return hashlib.sha256("\n".join(outdated).encode()).hexdigest()


def _is_outdated(note: str, kernels: Mapping[tuple[str, str], CachedAutotuner]) -> bool:
    try:
        url, context, scenario_fields, _ = json.loads(note)
        kernel = kernels.get((url, context))
        if kernel is None:
            return False
        scenario = Scenario.model_validate(scenario_fields)  # most of the time that a note takes
    except (ValueError, TypeError):  # damaged, or of another version
        return True
    until, outdated = _asked.get(note, (0.0, False))
    if not kernel.home.remote or time.monotonic() >= until:
        outdated = _note(kernel, scenario) != note
        _asked[note] = time.monotonic() + (current_settings().refresh or math.inf), outdated
    return outdated


_asked: dict[str, tuple[float, bool]] = {}
"""Whether a note was outdated, and until when a server need not be asked again.

Inductor wants its key three times for each graph.
"""


def _note(kernel: CachedAutotuner, scenario: Scenario) -> str:
    """Write which config a kernel's record of a scenario stands for."""
    found, chosen = kernel.home.get(kernel.context, scenario), None
    if found is not None:
        winner = found.record.winner
        chosen = found.record.pinned or (winner.config if winner else None)
    fields = scenario.model_dump(mode="json")
    return canonical_json([*_owner(kernel), fields, chosen.text if chosen else None])


def _owner(kernel: CachedAutotuner) -> tuple[str, str]:
    return kernel.home.url, kernel.context.digest


def _notes_file() -> Path:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir(), _FILE)


def _read_notes(path: Path) -> set[str]:
    try:
        return set(read_file(path).decode(errors="replace").splitlines())
    except FileNotFoundError:
        return set()


_CONFIG_MODULE = "torch._inductor.config"

_OPTION = "post_grad_custom_pre_pass"

_AS_TRACED = "eager_input_vals"
"""Name under which a traced node keeps its arguments as they were in the program."""


_made: list[Any] = []
"""The passes that were added."""

_is_wanted = False
"""Whether the passes use records; else they do nothing of their own."""


def install_inductor_pass() -> None:
    """Have Inductor run the pass, from now on or from when it is imported; torch is not imported.

    It runs a pass that was set before, too. A pass that is set later takes its place.
    """
    global _is_wanted
    _is_wanted = True
    after_import(_CONFIG_MODULE, _add_pass)


def uninstall_inductor_pass() -> None:
    """Have Inductor tune cached kernels itself again; the pass stays, and does nothing."""
    global _is_wanted
    _is_wanted = False


def _add_pass(config: Any) -> None:
    """Add the pass, for all threads if the program has set none of its own."""
    # Torch hides an option that a program has deleted, as `mock.patch` does.
    present: Any = getattr(config, _OPTION, None)
    if present in _made or not _is_wanted:
        return
    graph_pass = _make_pass(present)
    _made.append(graph_pass)
    # From torch 2.13 on, what is assigned counts in the thread that assigns it; a default, in all.
    entry: Any = getattr(config, "_config", {}).get(_OPTION)
    if present is None and hasattr(entry, "default"):
        entry.default = graph_pass
    if getattr(config, _OPTION, None) is not graph_pass:
        setattr(config, _OPTION, graph_pass)


def _make_pass(previous: Any) -> Any:
    """Return an Inductor pass that uses records, and then runs what was set before."""
    from torch._inductor import custom_graph_pass

    others = previous if isinstance(previous, (list, tuple)) else [previous] if previous else []
    # Torch tells a pass of this class whether it compiles for inference, and no other.
    aware: Any = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", ())
    is_aware = any(isinstance(other, aware) for other in others)
    kind: Any = aware if is_aware else custom_graph_pass.CustomGraphPass

    class RecordedConfigPass(kind):  # type: ignore[misc]
        def __deepcopy__(self, memo: object) -> RecordedConfigPass:
            """Return itself: torch gives each thread a copy of a default."""
            return self

        def __call__(self, graph: Any, *inference: Any, **named: Any) -> None:
            if _is_wanted:
                use_recorded_configs(graph)
            for other in others:
                if isinstance(other, aware):
                    other(graph, *inference, **named)
                else:
                    other(graph)

        def uuid(self) -> Any:
            """Return what Inductor's own cache tells passes apart by; None switches it off."""
            theirs = [other.uuid() if hasattr(other, "uuid") else None for other in others]
            if None in theirs:
                return None
            # A graph from Inductor's cache might have a recalled config.
            with dropping_errors("Inductor does not cache graphs", about="inductor notes"):
                wrapper: Any = sys.modules.get("torch._higher_order_ops.triton_kernel_wrap")
                traced = wrapper.kernel_side_table.id_to_kernel.values() if wrapper else ()
                outdated = _outdated_notes(filter(_is_looked_up, list(traced)))
                settings = current_settings()
                place = settings.url, settings.namespace, str(settings.mode)
                return (__version__, _SOURCE, _is_wanted, *place, outdated, *theirs)
            return None

    return RecordedConfigPass()


_SOURCE = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def _is_looked_up(kernel: Any) -> bool:
    if not isinstance(kernel, CachedAutotuner) or len(kernel.configs) < 2:
        return False
    return kernel.mode is not Mode.OFF


def use_recorded_configs(graph: Any) -> None:
    """Replace the configs of the cached kernels of a `torch.fx.Graph` by the recorded ones."""
    from torch._higher_order_ops import triton_kernel_wrap

    targets = (
        triton_kernel_wrap.triton_kernel_wrapper_mutation,
        triton_kernel_wrap.triton_kernel_wrapper_functional,
    )
    for node in graph.nodes:
        if node.target in targets:
            with dropping_errors("Inductor tunes a kernel itself", about="inductor"):
                _use_recorded_config(node, triton_kernel_wrap.kernel_side_table)


def _use_recorded_config(node: Any, table: Any) -> None:
    kernel = table.get_kernel(node.kwargs["kernel_idx"])
    if not _is_looked_up(kernel):
        return
    traced = {**table.get_constant_args(node.kwargs["constant_args_idx"]), **node.kwargs["kwargs"]}
    arguments = _example_arguments(kernel, traced)
    if arguments is None:
        return
    request = kernel.request(**arguments)
    if not request.not_stored:  # first: what changes while it is looked up is noticed later
        _note_choice(kernel, request.scenario)
    resolution = kernel.look_up(**arguments)
    if resolution.final:
        _leave_one_config(node, table, kernel, resolution.config)


def _leave_one_config(node: Any, table: Any, kernel: CachedAutotuner, config: Any) -> None:
    """Have a traced node launch one of its kernel's configs, if it has that one's grid."""
    grids = node.kwargs["grid"]
    places = [place for place, own in enumerate(kernel.configs) if own is config]
    if not places or len(grids) not in (1, len(kernel.configs)):
        return
    single = Autotuner(kernel.fn, kernel.arg_names, [config], [], None, None)
    place, index = places[0] if len(grids) > 1 else 0, table.add_kernel(single)

    def with_one_config(kwargs: dict[str, Any]) -> dict[str, Any]:
        grid = kwargs["grid"]
        return {**kwargs, "kernel_idx": index, "grid": type(grid)(grid[place : place + 1])}

    node.kwargs = with_one_config(node.kwargs)
    if _AS_TRACED in node.meta:  # Inductor expects of it the structure of the node's arguments.
        args, kwargs = node.meta[_AS_TRACED]
        node.meta[_AS_TRACED] = args, with_one_config(kwargs)


def _example_arguments(kernel: CachedAutotuner, traced: dict[str, Any]) -> dict[str, Any] | None:
    """Return a launch's arguments by name, or None if one config cannot serve all its launches.

    A symbolic size stands for many values. One config serves those of a bucket; pruning, or a key
    argument without a bucket, could tell them apart.
    """
    arguments: dict[str, Any] = {}
    for name, argument in traced.items():
        value = argument.meta["val"] if hasattr(argument, "meta") else argument
        if hasattr(value, "node"):  # a torch.SymInt
            declaration = kernel.declaration
            bucket: Any = declaration.options["buckets"].get(name, Exact())
            if declaration.prunes or (name in kernel.keys and isinstance(bucket, Exact)):
                return None
            value = value.node.hint
            if value is None and name in kernel.keys:  # it depends on data, so no record is its own
                return None
        arguments[name] = value
    return arguments
