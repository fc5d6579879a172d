"""Count what Triton benchmarks and compiles in this process; import it before vLLM."""

from __future__ import annotations

import collections
from typing import Any

from triton import knobs
from triton.runtime.autotuner import Autotuner

BENCHMARKED: collections.Counter[str] = collections.Counter()
"""Benchmarked configs, by kernel."""

LOADED: collections.Counter[str] = collections.Counter()
"""Kernels that came into memory, compiled or from Triton's folder, by kernel."""

COMPILED: collections.Counter[str] = collections.Counter()
"""Kernels that were compiled, by kernel."""

_bench = Autotuner._bench


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


Autotuner._bench = _count_benchmark
knobs.compilation.listener = _count_compilation


def counts() -> dict[str, Any]:
    from dejavu_cache.runtime import service_phase

    return {
        "benchmarked": sum(BENCHMARKED.values()),
        "loaded": sum(LOADED.values()),
        "compiled": sum(COMPILED.values()),
        "by_kernel": {**{f"bench {k}": n for k, n in BENCHMARKED.items()}, **COMPILED},
        "serving": service_phase.is_serving(),
        "compiled_while_serving": [
            name for phase in service_phase._phases for name in phase.compiled
        ],
    }
