"""Time the second process of a program that launches FLA's gated delta rule, everything compiled.

    python benchmarks/cold_start.py [--against CHECKOUT] [--rounds N] > FILE

Processes take turns: with Triton's own autotuner, whose results FLA has Triton keep on disk, and
with `install()`. Each has folders that earlier processes filled with binaries and results. Modules
are imported after `install()`. `--against` measures another checkout, too. Bytecode is cached, as
where a package is installed. FLA (fla-core and einops) must be on the path.

Without a GPU, one is pretended: kernels are compiled, kept and read as for an H100, but not loaded
or launched, and what would be a timing of theirs is 1 ms. The earlier processes tune with these.
"""

from __future__ import annotations

import argparse
import cProfile
import datetime
import gc
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent.parent
THEIRS = "Triton's caches"
PARTS = ("import and install", "import FLA", "first call")
"""Steps of a process that the cache may change."""
KINDS = ("seconds", "CPU seconds", "CPU seconds without garbage collections")
TOP = 32
"""Functions in a profile."""


class Clock:
    """Times of steps by kind: on the clock, of the processor, and that without collections.

    Python collects garbage of the whole program when the number of objects has grown by a quarter:
    a few objects more or less decide in which step, and what it takes is not the step's.
    """

    def __init__(self) -> None:
        self.steps: dict[str, dict[str, float]] = {}
        self._collecting = self._since = 0.0
        self._last = self._now()

    def watch_collections(self) -> None:
        """Tell collections of garbage from other work."""
        gc.callbacks.append(self._note_collection)

    def note(self, step: str) -> None:
        """Note the step that has ended."""
        times = zip(KINDS, self._now(), self._last, strict=True)
        self.steps[step] = {kind: now - before for kind, now, before in times}
        self._last = self._now()

    def _now(self) -> tuple[float, float, float]:
        used = time.process_time()
        return time.perf_counter(), used, used - self._collecting

    def _note_collection(self, phase: str, info: dict[str, int]) -> None:
        now = time.thread_time()
        if phase == "stop":
            self._collecting += now - self._since
        self._since = now


class PretendedLauncher:
    """What Triton builds to launch a kernel: it takes the arguments, and does nothing."""

    def __init__(self, src: Any, metadata: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        pass


class PretendedDriver:
    """A driver of one H100, which loads and launches nothing."""

    launcher_cls = PretendedLauncher

    def __init__(self) -> None:
        properties = {"max_shared_mem": 232448, "multiprocessor_count": 132, "warpSize": 32}
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: properties,
            load_binary=lambda *args: (1, 1, 32, 0, 1024),
            unload_module=lambda module: None,
        )

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return SimpleNamespace(synchronize=lambda: None, current_device=lambda: 0)

    def get_benchmarker(self) -> Callable[..., list[float]]:
        return lambda call, quantiles: [1.0] * len(quantiles)


def pretend_gpu() -> None:
    """Have torch and Triton see an H100, and inputs lie on the CPU."""
    import operation_inputs
    import torch
    from triton.runtime import driver

    properties = SimpleNamespace(
        name="NVIDIA H100", multi_processor_count=132, total_memory=80 << 30,
        shared_memory_per_block=49152, shared_memory_per_block_optin=232448,
    )  # fmt: skip
    driver.set_active(PretendedDriver())
    operation_inputs.DEVICE = "cpu"
    torch.cuda.get_device_properties = lambda device=0: properties
    torch.cuda.get_device_name = lambda device=0: properties.name
    torch.cuda.get_device_capability = lambda device=0: (9, 0)
    torch.cuda.synchronize = lambda device=None: None


def pretend_gpu_file() -> None:
    """Have our `install` find a GPU among the devices."""
    from dejavu_cache.triton_internals import environment

    environment.GPU_FILES = (os.devnull,)


