"""Measure what a record set is worth: its configs against the library's own choice, on a GPU.

    python records/worth.py fla_suite --store URL [--only NAME+NAME] [--seconds S] [--out FILE]

The operations of a suite run on inputs that nothing was tuned on. At each launch that has a record,
up to three configs take turns: the first one that fits the GPU, as if there were no autotuner; the
fastest on the first input of the sweep, as the library's autotuner keeps it for all inputs of a
key; and the record's winner. Times are those of kernels, with a cold L2 cache.

For the first launches, Triton's autotuner also tunes on the first input, its binaries compiled
before: that is what a process with the records does not wait for. So it does where configs were
found wrong, which it does not notice: there, the library's choice is what it chose.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import math
import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from operation_cases import choose_configs, launch, operations_of, signature_of
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources

from dejavu_cache import install
from dejavu_cache.model.record import Record
from dejavu_cache.model.scenario import Config
from dejavu_cache.runtime.autotuner import CachedAutotuner
from dejavu_cache.runtime.request import Request
from dejavu_cache.stores import Store, open_store
from dejavu_cache.triton_internals.config_names import describe

ROUNDS = 5
"""Turns in which the configs of a launch are timed."""

TUNING_SECONDS = 6.0
"""Seconds for which Triton's autotuner tunes the first launches of a suite."""


class LaunchTimes(NamedTuple):
    """Milliseconds of a launch: with the recorded config, the first one, the library's choice."""

    kernel: str
    tuned: float
    first: float
    own: float


class WorthTable:
    """Measures the operations of a suite, each launch once, and tells what came of it."""

    def __init__(self, suite: Any, store: Store, seconds: float) -> None:
        """Measure nothing yet; at most for so many seconds on held-out inputs."""
        self._suite, self._store, self._seconds = suite, store, seconds
        self._deadline = math.inf
        self._seen: set[object] = set()
        self._times: dict[str, list[LaunchTimes]] = {}
        self._unrecorded: set[str] = set()
        self._tunes: list[tuple[int, float]] = []
        self._chosen: dict[object, Config] = {}

    def measure(self, only: str) -> Iterator[None]:
        """Tune some launches by Triton, then time others; yield after each operation."""
        suite = self._suite
        with choose_configs(self._tune):
            for operation in operations_of(suite.FUNCTIONS, suite.INPUTS[:1], only):
                operation.run()
        self._deadline = time.monotonic() + self._seconds
        for operation in operations_of(suite.FUNCTIONS, suite.HELD_OUT, only):
            if time.monotonic() < self._deadline:
                times = self._times.setdefault(str(operation), [])
                with choose_configs(partial(self._time, times)):
                    operation.run()
                yield

    def _find(self, request: Request) -> Record | None:
        """Return the record of a launch that differs from earlier ones, if it has one."""
        signature = signature_of(request)
        if signature in self._seen:
            return None
        self._seen.add(signature)
        stored = self._store.get(request.context, request.scenario)
        if stored is None or stored.record.winner is None:
            self._unrecorded.add(request.autotuner.base_fn.__name__)
            return None
        return stored.record

    def _tune(self, kernel: CachedAutotuner, request: Request) -> Any:
        """Have Triton's autotuner tune a launch that has a record; return a config."""
        record = self._find(request)
        is_first = sum(seconds for _, seconds in self._tunes) < TUNING_SECONDS
        if record and (is_first or any(entry.is_wrong for entry in record.measurements)):
            tuner = Autotuner(
                kernel.fn, kernel.arg_names, kernel.configs, kernel.keys, kernel.reset_to_zero,
                kernel.restore_value,
            )  # fmt: skip
            tuner.pre_hook, tuner.post_hook = kernel.pre_hook, kernel.post_hook
            tuner.early_config_prune = kernel.early_config_prune
            start = time.perf_counter()
            tuner.run(*request.args, **request.kwargs)
            torch.cuda.synchronize()
            self._tunes.append((len(request.declared), time.perf_counter() - start))
            self._chosen[request.context, request.scenario] = describe(tuner.best_config)
        return request.default

    def _time(self, times: list[LaunchTimes], kernel: CachedAutotuner, request: Request) -> Any:
        """Time a launch that has a record; return a config."""
        record = self._find(request) if time.monotonic() < self._deadline else None
        if record is None:
            return request.default
        tuned = request.declared.get(record.winner.config)
        chosen = self._chosen.get((request.context, request.scenario)) or first_choice(record)
        own = request.declared.get(chosen)
        if tuned is not None and own is not None:
            milliseconds = take_turns(request, [tuned, first_that_fits(request), own])
            times.append(LaunchTimes(kernel.base_fn.__name__, *milliseconds))
        return tuned or request.default

    def lines(self) -> list[str]:
        """Return the table and what is said below it, in Markdown."""
        launches = [times for operation in self._times.values() for times in operation]
        if not launches:
            return [f"{self._suite.__name__}: no launch has a record."]
        rows = []
        for name, times in self._times.items():
            tuned, first, own = (sum(time[side] for time in times) for side in (1, 2, 3))
            if times:
                cells = (
                    f"{len(times)} | {tuned * 1e3:.0f} | {first / tuned:.3f} | {own / tuned:.3f}"
                )
                rows.append(f"| {name} | {cells} |")
        means, least = [], []
        for side in (2, 3):
            ratios = [(time[side] / time.tuned, time.kernel) for time in launches]
            means.append(f"{statistics.geometric_mean(ratio for ratio, _ in ratios):.3f}")
            least.append(f"{min(ratios)[0]:.3f}, {min(ratios)[1]}")
        configs, seconds = (sum(tune[at] for tune in self._tunes) for at in (0, 1))
        return [
            f"| {self._suite.__name__} | launches | tuned, us | first config | own choice |",
            "|---|---:|---:|---:|---:|",
            *rows,
            f"| mean of launches | {len(launches)} | | {' | '.join(means)} |",
            f"| least favourable launch | | | {' | '.join(least)} |",
            "",
            f"Without a record: {', '.join(sorted(self._unrecorded)) or 'none'}. For {configs} "
            f"configs of {len(self._tunes)} launches, Triton's autotuner took {seconds:.1f} s.",
        ]


