"""Import public libraries under `install()`, and on a GPU launch their autotuned kernels.

    python benchmarks/libraries.py [--only NAME]… [--jobs N] [--seconds S] [--out FOLDER]

For each library of `library_launches.LIBRARIES` that can be imported, a process of its own calls
`dejavu_cache.install()`, imports its modules and counts their autotuners. With a GPU, it also
launches some of them; a second process does the same under `dejavu-cache run` and must benchmark
nothing; a third has no dejavu-cache, and is given the same configs through Triton's own `cache`, so
that its results must have the same bits, or else agree within `TOLERANCE`. Prints JSON; `--out`
writes libraries.json and libraries.md. Nothing is installed or downloaded.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import importlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from library_launches import LIBRARIES, Library

TOLERANCE = {"rtol": 2e-2, "atol": 2e-2}
"""How far results may differ that have other bits, relatively and absolutely."""

TUNE_CONFIGS = "8"
"""Configs of a scenario that the first process measures."""


class PinnedConfigs(dict[Any, Any]):
    """A `cache` of Triton's autotuner that finds configs by the texts of their key and of them."""

    def __init__(self, tuner: Any, texts: dict[str, str]) -> None:
        super().__init__()
        self._tuner = tuner
        self._texts = texts

    def __contains__(self, key: object) -> bool:
        if not super().__contains__(key):
            text = self._texts.get(repr(key))
            for config in (config for config in self._tuner.configs if str(config) == text):
                self[key] = config
        return super().__contains__(key)


def import_library(library: Library) -> str | None:
    """Import a library's modules; return why that is not possible, or None."""
    try:
        for package in library.without_init:
            spec = importlib.util.find_spec(package)
            module = types.ModuleType(package)
            module.__path__ = list(getattr(spec, "submodule_search_locations", None) or [])
            sys.modules[package] = module
        for name in library.modules:
            importlib.import_module(name)
    except BaseException as error:  # a library may end the process, too
        frame = traceback.extract_tb(error.__traceback__)[-1]
        message = (str(error).strip().splitlines() or [""])[0]
        return f"{type(error).__name__}: {message} ({Path(frame.filename).name}:{frame.lineno})"
    return None


def find_autotuners() -> list[Any]:
    """Return the autotuners of this process that are not PyTorch's."""
    from triton.runtime.autotuner import Autotuner

    tuners = [value for value in gc.get_objects() if isinstance(value, Autotuner)]
    return [tuner for tuner in tuners if not type(tuner).__module__.startswith("torch.")]


def name_of(tuner: Any) -> str:
    function = tuner.base_fn
    return f"{function.__module__}.{function.__qualname__}"


def describe_autotuners(tuners: list[Any]) -> dict[str, Any]:
    """Return how many autotuners are ours, and which are not."""
    from triton.runtime.autotuner import Autotuner

    from dejavu_cache.installation.autotune_replacement import AdoptedAutotuner, _adopt_subclass

    # A library's own class is taken over when it first calls Triton's `run`, by one more autotuner.
    behind = {id(tuner._adopted) for tuner in tuners if getattr(tuner, "_adopted", None)}
    ours = [tuner for tuner in tuners if isinstance(tuner, AdoptedAutotuner)]
    theirs = [tuner for tuner in tuners if not isinstance(tuner, AdoptedAutotuner)]
    subclassed = [tuner for tuner in theirs if type(tuner) is not Autotuner]
    # None where the class changes how tuning works.
    adopted = {
        name_of(tuner): _adopt_subclass(tuner)
        for tuner in subclassed
        if not getattr(tuner, "_adopted", None)
    }
    cached = [*ours, *(tuner for tuner in adopted.values() if tuner is not None)]
    reasons = {name_of(tuner): reason_not_to_store(tuner) for tuner in cached}
    return {
        "autotuners": len(tuners) - len(behind),
        "replaced": len(ours) - len(behind),
        "of the library's own class": dict(
            Counter(f"{type(tuner).__module__}.{type(tuner).__qualname__}" for tuner in subclassed)
        ),
        "taken over at a launch": len(behind),
        "left to Triton": [
            *(name_of(tuner) for tuner in theirs if type(tuner) is Autotuner),
            *(name for name, tuner in adopted.items() if tuner is None),
        ],
        "not stored": {name: reason for name, reason in reasons.items() if reason},
        "declared configs": sum(len(tuner.configs) for tuner in [*ours, *subclassed]),
    }


