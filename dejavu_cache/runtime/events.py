"""What is told when a launch's config has been chosen, and of what Triton does beside.

One event, `ConfigChosen`, is emitted for each choice: once for each scenario whose record is found,
and again when a fallback is looked up again. `emit` names who is told. A miss is not among them:
the resolver puts it on the store's worklist, also where it raises and nothing is chosen.
"""

from __future__ import annotations

import atexit
import functools
import logging
import math
import os
import sys
import sysconfig
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..settings import current_settings
from ..stores import FileStore, tiers_of
from ..system.background_threads import dropping_errors
from ..system.notices import counted
from ..triton_internals import hooks
from ..triton_internals.config_names import describe
from ..triton_internals.versions import Autotuner, knobs
from .choices import launch_key
from .request import Request, Resolution
from .run_files import What, has_report, report_event

if TYPE_CHECKING:
    from .autotuner import CachedAutotuner

_NAME = "dejavu_cache"

_logger = logging.getLogger(f"{_NAME}.launches")


@dataclass(frozen=True)
class ConfigChosen:
    """A launch has come by its config.

    Attributes:
        autotuner: the kernel's.
        request: the launch's scenario.
        resolution: the config that it runs.
        benchmarked: the number of configs that were benchmarked for it.
        seconds: how long that took.
        before: the fallback that earlier launches of the scenario ran, or None.
        timings: what was measured, by `triton.Config`.
    """

    autotuner: CachedAutotuner
    request: Request
    resolution: Resolution
    benchmarked: int
    seconds: float
    before: Resolution | None
    timings: Mapping[Any, Any]


def emit(event: ConfigChosen) -> None:
    """Tell Triton's users, the report, the log, OpenTelemetry and whoever tunes first."""
    tell_triton(event)
    if current_settings().report:
        report_choice(event)
    if _logger.isEnabledFor(logging.INFO):
        log_choice(event)
    if "opentelemetry" in sys.modules:
        trace_choice(event)
    if event.resolution.how == "tuned" and not event.request.not_stored:
        count_tune(event)


def tell_triton(event: ConfigChosen) -> None:
    """Do what Triton's autotuner does after a choice.

    It fills `cache` and `configs_timings`, calls a listener, and prints if it is asked to.
    """
    autotuner, resolution = event.autotuner, event.resolution
    key = launch_key(autotuner, event.request.args, event.request.kwargs)
    config, timings = resolution.config, event.timings
    autotuner._cache.report(key, config)
    if timings:
        autotuner.configs_timings = timings
    listener = getattr(knobs.autotuning, "listener", None)  # since Triton 3.7
    function = autotuner.declaration.function
    is_measured = resolution.final and not resolution.has_no_choice
    if listener is not None and function is not None and is_measured:
        listener(
            fn=function,
            key=key,
            best_config=config,
            configs_timings=timings,
            duration=autotuner.bench_time if event.benchmarked else None,
            cache_hit=not event.benchmarked,
        )
    if knobs.autotuning.print and event.benchmarked:
        print(
            f"Triton autotuning for function {autotuner.base_fn.__name__},\nwith key as {key},\n"
            f"finished after {autotuner.bench_time:.2f}s,\n"
            f"best config selected: {config};"
        )


@dataclass
class _Tuned:
    """What this process has tuned into a folder."""

    folder: FileStore
    scenarios: int = 0
    seconds: float = 0.0


_tuned: dict[str, _Tuned] = {}
"""What this process has tuned, by the folder's URL."""

_MOST_FILES = 100
"""Record files beyond which a folder is no new one, and is not read at a program's end."""


def count_tune(event: ConfigChosen) -> None:
    """Count a tuned scenario, for the line at the end of the first process that tunes."""
    for tier in tiers_of(event.autotuner.resolver(None).store):
        if isinstance(tier, FileStore) and not tier.read_only:
            if not _tuned:
                atexit.register(_say_first_tunes, os.getpid())
            tuned = _tuned.setdefault(tier.url, _Tuned(tier))
            tuned.scenarios += 1
            tuned.seconds += event.seconds
            return


def _say_first_tunes(process: int) -> None:
    """Say what was tuned into folders that hold nothing else: later processes have no such news."""
    for tuned in _tuned.values() if os.getpid() == process else ():
        folder = tuned.folder
        with suppress(Exception):  # the program has ended well, whatever becomes of this line
            if len(list(islice(folder.root.glob("*/*/*/*.json"), _MOST_FILES))) == _MOST_FILES:
                continue
            held = sum(len([*folder.scenario_texts(each)]) for each in folder.contexts())
            if held == tuned.scenarios:
                sys.stderr.write(
                    f"dejavu-cache: {counted(tuned.scenarios, 'scenario')} tuned in "
                    f"{tuned.seconds:.1f} s and kept for later processes; to see them: "
                    f"dejavu-cache ls --store {folder.url}\n"
                )


