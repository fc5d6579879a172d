"""Count what Triton benchmarks and compiles in this process; import it before vLLM."""

from __future__ import annotations

import collections
from typing import Any

from triton import knobs
from triton.runtime.autotuner import Autotuner

from dejavu_cache.runtime import launch, service_phase
from dejavu_cache.stores import TieredStore

BENCHMARKED: collections.Counter[str] = collections.Counter()
"""Benchmarked configs, by kernel."""

LOADED: collections.Counter[str] = collections.Counter()
"""Kernels that came into memory, compiled or from Triton's folder, by kernel."""

COMPILED: collections.Counter[str] = collections.Counter()
"""Kernels that were compiled, by kernel."""

MISSED: dict[Any, bool] = {}
"""Whether the process served when a scenario was first missed, by its context and itself."""

COMPILED_WHILE_SERVING: list[str] = []
"""Kernels that had to be compiled while the process served."""

_note_compilation = launch.note_compilation
_bench = Autotuner._bench
_miss = TieredStore.miss


def _count_benchmark(self: Any, *args: Any, **kwargs: Any) -> Any:
    function = self.fn
    while not hasattr(function, "__name__") and hasattr(function, "fn"):
        function = function.fn
    BENCHMARKED[getattr(function, "__name__", str(function))] += 1
    return _bench(self, *args, **kwargs)


def _count_compilation(**event: Any) -> None:
    name = getattr(event["src"], "name", "?")
    LOADED[name] += 1
    if not event["cache_hit"]:
        COMPILED[name] += 1


def _count_miss(self: TieredStore, context: Any, scenario: Any, launches: int = 1) -> None:
    MISSED.setdefault((context, scenario), service_phase.is_serving())
    _miss(self, context, scenario, launches)


def recorded() -> int:
    """Return how many measurements the default store holds: another process may take them."""
    from dejavu_cache.stores.tiered import default_store

    store = default_store()
    return sum(
        len(record.measurements)
        for context in store.contexts()
        for record in store.records(context)
    )


def _count_late_compilation(kernel: str) -> None:
    COMPILED_WHILE_SERVING.append(kernel)
    _note_compilation(kernel)


Autotuner._bench = _count_benchmark
launch.note_compilation = _count_late_compilation
TieredStore.miss = _count_miss
knobs.compilation.listener = _count_compilation


def counts() -> dict[str, Any]:
    return {
        "benchmarked": sum(BENCHMARKED.values()),
        "loaded": sum(LOADED.values()),
        "compiled": sum(COMPILED.values()),
        "by_kernel": {**{f"bench {k}": n for k, n in BENCHMARKED.items()}, **COMPILED},
        "recorded": recorded(),
        "missed": len(MISSED),
        "missed_while_serving": sum(MISSED.values()),
        "serving": service_phase.is_serving(),
        "compiled_while_serving": COMPILED_WHILE_SERVING,
    }