def first_choice(record: Record) -> Any:
    """Return the config that was fastest on the first case of a sweep, or on the only one."""
    timed = [entry for entry in record.measurements if entry.median is not None]
    cases = [case for entry in timed for case in entry.cases or ()]
    if not cases:
        return record.winner and record.winner.config
    # Every config is measured on the first case, and only the best on the others.
    first = max(dict.fromkeys(cases), key=cases.count)
    times = {entry.config: entry.cases[first] for entry in timed if first in (entry.cases or ())}
    return min(times, key=times.__getitem__)


def first_that_fits(request: Request) -> Any:
    """Return the kernel's own default, or the first declared config where that does not fit."""
    for config in (request.default, *request.declared.values()):
        with suppress(OutOfResources):
            launch(request, config)
            return config
    raise RuntimeError(f"{request.name}: no config fits the GPU")


def take_turns(request: Request, configs: Sequence[Any]) -> list[float]:
    """Return the medians of some configs' times in milliseconds; equal configs are timed once."""
    times: dict[Any, list[float]] = {config: [] for config in configs}
    for _ in range(ROUNDS):
        for config, timed in times.items():
            call = partial(launch, request, config)
            timed.append(triton.testing.do_bench(call, warmup=3, rep=15, return_mode="median"))
    return [statistics.median(times[config]) for config in configs]


def main() -> None:
    """Measure a suite; the table is written after each operation, and printed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite")
    parser.add_argument("--only", default="")
    parser.add_argument("--store", required=True)
    parser.add_argument("--seconds", type=float, default=600.0, help="for held-out inputs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    install()
    versions = f"PyTorch {torch.__version__}, Triton {triton.__version__}"
    machine = f"{torch.cuda.get_device_name()}, {versions}, Python {platform.python_version()}"
    heading = f"{machine}, {datetime.date.today()}"
    with open_store(options.store) as store:
        table = WorthTable(importlib.import_module(options.suite), store, options.seconds)
        for _ in table.measure(options.only):
            if options.out:
                options.out.write_text("\n".join([heading, "", *table.lines(), ""]))
    print(heading, "", *table.lines(), sep="\n")


if __name__ == "__main__":
    main()