def report_choice(event: ConfigChosen) -> None:
    """Report how a scenario's config was found: to `verify`, and to `diff` with other runs."""
    resolution, context = event.resolution, event.resolution.context
    details = [f"{resolution.how}: {describe(resolution.config)}"]
    if resolution.store:
        details.append(f"in {resolution.store}")
    if resolution.recorded_in or resolution.recorded_for:
        digest = (resolution.recorded_in or context).digest
        details.append(f"for {digest} {resolution.recorded_for or resolution.scenario}")
    environment = context.environment
    details.append(f"on {environment.device.name} with Triton {environment.triton}")
    details.append(f"of code {context.kernel.source}")
    is_hit = resolution.has_no_choice or resolution.how in ("exact", "pinned")
    what: What = "benchmarked" if event.benchmarked else "hit" if is_hit else "missed"
    report_event(what, event.request.name, " ".join(details))


def log_choice(event: ConfigChosen) -> None:
    """Log a tune and a fallback, at the level INFO.

    A launch whose record is there says nothing, unless some of its results were not compared.
    """
    resolution, before = event.resolution, event.before
    source = f" in {resolution.store}" if resolution.store else ""
    provenance = f", {resolution.how}{source}"
    if event.benchmarked:
        failures = sum(math.isinf(_median(timing)) for timing in event.timings.values())
        failed = f" ({failures} of {len(event.timings)} failed)" if failures else ""
        amount = f"{counted(event.benchmarked, 'config')}{failed}"
        what, how = "tuned", f"{amount} in {event.seconds:.1f} s; winner "
        median = _median(event.timings.get(resolution.config, math.inf))
        time_text = f" {median:.4g} ms" if math.isfinite(median) else ""
        default = _median(event.timings.get(event.request.default, math.inf))
        if median < default < math.inf:
            time_text += f", {1 - median / default:.0%} less than the default"
        provenance = f"{time_text}{provenance}"
    elif not resolution.final:
        if before and (before.how, before.config) == (resolution.how, resolution.config):
            return
        what, how = "fell back for", ""
        provenance = f", {resolution.provenance}{source}, after {event.seconds:.2f} s"
    elif resolution.not_compared:
        what, how = "found for", ""
    else:
        return
    doubt = "".join(f"; not compared: {reason}" for reason in resolution.not_compared)
    config = describe(resolution.config)
    _logger.info("%s %s: %s(%s)%s%s", what, event.request.name, how, config, provenance, doubt)


def _median(timing: Any) -> float:
    """Return the median of what a benchmark returned: quantiles, or a number."""
    return float(timing[0] if isinstance(timing, list) else timing)


def trace_choice(event: ConfigChosen) -> None:
    """Count each choice, and make a span of each tune and fallback, by OpenTelemetry's API.

    A program that exports telemetry has imported it; for others it is never imported. The API's
    own objects follow a provider that the program sets later. A failure fails no launch.
    """
    resolution, end = event.resolution, time.time_ns()
    labels = {
        f"{_NAME}.kernel": event.request.context.kernel.name,
        f"{_NAME}.device": resolution.context.environment.device.name,
        f"{_NAME}.how": resolution.how,
    }
    with dropping_errors("OpenTelemetry took no span or metric", about="telemetry"):
        from opentelemetry import trace

        _choices_counter().add(1, labels)
        if resolution.final and not event.benchmarked:
            return
        name = "tune" if event.benchmarked else "fallback"
        span = trace.get_tracer(_NAME).start_span(
            f"{_NAME}.{name}",
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


@cache
def _choices_counter() -> Any:
    from opentelemetry import metrics

    return metrics.get_meter(_NAME).create_counter(f"{_NAME}.choices", "{choice}")


@cache
def report_triton_activity() -> None:
    """Report what Triton compiles, builds and benchmarks, if `DEJAVU_CACHE_REPORT` is set."""
    if not has_report():
        return
    report_event("started", " ".join(sys.argv)[:500])

    def listener(*, src: Any, metadata: dict[str, Any], cache_hit: bool, **more: Any) -> None:
        name = getattr(getattr(src, "fn", None), "_fn_name", None) or metadata.get("name", "?")
        report_event("loaded" if cache_hit else "compiled", str(name), _constants_of(src))

    bench = Autotuner._bench

    @functools.wraps(bench)
    def report_and_bench(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(self, "benchmarked"):  # cached autotuners report their scenario
            name, config = getattr(self.base_fn, "__name__", "?"), kwargs.get("config", "")
            report_event("benchmarked", name, str(config)[:200])
        return bench(self, *args, **kwargs)

    hooks.add_compilation_listener(listener)
    hooks.set_cache_manager(_reporting_cache(hooks.cache_manager()))
    hooks.replace_bench(report_and_bench)


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
