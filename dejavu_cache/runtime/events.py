"""What is told when a launch's config has been chosen, and of what Triton does beside.

One event, `ConfigChosen`, is emitted for each choice: once for each scenario whose record is found,
and again when a fallback is looked up again. `emit` names who is told. A miss is not among them:
the resolver puts it on the store's worklist, also where it raises and nothing is chosen.
"""

from __future__ import annotations

import functools
import logging
import math
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ..model.resolution import Resolution
from ..system.notices import counted, warn_once
from ..triton_internals.cache_managers import launch_key
from ..triton_internals.config_names import describe
from ..triton_internals.hooks import (
    add_compilation_listener,
    cache_manager,
    replace_bench,
    set_cache_manager,
)
from ..triton_internals.identity import find_jit_function
from ..triton_internals.versions import Autotuner, autotuning_listener, knobs
from .request import Request
from .resolver import Resolver
from .run_files import ConfigRun, has_fingerprint, has_report, report_event, write_config_run

if TYPE_CHECKING:
    from .autotuner import CachedAutotuner

__all__ = ["LATE", "ConfigChosen", "emit", "report_triton_activity"]

LATE = 1.0
"""Seconds from which on the wait for a recorded config is worth a line."""

_NAME = "dejavu_cache"

_logger = logging.getLogger(f"{_NAME}.launches")


@dataclass(frozen=True)
class ConfigChosen:
    """A launch has come by its config.

    Attributes:
        autotuner: the kernel's.
        resolver: what has chosen; it knows what the record says of the config.
        request: the launch's scenario.
        resolution: the config that it runs.
        benchmarked: the number of configs that were benchmarked for it.
        seconds: how long that took.
        before: the fallback that earlier launches of the scenario ran, or None.
    """

    autotuner: CachedAutotuner
    resolver: Resolver
    request: Request
    resolution: Resolution
    benchmarked: int
    seconds: float
    before: Resolution | None

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return self.request.context.kernel.name

    @property
    def launch(self) -> str:
        """The kernel and the scenario, as all texts name them."""
        return f"{self.kernel}{self.request.scenario}"

    @property
    def timings(self) -> Mapping[Any, Any]:
        """What was measured for this choice: timings by `triton.Config`."""
        return getattr(self.request.autotuner, "configs_timings", None) or {}


def emit(event: ConfigChosen) -> None:
    """Tell Triton's users, the report, the log, OpenTelemetry and the fingerprint of a choice."""
    tell_triton(event)
    report_choice(event)
    log_choice(event)
    trace_choice(event)
    write_choice(event)


def tell_triton(event: ConfigChosen) -> None:
    """Do what Triton's autotuner does after a choice.

    It fills `cache` and `configs_timings`, calls a listener, and prints if it is asked to.
    """
    autotuner, resolution = event.autotuner, event.resolution
    key = launch_key(autotuner, event.request.args, event.request.kwargs)
    config = resolution.config
    autotuner.cache.report(key, config)
    if event.timings:
        autotuner.configs_timings = event.timings
    listener, function = autotuning_listener(), find_jit_function(autotuner)
    is_measured = resolution.final and not resolution.only
    if listener is not None and function is not None and is_measured:
        listener(
            fn=function,
            key=key,
            best_config=config,
            configs_timings=event.timings,
            duration=autotuner.bench_time if event.benchmarked else None,
            cache_hit=not event.benchmarked,
        )
    if knobs.autotuning.print and event.benchmarked:
        print(
            f"Triton autotuning for function {autotuner.base_fn.__name__},\nwith key as {key},\n"
            f"finished after {autotuner.bench_time:.2f}s,\n"
            f"best config selected: {config};"
        )


def report_choice(event: ConfigChosen) -> None:
    """Report to `verify` how a scenario's config was found."""
    resolution = event.resolution
    if event.benchmarked:
        report_event("benchmarked", event.launch, counted(event.benchmarked, "config"))
    elif resolution.only or resolution.how in ("exact", "pinned"):
        report_event("hit", event.launch, str(resolution.config))
    else:
        report_event("missed", event.launch, f"resolved by: {resolution.how}")


def log_choice(event: ConfigChosen) -> None:
    """Log a tune, a fallback and an answer that came late, at the level INFO.

    A launch whose record is there says nothing, unless some of its results were not compared.
    """
    if not _logger.isEnabledFor(logging.INFO):
        return
    resolution, before = event.resolution, event.before
    source = f" in {resolution.store}" if resolution.store else ""
    provenance = f"{resolution.how}{source}"
    if event.benchmarked:
        tune = f"{counted(event.benchmarked, 'config')}{_failures_text(event)}"
        what, how = "tuned", f"{tune} in {event.seconds:.1f} s; winner "
        provenance = f"{_time_text(event)}, {provenance}"
    elif not resolution.final:
        if before and (before.how, before.config) == (resolution.how, resolution.config):
            return
        distance = f" at distance {resolution.distance:g}" if resolution.distance else ""
        what, how = "fell back for", ""
        provenance = f", {resolution.how}{distance}{source}, after {event.seconds:.2f} s"
    elif before is not None or event.seconds >= LATE:
        what, how = "late answer for", ""
        delay = (
            f"in place of the fallback {before.how}" if before else f"after {event.seconds:.1f} s"
        )
        provenance = f", {provenance}, {delay}"
    elif resolution.not_compared:
        what, how, provenance = "found for", "", f", {provenance}"
    else:
        return
    doubt = "".join(f"; not compared: {reason}" for reason in resolution.not_compared)
    config = describe(resolution.config)
    _logger.info("%s %s: %s(%s)%s%s", what, event.launch, how, config, provenance, doubt)