def pretend_timings() -> None:
    """Have our timer run kernels once, and find that they take 1 ms."""
    from dejavu_cache.tuning.device_timer import DeviceTimer, Sample, TimedLaunch

    def sample(self: Any, launch: TimedLaunch, *args: Any, **kwargs: Any) -> Sample:
        launch()
        return Sample([1.0] * 5, True)

    DeviceTimer.sample = sample  # type: ignore[method-assign]
    DeviceTimer.warm_up = lambda self: None  # type: ignore[method-assign]


class LaunchWatch:
    """Durations of the first launch of each kernel."""

    def __init__(self) -> None:
        self.first: dict[str, float] = {}
        self._is_inside = False

    def wrap(self, kind: Any) -> None:
        """Time the launches of a class's kernels; those inside a launch belong to it."""
        original = kind.__getitem__

        def get_launch(kernel: Any, grid: Any) -> Callable[..., Any]:
            def launch(*args: Any, **kwargs: Any) -> Any:
                if self._is_inside:
                    return original(kernel, grid)(*args, **kwargs)
                self._is_inside, start = True, time.perf_counter()
                try:
                    return original(kernel, grid)(*args, **kwargs)
                finally:
                    self._is_inside = False
                    self.first.setdefault(_name_of(kernel), time.perf_counter() - start)

            return launch

        kind.__getitem__ = get_launch


def _name_of(kernel: Any) -> str:
    while not hasattr(kernel, "__name__"):
        kernel = kernel.fn
    name: str = kernel.__name__
    return name


def measure(role: str, *, is_first: bool, profiled: bool) -> dict[str, Any]:
    """Return the times of each step in this process."""
    reads = count_entry_point_reads()
    clock, watch = Clock(), LaunchWatch()
    profiles = {step: cProfile.Profile(time.thread_time) for step in (PARTS[0], PARTS[2])}
    if not is_first:  # a callback lets threads that compile parse at the same time
        clock.watch_collections()
    import torch
    import triton
    from triton.runtime.jit import KernelInterface

    clock.note("import torch and triton")
    is_pretended = not torch.cuda.is_available()
    if is_pretended:
        pretend_gpu()
    torch.cuda.synchronize()
    clock.note("device")
    if profiled:
        profiles[PARTS[0]].enable()
    if role != THEIRS:
        import dejavu_cache

        if is_pretended:
            pretend_gpu_file()
        dejavu_cache.install()
    profiles[PARTS[0]].disable()
    clock.note(PARTS[0])
    import fla.ops.gated_delta_rule  # noqa: F401
    from fla_operations import run_gated_delta_rule

    clock.note(PARTS[1])
    watch.wrap(KernelInterface)
    if role != THEIRS:
        from dejavu_cache.runtime.autotuner import CachedAutotuner

        watch.wrap(CachedAutotuner)
        if is_pretended and is_first:
            pretend_timings()
    torch.manual_seed(0)
    clock.note("inputs")
    if profiled:
        gc.disable()  # a collection would count for the function that happens to begin it
        profiles[PARTS[2]].enable()
    with torch.no_grad():
        run_gated_delta_rule()
    torch.cuda.synchronize()
    profiles[PARTS[2]].disable()
    clock.note(PARTS[2])
    return {
        "steps": clock.steps,
        "first launch of each kernel": watch.first,
        "reads of entry points": sorted(reads),
        "profile": {step: _profile_lines(profile) for step, profile in profiles.items()},
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "device": "pretended" if is_pretended else torch.cuda.get_device_name(),
        "full garbage collections": gc.get_stats()[2]["collections"],
    }


def count_entry_point_reads() -> list[str]:
    """Return a list that names the group of each later read of the entry points."""
    reads: list[str] = []
    original = importlib.metadata.entry_points

    def entry_points(**selection: Any) -> Any:
        reads.append(str(selection.get("group")))
        return original(**selection)

    importlib.metadata.entry_points = entry_points  # type: ignore[assignment]
    return reads


