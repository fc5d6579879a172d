"""Report what a program benchmarks, compiles and misses, for `dejavu-cache verify`.

Every process that inherits `DEJAVU_CACHE_REPORT` appends events to a file of its own in that
folder, as lines of JSON. Triton's hooks report compilations from when the first kernel is
decorated.

Spans and metrics for OpenTelemetry, in programs that use it.

A program that exports telemetry has imported OpenTelemetry's API; in others nothing happens here,
and the API is never imported for it. There is one span for each tune and fallback, and metrics of
all choices; launches whose config is known are neither.

Report a choice the way Triton's own autotuner does.

Lines in the log about launches: one for a tune, a fallback and an answer that came late.

The logger is `dejavu_cache.launches`, the level INFO. A launch whose record is there says nothing,
unless some of its results were not compared.

Report which config a launch runs, to all that may be asked to record it.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ValidationError

from ..errors import DejavuError
from ..model.resolution import Resolution
from ..settings import current_settings
from ..system.notices import counted, warn_once
from ..system.safe_files import open_to_append, read_file
from ..triton_internals.cache_managers import launch_key, reporting_cache
from ..triton_internals.config_names import describe
from ..triton_internals.hooks import add_compilation_listener, wrap_bench, wrap_cache_manager
from ..triton_internals.identity import find_jit_function
from ..triton_internals.upstream import knobs
from ..triton_internals.versions import autotuning_listener
from . import fingerprint
from .choices import ConfigCache, NewChoice
from .request import Request
from .resolver import Resolver

__all__ = [
    "LATE",
    "ActivityEvent",
    "log_choice",
    "read_events",
    "report_choice",
    "report_event",
    "report_resolution",
    "report_to_triton",
    "report_triton_activity",
    "trace_choice",
]


class ActivityEvent(BaseModel):
    """Something that a process did.

    Attributes:
        what: `started`: the process began its report. `hit`, `missed`: a scenario was resolved by
            its record, or had none. `loaded`, `compiled`: Triton found a binary, or made it.
            `built`: a C compiler built a host module. `benchmarked`: configs were measured.
            `lost`: something that the process could not report.
        about: the program's arguments, the kernel and its scenario, or a module's name.
        detail: the config, the specialisation, or how often.
        process: the process's id.
    """

    what: Literal["started", "hit", "missed", "loaded", "compiled", "built", "benchmarked", "lost"]
    about: str
    detail: str = ""
    process: int = 0

    @property
    def is_unwanted(self) -> bool:
        """Whether a program that is fully prewarmed would not do it."""
        return self.what in ("missed", "compiled", "built", "benchmarked", "lost")


_LOST = ".lost"
"""Ending of the name of an empty file beside a report that is not complete."""


@cache
def _report_file(process: int) -> Path | None:
    """Return the file of a process, a forked one's own, or None without a report."""
    try:
        folder = current_settings().report
    except DejavuError:  # the first launch reports the broken setting
        return None
    if not folder:
        return None
    with suppress(OSError):  # Whoever writes the file reports that there is no folder for it.
        Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder) / f"{time.time_ns()}-{process}.jsonl"