def _failures_text(event: ConfigChosen) -> str:
    failures = sum(math.isinf(_median(timing)) for timing in event.timings.values())
    return f" ({failures} of {len(event.timings)} failed)" if failures else ""


def _time_text(event: ConfigChosen) -> str:
    median = _median(event.timings.get(event.resolution.config, math.inf))
    return f" {median:.4g} ms" if math.isfinite(median) else ""


def _median(timing: Any) -> float:
    """Return the median of what a benchmark returned: quantiles, or a number."""
    return float(timing[0] if isinstance(timing, list) else timing)


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


def trace_choice(event: ConfigChosen) -> None:
    """Give OpenTelemetry metrics of each choice, and a span of each tune and fallback.

    A program that exports telemetry has imported OpenTelemetry's API; for others it is never
    imported. A failure of the telemetry fails no launch.
    """
    if "opentelemetry" not in sys.modules:
        return
    try:
        _trace(event)
    except Exception as error:
        warn_once("telemetry", f"OpenTelemetry took no span or metric: {error}")


def _trace(event: ConfigChosen) -> None:
    instruments, resolution = _instruments(), event.resolution
    labels = {
        f"{_NAME}.kernel": event.kernel,
        f"{_NAME}.device": event.request.context.environment.device.name,
        f"{_NAME}.how": resolution.how,
    }
    instruments.choices.add(1, labels)
    if event.benchmarked:
        instruments.benchmarks.add(event.benchmarked, labels)
        instruments.durations.record(event.seconds, labels)
    elif resolution.final:
        return
    end = time.time_ns()
    span = instruments.tracer.start_span(
        f"{_NAME}.{'tune' if event.benchmarked else 'fallback'}",
        start_time=end - int(event.seconds * 1e9),
        attributes={
            **labels,
            f"{_NAME}.scenario": str(event.request.scenario),
            f"{_NAME}.config": str(describe(resolution.config)),
            f"{_NAME}.store": resolution.store or "",
            f"{_NAME}.benchmarked": event.benchmarked,
        },
    )
    span.end(end)


def write_choice(event: ConfigChosen) -> None:
    """Write the config into the run's fingerprint, with what its record says."""
    if not has_fingerprint():
        return
    resolution = event.resolver.add_evidence(event.request, event.resolution)
    context, evidence = resolution.context, resolution.evidence
    record = None
    if resolution.recorded_in or resolution.recorded_for:
        recorded_for = resolution.recorded_for or resolution.scenario
        record = f"{(resolution.recorded_in or context).digest} {recorded_for}"
    write_config_run(
        ConfigRun(
            kernel=context.kernel.name,
            source=context.kernel.source,
            scenario=str(event.request.scenario),
            device=context.environment.device.name,
            triton=context.environment.triton,
            method=context.problem.method,
            config=str(describe(resolution.config)),
            how=resolution.how,
            store=resolution.store,
            record=record,
            measured_at=evidence.at.isoformat() if evidence and evidence.at else None,
            measured_by=(evidence.pinned_by or evidence.by) if evidence else "",
        )
    )


@cache
def report_triton_activity() -> None:
    """Report what Triton compiles, builds and benchmarks, if `DEJAVU_CACHE_REPORT` is set."""
    if not has_report():
        return
    report_event("started", " ".join(sys.argv)[:500])

    def listener(*, src: Any, metadata: dict[str, Any], cache_hit: bool, **more: Any) -> None:
        name = getattr(getattr(src, "fn", None), "_fn_name", None) or metadata.get("name", "?")
        report_event("loaded" if cache_hit else "compiled", str(name), _constants_of(src))

    add_compilation_listener(listener)
    set_cache_manager(_reporting_cache(cache_manager()))
    replace_bench(_reporting_bench(Autotuner._bench))


def _constants_of(src: Any) -> str:
    constants = {
        src.fn.arg_names[path[0]]: value for path, value in getattr(src, "constants", {}).items()
    }
    return ", ".join(f"{name}={value}" for name, value in constants.items())[:500]


def _reporting_cache(manager: Any) -> Any:
    """Derive a class of cache managers that reports the host modules which Triton builds."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")

    class ReportingCache(manager):  # type: ignore[misc]
        def put(self, data: Any, filename: str, binary: bool = True) -> str:
            if filename.endswith(suffix):
                report_event("built", filename)
            return str(super().put(data, filename, binary=binary))

    return ReportingCache


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