def _profile_lines(profile: cProfile.Profile) -> list[str]:
    """Return functions by the CPU time in them and in what they call; those of one call are one."""
    profile.create_stats()
    stats: dict[Any, Any] = profile.stats  # type: ignore[attr-defined]
    lines: dict[str, str] = {}
    for name, (_, calls, _, seconds, _) in sorted(stats.items(), key=lambda item: -item[1][3]):
        if any(part in name[0] for part in ("dejavu_cache", "triton/", "pydantic")):
            text = f"{1000 * seconds:.1f} ms in {calls} calls of {_short(name)}"
            lines.setdefault(f"{1000 * seconds:.0f} {calls}", text)
    return [*lines.values()][:TOP]


def _short(name: tuple[str, int, str]) -> str:
    return f"{'/'.join(Path(name[0]).parts[-2:])}:{name[2]}"


def run_child(role: str, checkout: Path, folder: Path, *options: str) -> dict[str, Any]:
    """Run one process of a role in its folder; return what it measured."""
    paths = [checkout, checkout / "client", os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "DEJAVU_CACHE_URL": (folder / "store").as_uri(),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "XDG_CACHE_HOME": str(folder / "user"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    words = [sys.executable, "-W", "ignore", __file__, "--role", role, *options]
    done = subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    content: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return content


def summarize(runs: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of a role's processes, and what they are relative to Triton's."""
    steps, kernels = list(runs[0]["steps"]), list(runs[0]["first launch of each kernel"])
    groups = {"first call": PARTS[2:], "install, import FLA, first call": PARTS, "process": steps}
    ratios = {
        name: {
            kind: round(_median(runs, kind, group) / _median(theirs, kind, group), 3)
            for kind in KINDS
        }
        for name, group in groups.items()
    }
    return {
        **{kind: {step: round(_median(runs, kind, [step]), 4) for step in steps} for kind in KINDS},
        "seconds of the first launch of each kernel": {
            kernel: round(
                statistics.median(run["first launch of each kernel"][kernel] for run in runs), 4
            )
            for kernel in kernels
        },
        "relative to Triton's caches": ratios,
        "reads of entry points": runs[-1]["reads of entry points"],
        "full garbage collections": [run["full garbage collections"] for run in runs],
    }


def _median(runs: list[dict[str, Any]], kind: str, steps: Sequence[str]) -> float:
    return statistics.median(sum(run["steps"][step][kind] for step in steps) for run in runs)


def main() -> None:
    """Measure one process, or compare processes of all roles."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--first", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        content = measure(options.role, is_first=options.first, profiled=options.profile)
        print(json.dumps(content))
        return
    checkouts = {THEIRS: HERE, "now": HERE}
    if options.against:
        checkouts["before"] = options.against.resolve()
    results: dict[str, list[dict[str, Any]]] = {role: [] for role in checkouts}
    profiles: dict[str, dict[str, list[str]]] = {}
    with tempfile.TemporaryDirectory(prefix="dejavu-cold-start-") as text:
        folders = {role: Path(text, str(number)) for number, role in enumerate(checkouts)}
        for role, checkout in checkouts.items():
            for _ in range(
                2
            ):  # the second one tunes what the first one left to Triton, if anything
                run_child(role, checkout, folders[role], "--first")
            profiles[role] = run_child(role, checkout, folders[role], "--profile")["profile"]
        for _ in range(options.rounds):
            for role, checkout in checkouts.items():
                results[role].append(run_child(role, checkout, folders[role]))
    run = results["now"][0]
    report: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "device": run["device"],
        "cpu": f"{len(os.sched_getaffinity(0))} cores, {_processor()}",
        "python": platform.python_version(),
        **run["versions"],
        "fla-core": importlib.metadata.version("fla-core"),
        "rounds": options.rounds,
    }
    for role, runs in results.items():
        report[role] = {**summarize(runs, results[THEIRS]), "profile": profiles[role]}
    print(json.dumps(report, indent=1))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if "model name" in line), "")


if __name__ == "__main__":
    main()
