"""Import one public library, with the cache or without it, and launch its operations on a GPU.

    python benchmarks/library_process.py LIBRARY ROLE FOLDER SECONDS

`libraries.py` starts it, once per role: `first`, `second` and `triton`. Writes FOLDER/ROLE.json,
and the results of the operations to FOLDER/ROLE.pt.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import logging
import sys
import time
import traceback
import types
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from library_launches import LIBRARIES, Library

NOT_COMPARED = "results are not compared"
"""What the log says of a winner whose results could not be checked."""


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
        skip_init(library.without_init)
        for name in library.modules:
            importlib.import_module(name)
    except BaseException as error:  # a library may end the process, too
        frame = traceback.extract_tb(error.__traceback__)[-1]
        message = (str(error).strip().splitlines() or [""])[0]
        return f"{type(error).__name__}: {message} ({Path(frame.filename).name}:{frame.lineno})"
    return None


def skip_init(packages: Iterable[str]) -> None:
    """Have packages imported without their `__init__`; each follows the one that it is in."""
    for package in packages:
        spec = importlib.util.find_spec(package)
        module = types.ModuleType(package)
        module.__path__ = list(getattr(spec, "submodule_search_locations", None) or [])
        sys.modules[package] = module


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

    from dejavu_cache import CachedAutotuner
    from dejavu_cache.installation.autotune_replacement import _adopt_subclass

    # A library's own class is taken over when it first calls Triton's `run`, by one more autotuner.
    behind = {id(tuner._adopted) for tuner in tuners if getattr(tuner, "_adopted", None)}
    ours = [tuner for tuner in tuners if isinstance(tuner, CachedAutotuner)]
    theirs = [tuner for tuner in tuners if not isinstance(tuner, CachedAutotuner)]
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
    reason: str | None = tuner.declaration.not_stored
    return reason


def launch_library(library: Library, folder: Path, role: str, seconds: float) -> dict[str, Any]:
    """Launch a library's operations; return what was benchmarked, and write their results."""
    import torch

    begin = time.perf_counter()
    outcome = run_operations(library, seconds)
    elapsed = time.perf_counter() - begin
    torch.save(outcome.tensors, folder / f"{role}.pt")
    tuners = find_autotuners()
    chosen = {
        name_of(tuner): {repr(key): str(config) for key, config in dict(tuner.cache).items()}
        for tuner in tuners
        if tuner.cache and isinstance(tuner.cache, dict)  # a library may have a mapping of its own
    }
    if role == "first":
        (folder / "configs.json").write_text(json.dumps(chosen))
    return {
        "seconds": round(elapsed, 2),
        "operations": len(library.operations) - len(outcome.errors) - len(outcome.skipped),
        "kernels": len(chosen),
        "names": sorted(chosen),
        "scenarios": sum(map(len, chosen.values())),
        "benchmarked": sum(getattr(tuner, "benchmarked", 0) for tuner in tuners),
        "tuned by Triton": tuned_by_triton(tuners),
        "failed": outcome.errors,
        "no time left": outcome.skipped,
    }


class LaunchedOperations(NamedTuple):
    """The results of a library's operations.

    Attributes:
        tensors: results by name.
        errors: the end of the traceback by operation that failed.
        skipped: operations for which there was no time.
    """

    tensors: dict[str, Any]
    errors: dict[str, str]
    skipped: list[str]


def run_operations(library: Library, seconds: float) -> LaunchedOperations:
    """Run a library's operations one by one; none begins after the time limit."""
    import torch

    outcome = LaunchedOperations({}, {}, [])
    until = time.monotonic() + seconds
    for operation in library.operations:
        name = operation.__name__.removeprefix("run_")
        if time.monotonic() > until:
            outcome.skipped.append(name)
            continue
        torch.manual_seed(0)
        try:
            with torch.no_grad():
                tensors = operation()
            torch.cuda.synchronize()
            outcome.tensors.update({key: tensor.cpu() for key, tensor in tensors.items()})
        except Exception:
            outcome.errors[name] = "\n".join(traceback.format_exc().strip().splitlines()[-6:])
    return outcome


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
    """Log handler that keeps warnings, and why results were not compared."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.messages: list[str] = []
        self.not_compared: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if NOT_COMPARED in message:
            self.not_compared.append(message)
        elif record.levelno >= logging.WARNING:
            self.messages.append(message)


def run_library(distribution: str, role: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Import one library, and launch it if there is a GPU."""
    library = next(library for library in LIBRARIES if library.distribution == distribution)
    log = MessageList()
    logging.getLogger("dejavu_cache").addHandler(log)
    logging.getLogger("dejavu_cache").setLevel(logging.INFO)
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
    if torch.cuda.is_available() and library.operations:
        try:
            content["launch"] = launch_library(library, folder, role, seconds)
        except Exception:
            content["launch"] = {"error": traceback.format_exc().strip().splitlines()[-6:]}
    if role != "triton":
        content.update(describe_autotuners(find_autotuners()))
    return {**content, "messages": log.messages, "not checked": log.not_compared}


def main(distribution: str, role: str, folder: str, seconds: str) -> None:
    """Run one library, and write what came of it."""
    content = run_library(distribution, role, Path(folder), float(seconds))
    (Path(folder) / f"{role}.json").write_text(json.dumps(content))


if __name__ == "__main__":
    main(*sys.argv[1:])
