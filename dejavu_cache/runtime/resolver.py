"""Resolve a scenario that a launch meets for the first time: use a record, tune, or fall back.

Take over records of equal code under another key, and refuse those of other code.

Triton's key of a kernel changes with each edit, and stays where an edit is none of its text: the
IR that Triton generates decides in both cases.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import Any

from ..errors import ScenarioNotTuned
from ..model.record import Record
from ..model.resolution import Resolution
from ..model.scenario import Config, Context, Scenario, now
from ..model.selection import gather_evidence
from ..settings import Mode, Settings
from ..stores import Found, TieredStore
from ..system.notices import logger, warn_once
from ..triton_internals.config_names import describe
from ..triton_internals.environment import is_capturing_graph, is_interpreting
from ..triton_internals.generated_code import find_other_code, generates_equal_code
from ..triton_internals.identity import is_decorated_alike
from ..tuning.measurement_marks import find_suspects
from .choices import MOST_CHOICES
from .fallbacks import (
    FallbackLimits,
    fall_back,
    find_nearest,
    nearest_differences,
    record_from_triton_cache,
)
from .record_lookup import (
    ignored_pin,
    is_unfinished,
    note_timings,
    resolve_from_record,
    resolve_trusted,
)
from .request import Request, leave_out_suspects
from .scenario_tuner import ScenarioTuner
from .service_phase import may_benchmark
from .tolerant_store import TolerantStore

__all__ = [
    "OtherCodeError",
    "Resolver",
    "adopt_equal_code",
    "refuse_other_code",
]


class OtherCodeError(Exception):
    """Triton generates other code for a launch than its key's record was measured with.

    Attributes:
        code: what it generates.
    """

    def __init__(self, code: str) -> None:
        """Keep the code."""
        super().__init__(code)
        self.code = code


def adopt_equal_code(request: Request, store: TolerantStore) -> Found | None:
    """Return the scenario's record of equal code under another key, and keep it under this one.

    The winner's code is generated from the kernel of today, for a launch that was recorded with it.
    """
    if request.not_stored or is_interpreting():
        return None
    for found, is_same_scenario in _candidates(request, store):
        if not _is_equal(request, found.record, is_same_scenario=is_same_scenario):
            continue
        adopted = found.record.as_adopted(now()).model_copy(update={"scenario": request.scenario})
        store.put(request.context, adopted)
        name = request.context.kernel.name
        logger.info("%s%s: recorded of equal code before an edit", name, request.scenario)
        return Found(adopted, found.store)
    return None


def _candidates(request: Request, store: TolerantStore) -> Iterator[tuple[Found, bool]]:
    """Yield records that differ in nothing but keys, and whether they are of the same scenario."""
    wanted = request.scenario.without_keys
    for context in (request.context, *store.other_contexts(request.context)):
        if context != request.context:
            if not _may_be_equal(context, request.context):
                continue
            if found := store.get(context, request.scenario):
                yield found, True
        if wanted == request.scenario:
            continue
        for scenario in store.list_scenarios(context):
            is_other = scenario != request.scenario and scenario.without_keys == wanted
            if is_other and (found := store.get(context, scenario)):
                yield found, False


def refuse_other_code(request: Request, record: Record) -> None:
    """Compare the code of a recorded winner, which this launch is about to run, with the record's.

    Raises:
        OtherCodeError: it is other code, by what no key sees: a patched method of Triton's
            language, a function that reads a file, another value of a module's attribute.
    """
    winner = record.winner
    if winner is None or winner.config not in request.declared or not _may_compile():
        return
    code = find_other_code(
        request.autotuner,
        record.launches or (),
        request.declared[winner.config],
        request.args,
        request.kwargs,
    )
    if code is not None:
        raise OtherCodeError(code)


def _may_be_equal(context: Context, wanted: Context) -> bool:
    """Return whether two contexts differ in nothing but Triton's key of the kernel."""
    return (
        context.environment == wanted.environment
        and context.problem == wanted.problem
        and is_decorated_alike(context.kernel.source, wanted.kernel.source)
    )


def _is_equal(request: Request, record: Record, *, is_same_scenario: bool) -> bool:
    winner = record.winner
    if winner is None or not record.is_finished or winner.config not in request.declared:
        return False
    config, launches = request.declared[winner.config], record.launches or ()
    if not generates_equal_code(request.autotuner.fn, launches, winner.config, config):
        return False
    if not _may_compile():
        return is_same_scenario
    # What heuristics compute is no part of what was recorded to be generated again.
    other = find_other_code(
        request.autotuner,
        launches,
        config,
        request.args,
        request.kwargs,
        is_same_scenario=is_same_scenario,
    )
    return other is None


def _may_compile() -> bool:
    """Return whether the launch may compile before it runs: not while a request waits for it."""
    return may_benchmark() and not (is_interpreting() or is_capturing_graph())


