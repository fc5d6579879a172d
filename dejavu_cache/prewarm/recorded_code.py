"""Records of the code that is installed here, which were made under another key of Triton's.

Where records say what Triton generated, today's code is compared with that. Where they do not,
whoever knows that the code is the same can state it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import triton

from ..errors import PrewarmError
from ..model.record import Record, RecordedLaunch, RecordSet
from ..model.scenario import Config, Context, Kernel, Scenario, now
from ..runtime.launch_recorder import LAUNCH_METHOD
from ..stores import Store
from ..triton_internals.compilation import decode_value, recreate_compilation, target_of
from ..triton_internals.config_names import describe
from ..triton_internals.generated_code import code_of_compilation, generates_equal_code
from ..triton_internals.hooks import set_target
from ..triton_internals.identity import is_decorated_alike, value_text
from .kernel_discovery import DiscoveredKernel, DiscoveredKernels

__all__ = ["equal_records", "state_code"]


def equal_records(kernel: DiscoveredKernel, store: Store) -> Iterator[RecordSet]:
    """Yield a kernel's records of equal code under other keys, as records of the present key.

    Args:
        kernel: the kernel as it is installed here.
        store: where its records are.
    """
    every = list(store.contexts(kernel.name))
    for context in every:
        if context.kernel.source in kernel.sources or not _is_comparable(kernel, context):
            continue
        target = target_of(context.environment.device)
        set_target(target)
        current, declared = _current_context(kernel, context), kernel.configs(target.backend)
        known = set(store.scenario_texts(current)) if current in every else set()
        records = [
            record.as_adopted(now())
            for record in store.records(context)
            if record.scenario.text not in known and _is_equal(kernel, record, declared)
        ]
        if records:
            yield RecordSet(context=current, records=tuple(records))


def _is_comparable(kernel: DiscoveredKernel, context: Context) -> bool:
    """Return whether a context's code can be generated here."""
    return (
        bool(kernel.autotuners)
        and context.problem.method != LAUNCH_METHOD
        and context.environment.triton == triton.__version__
        and is_decorated_alike(context.kernel.source, kernel.source)
    )


def _is_equal(kernel: DiscoveredKernel, record: Record, declared: Mapping[Config, Any]) -> bool:
    winner = record.winner
    if winner is None or not record.is_finished or winner.config not in declared:
        return False
    config = declared[winner.config]
    launches = record.launches or ()
    return generates_equal_code(kernel.function, launches, winner.config, config) is True


def state_code(modules: list[str], store: Store) -> Counter[str]:
    """Put the records of modules' kernels under the keys of the installed code.

    Args:
        modules: names of modules with kernels; with a package, all modules in it.
        store: where the records are, and where they are written under their new keys. Those under
            the old keys are deleted.

    Returns:
        The number of records by kernel.

    Raises:
        PrewarmError: a module cannot be imported, or no kernel has records of this Triton.
    """
    stated: Counter[str] = Counter()
    for kernel in DiscoveredKernels.of(modules).by_name.values():
        for context in list(store.contexts(kernel.name)):
            if context.environment.triton != triton.__version__:
                continue
            set_target(target_of(context.environment.device))  # what configs there are may depend
            current = _current_context(kernel, context)
            records = [_state(kernel, context, record) for record in store.records(context)]
            store.put_now(current, records)
            for tree, _ in list(store.trees(kernel.name)):
                if tree.context == context:
                    store.put_tree(tree.model_copy(update={"context": current}))
            if current != context:
                store.delete_tree(context)
                store.delete(context)
            stated[kernel.name] += len(records)
    if not stated:
        raise PrewarmError(
            f"{store.url} has no records of Triton {triton.__version__} of the kernels in "
            f"{', '.join(modules)}: look with `dejavu-cache ls`"
        )
    return stated


def _current_context(kernel: DiscoveredKernel, context: Context) -> Context:
    is_launch = context.problem.method == LAUNCH_METHOD or not kernel.autotuners
    source = kernel.source if is_launch else kernel.autotuners[0].declaration.source
    return Context(
        kernel=Kernel(name=kernel.name, source=source),
        environment=context.environment,
        problem=context.problem,
    )


def _state(kernel: DiscoveredKernel, context: Context, record: Record) -> Record:
    """Return a record with what its launches bring to the compiler, and the winner's code."""
    launches = record.launches or ()
    if record.winner is not None and launches:
        target = target_of(context.environment.device)
        declared = kernel.configs(target.backend)
        config = declared.get(record.winner.config)
        if config is not None:
            launches = tuple(_with_code(kernel.function, one, config, target) for one in launches)
    kinds = [dict(_kinds(kernel.function, launch, record.scenario)) for launch in launches]
    dtypes = {**record.scenario.dtypes, **(kinds[0] if kinds else {})}
    scenario = Scenario(args=record.scenario.args, dtypes=dtypes)
    return record.model_copy(update={"scenario": scenario, "launches": launches or None})


def _with_code(function: Any, launch: RecordedLaunch, config: Any, target: Any) -> RecordedLaunch:
    compilation = recreate_compilation(function, launch, config.all_kwargs(), target)
    noted = {"code": code_of_compilation(compilation), "config": describe(config).digest}
    return launch.model_copy(update=noted)


def _kinds(function: Any, launch: RecordedLaunch, scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Yield the kinds of arguments that a scenario says besides keys and tensors."""
    if not scenario.args and not scenario.dtypes:  # a launch without a scenario
        return
    for parameter in function.params:
        name, kind = parameter.name, launch.signature.get(parameter.name)
        if kind is None or name in scenario.args or name in scenario.dtypes:
            continue
        if kind == "constexpr":
            value = decode_value(launch.constants.get(name))
            if parameter.is_constexpr or value != 1 or type(value) is not int:  # 1 is any i32
                yield name, value_text(value) or ""
        elif kind != "i32" and not kind.startswith("*"):
            yield name, kind