def reason_not_to_store(tuner: Any) -> str | None:
    """Return why an adopted kernel's timings cannot be stored, or None."""
    from dejavu_cache import Mode

    if tuner.mode is Mode.OFF:
        return "its configs cannot be recorded"
    reason: str | None = tuner._not_stored
    return reason


def launch_library(library: Library, folder: Path, role: str) -> dict[str, Any]:
    """Launch a library's operations; return what was benchmarked, and write their results."""
    import torch

    torch.manual_seed(0)
    begin = time.perf_counter()
    with torch.no_grad():
        tensors = library.launch() if library.launch else {}
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    torch.save({name: tensor.cpu() for name, tensor in tensors.items()}, folder / f"{role}.pt")
    tuners = find_autotuners()
    chosen = {
        name_of(tuner): {repr(key): str(config) for key, config in dict(tuner.cache).items()}
        for tuner in tuners
        if tuner.cache and isinstance(tuner.cache, dict)  # a library may have a mapping of its own
    }
    if role == "first":
        (folder / "configs.json").write_text(json.dumps(chosen))
    return {
        "seconds": round(seconds, 2),
        "kernels": len(chosen),
        "scenarios": sum(map(len, chosen.values())),
        "benchmarked": sum(getattr(tuner, "benchmarked", 0) for tuner in tuners),
        "tuned by Triton": tuned_by_triton(tuners),
    }


def pin_configs(chosen: dict[str, dict[str, str]]) -> None:
    """Have Triton's autotuners find the given configs in their `cache`; call before an import."""
    from triton.runtime.autotuner import Autotuner

    original = Autotuner.__init__

    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.cache = PinnedConfigs(self, chosen.get(name_of(self), {}))

    Autotuner.__init__ = construct


def tuned_by_triton(tuners: list[Any]) -> list[str]:
    """Return the kernels that Triton itself has benchmarked in this process."""
    return sorted(
        name_of(tuner)
        for tuner in tuners
        if not hasattr(tuner, "benchmarked")  # ours, also where a library's own class is before it
        and getattr(tuner, "configs_timings", None)
        and not getattr(tuner, "_adopted", None)
    )


