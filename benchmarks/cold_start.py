"""Time what a program pays for the cache before its first kernel runs, in processes of their own.

    python benchmarks/cold_start.py [--module fla.ops.gated_delta_rule]… [--against CHECKOUT] > FILE

No GPU is needed: kernels are identified and looked up, and do not run. Modules are imported after
`install()`; their kernels are those that it has adopted. `--against` measures another checkout in
turns with this one. Bytecode is cached, as where a package is installed.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import importlib
import importlib.metadata
import json
import os
import platform
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
DEFAULT = "dejavu_cache.attention"
TOP = 12
"""Functions in a profile."""


def measure(modules: list[str], profiled: bool) -> dict[str, Any]:
    """Return the seconds of each step in this process."""
    reads: list[str] = []
    original = importlib.metadata.entry_points

    def count_reads(**selection: Any) -> Any:
        reads.append(str(selection.get("group")))
        return original(**selection)

    importlib.metadata.entry_points = count_reads  # type: ignore[assignment]
    start = time.perf_counter()
    import torch  # noqa: F401
    import triton  # noqa: F401

    imported = time.perf_counter()
    profile = cProfile.Profile()
    if profiled:
        profile.enable()
    import dejavu_cache

    dejavu_cache.install()
    installed = time.perf_counter()
    profile.disable()
    for module in modules:
        importlib.import_module(module)
    from dejavu_cache.runtime.cached_autotuner import CachedAutotuner

    # A class of a library's own may have the name, too, and not be ours.
    found = [value for value in gc.get_objects() if isinstance(value, CachedAutotuner)]
    kernels = sorted(found, key=lambda kernel: kernel._name)
    if profiled:
        profile.enable()
    begin = time.perf_counter()
    opened = kernels[0]._resolver
    looked_up = time.perf_counter()
    sources = [kernel.source for kernel in kernels]
    identified = time.perf_counter()
    profile.disable()
    result = {
        "import torch and triton": imported - start,
        "import and install": installed - imported,
        "open stores": looked_up - begin,
        "identify kernels": identified - looked_up,
        "kernels": len(sources),
        "reads of entry points": len(reads),
        "by group": sorted(reads),
        "stores": len(opened.store.tiers),
    }
    if profiled:
        stats = pstats.Stats(profile)
        functions = sorted(stats.stats.items(), key=lambda item: -item[1][3])  # type: ignore[attr-defined]
        result["profile"] = [
            f"{seconds:.3f} s in {calls} calls of {_short(name)}"
            for name, (_, calls, _, seconds, _) in functions
            if "<frozen" not in name[0] and name[0] != "~"
        ][:TOP]
    return result


def _short(name: tuple[str, int, str]) -> str:
    return f"{'/'.join(Path(name[0]).parts[-2:])}:{name[2]}"


def run_child(
    checkout: Path, modules: list[str], folder: str, *, profiled: bool = False
) -> dict[str, Any]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(checkout), str(checkout / "client"), os.environ.get("PYTHONPATH", "")]
        ),
        "PYTHONPYCACHEPREFIX": str(Path(folder, "bytecode")),
        "DEJAVU_CACHE_URL": Path(folder, "store").as_uri(),
        "XDG_CACHE_HOME": folder,
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    words = [sys.executable, "-W", "ignore", __file__, "--child", *(["--profile"] * profiled)]
    words += [word for module in modules for word in ("--module", module)]
    done = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
    content: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return content


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--module", action="append", default=[])
    parser.add_argument("--against", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    modules = options.module or [DEFAULT]
    if options.child:
        print(json.dumps(measure(modules, options.profile)))
        return
    checkouts = {"now": HERE, **({"before": options.against.resolve()} if options.against else {})}
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in checkouts}
    profiles = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, checkout in checkouts.items():
            run_child(checkout, modules, folder)  # compiles the bytecode
            profiles[name] = run_child(checkout, modules, folder, profiled=True)["profile"]
        for _ in range(options.rounds):
            for name, checkout in checkouts.items():
                results[name].append(run_child(checkout, modules, folder))
    report: dict[str, Any] = {"python": platform.python_version(), "modules": modules}
    for name, runs in results.items():
        steps = [step for step, value in runs[0].items() if isinstance(value, float)]
        report[name] = {
            **{step: round(statistics.median(run[step] for run in runs), 4) for step in steps},
            **{step: value for step, value in runs[-1].items() if step not in steps},
            "profile": profiles[name],
        }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