RACE_WAIT = 1.0
"""Seconds to wait for a process that only races what is recorded."""

MOST_REJECTIONS = 3
"""Configs of a scenario that may fail at launches before only the default is left."""


class Resolver:
    """Decides, for one autotuner, where configs come from.

    Attributes:
        store: where records are read and written.
        mode: what a launch may do on a miss.
    """

    def __init__(
        self,
        store: TieredStore,
        mode: Mode,
        max_distance: float,
        settings: Settings,
        before: Callable[[Config], None] | None = None,
        *,
        expendable: bool = False,
        compares_code: bool = False,
    ) -> None:
        """Set up the resolver.

        Args:
            store: where records are read and written.
            mode: what a launch may do on a miss.
            max_distance: how far a nearest scenario may be, in powers of two summed over the key.
            settings: the process's settings.
            before: is called with each config before it is measured, once all earlier measurements
                are recorded.
            expendable: whether this process may measure configs during which another one has died.
            compares_code: whether a recorded winner's code is compared before a launch runs it.
        """
        self.store = store
        self._compares_code = compares_code
        self.mode = mode
        self._expendable = expendable
        self._store = TolerantStore(store)
        self._tuner = ScenarioTuner(
            self._store, show_progress=settings.progress, before=before, expendable=expendable
        )
        self._limits = FallbackLimits(
            max_distance,
            other_toolchains=settings.toolchain == "loose",
            other_gpus=settings.family,
            uncompared=mode is not Mode.TUNE,
        )
        self._noted_misses: set[tuple[Context, Scenario]] = set()
        self._rejected: dict[tuple[Context, Scenario], set[Config]] = {}

    def resolve(self, request: Request, *, wait: float) -> tuple[Resolution, int]:
        """Return the resolution that a launch runs, and how many configs were benchmarked for it.

        Args:
            request: the scenario.
            wait: seconds to wait for another process that tunes the same scenario.

        Raises:
            ScenarioNotTuned: in strict mode, on a miss.
            NoValidConfigError: every config failed.
            OtherCodeError: the record is of other code than Triton generates for the launch.
        """
        found = self._look_up(request) or self._adopt_triton_timings(request)
        if found and self._compares_code:
            refuse_other_code(request, found.record)
        request = self._without_unusable(request, found)
        if request.has_empty_grid:
            recorded = self._resolve_trusted(request, found)
            runs = recorded or request.resolution("default", request.default)
            return replace(runs, is_idle=True), 0
        if found:
            note_timings(request, found.record)
        if not self._may_tune():
            return self._resolve_trusted(request, found) or self._resolve_miss(request, found), 0
        settled = self._tuner.resolve_settled(request, found)
        if settled is not None:
            return settled, 0
        if found and resolve_from_record(request, found) and not request.due_configs(found.record):
            wait = min(wait, RACE_WAIT)
        tuned, benchmarked = self._tuner.tune(request, wait)
        if tuned is None:
            # The process that was tuning may have died or hung while this one waited.
            tuned = self._fall_back(self._without_unusable(request, found), found)
        return tuned, benchmarked

    def _resolve_miss(self, request: Request, found: Found | None) -> Resolution:
        """Return what a launch without a finished record runs where it must not tune.

        Raises:
            ScenarioNotTuned: in strict mode.
        """
        if self.mode is not Mode.STRICT:
            self.note_miss(request)
            return self._fall_back(request, found)
        # A server that was busy at the first look is waited for.
        found = self._look_up(request, fresh=True)
        recorded = self._resolve_trusted(request, found)
        if recorded is None:
            self.note_miss(request)
            raise ScenarioNotTuned(self._explain_miss(request, found))
        return recorded

    def _resolve_trusted(self, request: Request, found: Found | None) -> Resolution | None:
        return resolve_trusted(request, found, uncompared=self._limits.uncompared)

    def _may_tune(self) -> bool:
        return self.mode is Mode.TUNE and may_benchmark() and not is_capturing_graph()

    def revision(self, context: Context) -> Hashable | None:
        """Return a value that changes before a fallback's answer may change, or None if unknown.

        A fallback that tunes at the next try, or that looks at other contexts, may change any time.
        """
        looks_further = self._limits.other_toolchains or self._limits.other_gpus
        if self.mode is Mode.STRICT or self._may_tune() or looks_further:
            return None
        return self._store.revision(context)

    def only_config(self, request: Request) -> Resolution:
        """Return the resolution of a launch that is left one config, which needs no benchmark."""
        resolution = resolve_from_record(request, self._look_up(request))
        if resolution is not None and resolution.how == "pinned":
            return resolution
        return request.resolution("default", request.default, only=True)

    def explain(self, request: Request) -> Resolution:
        """Return what a launch would run now, without benchmarking or noting a miss."""
        if request.has_no_choice:
            return self.only_config(request)
        found = self._look_up(request)
        request = self._without_unusable(request, found)
        resolution = self._resolve_trusted(request, found)
        if resolution is not None:
            return resolution
        fallback = self._fall_back(request, found)
        return replace(
            fallback,
            differences=fallback.differences or nearest_differences(request, self._store),
            missing=len(request.unmeasured_configs(found.record if found else None)),
            ignored_pin=None if (pin := ignored_pin(request, found)) is None else str(pin),
        )

    def reject(self, request: Request, config: Config, reason: str) -> bool:
        """Leave a config that failed at a launch out of its scenario's later launches.

        Returns:
            Whether another config is left: False for the default, which is the last resort, and for
            a config that was chosen although it had failed before.
        """
        default = describe(request.default)
        rejected = self._rejected.setdefault((request.context, request.scenario), set())
        if config == default or config in rejected or config not in request.declared:
            return False
        rejected.add(config)
        if len(rejected) >= MOST_REJECTIONS:
            rejected.update(other for other in request.declared if other != default)
        name = request.context.kernel.name
        warn_once(
            f"rejected {name}{request.scenario} {config}",
            f"{name}{request.scenario}: the recorded config ({config}) cannot run here, and "
            f"another one does: {reason}",
        )
        return True

    def _without_unusable(self, request: Request, found: Found | None) -> Request:
        """Leave out the configs that cannot run here, and those during which processes have died.

        A process that may die measures the latter.
        """
        request = request.without(self._rejected.get((request.context, request.scenario), ()))
        if self._expendable:
            return request
        suspects = find_suspects(request.context, request.scenario)
        return leave_out_suspects(request, found.record if found else None, suspects)

    def usable_configs(self, request: Request) -> list[Any]:
        """Return the `triton.Config`s that a launch may run, without those known to fail there."""
        found = self._look_up(request)
        measured = found.record.by_config if found else {}
        declared = self._without_unusable(request, found).declared
        return [
            declared[config]
            for config in declared
            if config not in measured or measured[config].failure is None
        ]

    def add_evidence(self, request: Request, resolution: Resolution) -> Resolution:
        """Return a resolution with what its record says, or how far the nearest record is."""
        config = describe(resolution.config)
        found = self._store.get(
            resolution.recorded_in or request.context, resolution.recorded_for or request.scenario
        )
        if found is not None and config in found.record.by_config and resolution.how != "default":
            default = describe(request.default)
            evidence = gather_evidence(found.record, config, {*request.declared}, default)
            return replace(resolution, evidence=evidence)
        if resolution.final:
            return resolution
        near = find_nearest(request, self._store)
        return replace(resolution, nearest=near[0]) if near is not None else resolution

    def _look_up(self, request: Request, *, fresh: bool = False) -> Found | None:
        """Return the scenario's record, also one of equal code under another key of Triton's."""
        found = self._tuner.look_up(request, fresh=fresh)
        return found or adopt_equal_code(request, self._store)

    def _adopt_triton_timings(self, request: Request) -> Found | None:
        """Record the imported timings of Triton's disk cache that belong to this very launch."""
        record = record_from_triton_cache(request, self._store.imports(request.context))
        if record is None:
            return None
        self._store.put(request.context, record)
        return Found(record, self._store.url)

    def _fall_back(self, request: Request, found: Found | None) -> Resolution:
        fallback = fall_back(request, self._store, self._limits)
        if is_unfinished(request, found):
            return replace(fallback, unfinished=True)
        fastest = resolve_from_record(request, found)
        if fastest is None:
            return fallback
        config = describe(fastest.config)
        reasons = [f"({config}): {reason}" for reason in fastest.not_compared]
        return replace(fallback, not_compared=reasons)

    def note_miss(self, request: Request) -> None:
        """Put a miss on the worklist, once: a fallback is looked up again and again."""
        miss = request.context, request.scenario
        if len(self._noted_misses) >= MOST_CHOICES:
            self._noted_misses.clear()
        if miss not in self._noted_misses:
            self._noted_misses.add(miss)
            self._store.note_miss(*miss)

    def _explain_miss(self, request: Request, found: Found | None) -> str:
        launch = f"{request.context.kernel.name}{request.scenario}"
        place = f"for {request.context.environment.device.name} in {self._store.url}"
        if is_unfinished(request, found):
            return (
                f"{launch} has timings {place}, but no winner whose results were compared, and "
                "the mode is strict; finish its tune by a launch in mode tune or `dejavu-cache "
                "sweep`, or choose a config by `dejavu-cache pin`"
            )
        fields = "\n".join(f"  {field}" for field in nearest_differences(request, self._store))
        nearest_record = (
            f"the nearest record differs in\n{fields}"
            if fields
            else "no record of this kernel exists"
        )
        return f"{launch} is not tuned {place}, and the mode is strict; {nearest_record}"