class MessageList(logging.Handler):
    """Log handler that keeps messages."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def run_child(distribution: str, role: str, folder: Path) -> dict[str, Any]:
    """Import one library, and launch it if there is a GPU."""
    library = next(library for library in LIBRARIES if library.distribution == distribution)
    log = MessageList()
    logging.getLogger("dejavu_cache").addHandler(log)
    if role == "first":
        import dejavu_cache

        dejavu_cache.install()
    elif role == "triton":
        pin_configs(json.loads((folder / "configs.json").read_text()))
    import torch

    error = import_library(library)
    if error is not None:
        return {"imported": False, "why not": error, "messages": log.messages}
    content: dict[str, Any] = {"imported": True}
    if torch.cuda.is_available() and library.launch is not None:
        try:
            content["launch"] = launch_library(library, folder, role)
        except Exception:
            content["launch"] = {"error": traceback.format_exc().strip().splitlines()[-6:]}
    if role != "triton":
        content.update(describe_autotuners(find_autotuners()))
    return {**content, "messages": log.messages}


def start_child(library: Library, role: str, folder: Path, deadline: float) -> dict[str, Any]:
    """Run `run_child` in a process of its own, and return what it wrote."""
    answer = folder / f"{role}.json"
    words = [__file__, "--child", library.distribution, "--role", role, "--folder", str(folder)]
    command = [sys.executable, "-W", "ignore", *words]
    if role == "second":
        command = [sys.executable, "-m", "dejavu_client", "run", "--", *command]
    root = Path(__file__).resolve().parent.parent
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(root), str(root / "client"), os.environ.get("PYTHONPATH", "")]
        ),
        "DEJAVU_CACHE_URL": (folder / "store").as_uri(),
        "DEJAVU_CACHE_TUNE_CONFIGS": TUNE_CONFIGS,
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "XDG_CACHE_HOME": str(folder),
    }
    seconds = max(1.0, deadline - time.monotonic())
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            cwd=folder,
        )
    except subprocess.TimeoutExpired:
        return {"imported": False, "why not": f"not done after {seconds:.0f} s"}
    if not answer.exists():
        return {"imported": False, "why not": f"exit {done.returncode}: {done.stderr[-500:]}"}
    content: dict[str, Any] = json.loads(answer.read_text())
    return content


def compare(folder: Path) -> dict[str, Any]:
    """Return how the results of the processes with the cache agree with those without."""
    import torch

    first, second, triton = (
        torch.load(folder / f"{role}.pt") for role in ("first", "second", "triton")
    )
    apart = {}
    for name, expected in triton.items():
        for role, tensor in (("first", first[name]), ("second", second[name])):
            if not torch.equal(tensor, expected):
                apart[f"{name}, {role}"] = float((tensor.double() - expected.double()).abs().max())
    try:
        torch.testing.assert_close(first, triton, equal_nan=True, **TOLERANCE)
        torch.testing.assert_close(second, triton, equal_nan=True, **TOLERANCE)
        agrees = "within the tolerance" if apart else "bit by bit"
    except AssertionError:
        agrees = "no"
    return {"equal": agrees, "greatest differences": apart}


def measure(library: Library, deadline: float) -> dict[str, Any]:
    """Return the row of one library."""
    row: dict[str, Any] = {"distribution": library.distribution, "version": None}
    try:
        row["version"] = importlib.metadata.version(library.distribution)
    except importlib.metadata.PackageNotFoundError:
        return {**row, "imported": False, "why not": "not installed"}
    row |= {"modules": library.modules, "without __init__ of": library.without_init}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        row |= start_child(library, "first", folder, deadline)
        if "error" in row.get("launch", {"error": ""}):
            return row
        row["launch"] = {"first": row["launch"]}
        for role in ("second", "triton"):
            child = start_child(library, role, folder, deadline)
            row["launch"][role] = child.get("launch", child)
            if "error" in row["launch"][role] or not child["imported"]:
                return row
        row["launch"] |= compare(folder)
    return row


def as_table(report: dict[str, Any]) -> str:
    """Return the rows as Markdown."""
    lines = [
        "# Public libraries under `install()`",
        "",
        f"Measured on {report['date']}: Python {report['python']}, PyTorch {report['torch']}, "
        f"Triton {report['triton']}, {report['device']}. Kernels are autotuners that the imported "
        "modules define; `benchmarks/libraries.py` lists the modules and makes this table.",
        "",
        "| library | version | autotuners | replaced | own class | left to Triton | not stored |"
        " benchmarked | second process | equal to Triton's | remark |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    for row in report["libraries"]:
        lines.append("| " + " | ".join(map(str, _cells(row))) + " |")
    return "\n".join(lines) + "\n"


def _cells(row: dict[str, Any]) -> list[Any]:
    name = [row["distribution"], row["version"] or ""]
    if not row["imported"]:
        return [*name, *[""] * 8, f"not imported: {row['why not'].replace('|', '/')}"]
    own = sum(row["of the library's own class"].values())
    launch = row.get("launch", {})
    counts = [launch.get(role, {}).get("benchmarked", "") for role in ("first", "second")]
    skipped = row["without __init__ of"]
    remarks = [f"without the `__init__` of `{skipped[0]}`"] if skipped else []
    for role in ("first", "second", "triton"):
        by_triton = launch.get(role, {}).get("tuned by Triton", [])
        remarks += [f"{role} process: Triton tuned {len(by_triton)}"] if by_triton else []
    remarks += ["its launch failed"] if '"error"' in json.dumps(launch) else []
    by_itself = own - row["taken over at a launch"]
    remarks += [f"{by_itself} of its own class not taken over"] if launch and by_itself else []
    left = len(row["left to Triton"])
    counted = [row["autotuners"], row["replaced"], own, left, len(row["not stored"]), *counts]
    return [*name, *counted, launch.get("equal", ""), "; ".join(remarks)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        content = run_child(options.child, options.role, options.folder)
        (options.folder / f"{options.role}.json").write_text(json.dumps(content))
        return
    import torch
    import triton

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU: imported only"
    chosen = [
        entry for entry in LIBRARIES if not options.only or entry.distribution in options.only
    ]
    deadline = time.monotonic() + options.seconds
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(lambda library: measure(library, deadline), chosen))
    report = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "device": device,
        "tolerance": TOLERANCE,
        "libraries": rows,
    }
    print(json.dumps(report, indent=1))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "libraries.json").write_text(json.dumps(report, indent=1) + "\n")
        (options.out / "libraries.md").write_text(as_table(report))


if __name__ == "__main__":
    main()