def report_event(what: str, about: str, detail: str = "") -> None:
    """Append an event to the report, if there is one; it is written before the program goes on."""
    path = _report_file(os.getpid())
    if path is None:
        return
    line = (
        json.dumps({"what": what, "about": about, "detail": detail, "process": os.getpid()}) + "\n"
    )
    try:
        with open(open_to_append(path), "a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        warn_once(f"report {path}", f"{path} cannot be written: {error}")
        with suppress(OSError):  # a full disk may still take an empty file
            os.close(open_to_append(path.with_suffix(_LOST)))


def report_resolution(
    kernel: str, scenario: object, resolution: Resolution, benchmarked: int
) -> None:
    """Report how a scenario's config was found."""
    about = f"{kernel}{scenario}"
    if benchmarked:
        report_event("benchmarked", about, counted(benchmarked, "config"))
    elif resolution.only or resolution.how in ("exact", "pinned"):
        report_event("hit", about, str(resolution.config))
    else:
        report_event("missed", about, f"resolved by: {resolution.how}")


@cache
def report_triton_activity() -> None:
    """Report what Triton compiles, builds and benchmarks, if `DEJAVU_CACHE_REPORT` is set."""
    if _report_file(os.getpid()) is None:
        return
    report_event("started", " ".join(sys.argv)[:500])

    def listener(*, src: Any, metadata: dict[str, Any], cache_hit: bool, **more: Any) -> None:
        name = getattr(getattr(src, "fn", None), "_fn_name", None) or metadata.get("name", "?")
        report_event("loaded" if cache_hit else "compiled", str(name), _constants_of(src))

    add_compilation_listener(listener)
    wrap_cache_manager(
        lambda inner: reporting_cache(inner, lambda module: report_event("built", module))
    )
    wrap_bench(_reporting_bench)


def _constants_of(src: Any) -> str:
    constants = {
        src.fn.arg_names[path[0]]: value for path, value in getattr(src, "constants", {}).items()
    }
    return ", ".join(f"{name}={value}" for name, value in constants.items())[:500]


def _reporting_bench(bench: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `Autotuner._bench` to report other autotuners; cached ones report their scenario."""

    @functools.wraps(bench)
    def report_and_bench(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(self, "benchmarked"):
            report_event(
                "benchmarked",
                getattr(self.base_fn, "__name__", "?"),
                str(kwargs.get("config", ""))[:200],
            )
        return bench(self, *args, **kwargs)

    return report_and_bench


def read_events(folder: Path) -> list[ActivityEvent]:
    """Return the events in a folder, by the start of their processes; broken lines are left out.

    A report that ends within a line, since its process was killed, has lost an event.
    """
    events = []
    for path in sorted(folder.glob("*.jsonl")):
        try:
            text = read_file(path).decode(errors="replace")
        except OSError:  # not written by a program: a link, a pipe
            continue
        for line in text.splitlines():
            try:
                events.append(ActivityEvent.model_validate_json(line))
            except ValidationError:
                continue
        if not text.endswith("\n"):
            events.append(_lost_event())
    return [*events, *(_lost_event() for _ in folder.glob(f"*{_LOST}"))]


def _lost_event() -> ActivityEvent:
    return ActivityEvent(what="lost", about="what a process could not report")


_NAME = "dejavu_cache"


class _Instruments(NamedTuple):
    tracer: Any
    choices: Any
    benchmarks: Any
    durations: Any


@cache
def _instruments() -> _Instruments:
    # The proxies of the API follow a provider that the program sets later.
    from opentelemetry import metrics, trace

    meter = metrics.get_meter(_NAME)
    return _Instruments(
        trace.get_tracer(_NAME),
        meter.create_counter(
            f"{_NAME}.choices", "{choice}", "Configs chosen for a scenario, by how they were found"
        ),
        meter.create_counter(f"{_NAME}.benchmarks", "{config}", "Configs that were benchmarked"),
        meter.create_histogram(f"{_NAME}.tune.duration", "s", "Time that a tune took"),
    )


def trace_choice(choice: NewChoice) -> None:
    """Record how a launch came by its config; a failure of the telemetry fails no launch."""
    if "opentelemetry" not in sys.modules:
        return
    try:
        _record(choice)
    except Exception as error:
        warn_once("telemetry", f"OpenTelemetry took no span or metric: {error}")


def _record(choice: NewChoice) -> None:
    instruments = _instruments()
    request, resolution = choice.request, choice.resolution
    labels = {
        f"{_NAME}.kernel": choice.kernel,
        f"{_NAME}.device": request.context.environment.device.name,
        f"{_NAME}.how": resolution.how,
    }
    instruments.choices.add(1, labels)
    if choice.benchmarked:
        instruments.benchmarks.add(choice.benchmarked, labels)
        instruments.durations.record(choice.seconds, labels)
    elif resolution.final:
        return
    end = time.time_ns()
    span = instruments.tracer.start_span(
        f"{_NAME}.{'tune' if choice.benchmarked else 'fallback'}",
        start_time=end - int(choice.seconds * 1e9),
        attributes={
            **labels,
            f"{_NAME}.scenario": str(request.scenario),
            f"{_NAME}.config": str(describe(resolution.config)),
            f"{_NAME}.store": resolution.store or "",
            f"{_NAME}.benchmarked": choice.benchmarked,
        },
    )
    span.end(end)


def report_to_triton(
    autotuner: Any, request: Request, resolution: Resolution, benchmarked: int
) -> None:
    """Fill `cache` and `configs_timings`, call Triton's listener, and print what it would print.

    Args:
        autotuner: the `CachedAutotuner` that launches.
        request: the launch's scenario.
        resolution: the config that it runs.
        benchmarked: the number of configs that were benchmarked for it.
    """
    key = launch_key(autotuner, request.args, request.kwargs)
    config = resolution.config
    if isinstance(autotuner.cache, ConfigCache):
        autotuner.cache.report(key, config)
    timings = getattr(request.autotuner, "configs_timings", {})
    if timings:
        autotuner.configs_timings = timings
    listener, function = autotuning_listener(), find_jit_function(autotuner)
    is_measured = resolution.final and not resolution.only
    if listener is not None and function is not None and is_measured:
        listener(
            fn=function,
            key=key,
            best_config=config,
            configs_timings=timings,
            duration=autotuner.bench_time if benchmarked else None,
            cache_hit=not benchmarked,
        )
    if knobs.autotuning.print and benchmarked:
        print(
            f"Triton autotuning for function {autotuner.base_fn.__name__},\nwith key as {key},\n"
            f"finished after {autotuner.bench_time:.2f}s,\n"
            f"best config selected: {config};"
        )


LATE = 1.0
"""Seconds from which on the wait for a recorded config is worth a line."""

_logger = logging.getLogger("dejavu_cache.launches")


def log_choice(new: NewChoice) -> None:
    """Log how a launch came by its config, unless its record was there at once."""
    if not _logger.isEnabledFor(logging.INFO):
        return
    resolution, before = new.resolution, new.before
    launch = f"{new.kernel}{new.request.scenario}"
    choice = f"({describe(resolution.config)})"
    source = f" in {resolution.store}" if resolution.store else ""
    provenance = f"{resolution.how}{source}"
    doubt = "".join(f"; not compared: {reason}" for reason in resolution.not_compared)
    if new.benchmarked:
        failures, time = _failures_text(new.request), _time_text(new.request, resolution)
        tune = f"{counted(new.benchmarked, 'config')}{failures} in {new.seconds:.1f} s"
        _logger.info(
            "tuned %s: %s; winner %s%s, %s%s", launch, tune, choice, time, provenance, doubt
        )
    elif not resolution.final:
        if before is None or (before.how, before.config) != (resolution.how, resolution.config):
            distance = f" at distance {resolution.distance:g}" if resolution.distance else ""
            provenance = f"{resolution.how}{distance}{source}"
            delay = f"after {new.seconds:.2f} s"
            _logger.info("fell back for %s: %s, %s, %s%s", launch, choice, provenance, delay, doubt)
    elif before is not None or new.seconds >= LATE:
        in_place = f"in place of the fallback {before.how}" if before else ""
        delay = in_place or f"after {new.seconds:.1f} s"
        _logger.info("late answer for %s: %s, %s, %s%s", launch, choice, provenance, delay, doubt)
    elif doubt:
        _logger.info("found for %s: %s, %s%s", launch, choice, provenance, doubt)


def _failures_text(request: Request) -> str:
    timings = getattr(request.autotuner, "configs_timings", None) or {}
    failures = sum(math.isinf(_median(timing)) for timing in timings.values())
    return f" ({failures} of {len(timings)} failed)" if failures else ""


def _time_text(request: Request, resolution: Resolution) -> str:
    timings = getattr(request.autotuner, "configs_timings", None) or {}
    median = _median(timings.get(resolution.config, math.inf))
    return f" {median:.4g} ms" if math.isfinite(median) else ""


def _median(timing: Any) -> float:
    """Return the median of what a benchmark returned: quantiles, or a number."""
    return float(timing[0] if isinstance(timing, list) else timing)


def report_choice(autotuner: Any, choice: NewChoice, resolver: Resolver) -> None:
    """Report a choice to Triton's listener, `verify`, the log, OpenTelemetry and the fingerprint.

    Args:
        autotuner: the kernel's.
        choice: how the launch came by its config.
        resolver: adds what the record says, for the fingerprint.
    """
    request, resolution, benchmarked = choice.request, choice.resolution, choice.benchmarked
    report_to_triton(autotuner, request, resolution, benchmarked)
    report_resolution(choice.kernel, request.scenario, resolution, benchmarked)
    log_choice(choice)
    trace_choice(choice)
    if fingerprint.is_written():
        fingerprint.write_choice(request, resolver.add_evidence(request, resolution))
