"""What a launch does at first sight of a scenario: use a record, tune, or fall back."""

from __future__ import annotations

import importlib.util
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import NoValidConfigError, ScenarioNotTuned, StoreError
from ..model.foreign_result import ForeignResult
from ..model.merge import Difference, differences, merge_records
from ..model.record import Measurement, Record, Winner
from ..model.resolution import How, Resolution
from ..model.scenario import Config, Context, Scenario, now
from ..model.selection import nearest, winner
from ..notices import warn_once
from ..settings import Mode, Settings
from ..stores import Found, FoundTree, MemoryStore, TieredStore
from ..triton_internals.compilation import tuned_launches
from ..triton_internals.config_names import describe
from ..triton_internals.environment import is_capturing_graph
from ..tuning.measurement_writer import MeasurementWriter
from ..tuning.progress_bar import progress
from ..tuning.search import Exhaustive, OptunaSearch, Search
from ..tuning.tuner import CandidateLaunch, Tuner
from .foreign_results import measured, stand_in
from .launch_recorder import pause_recording
from .request import Request

__all__ = ["Resolver"]

_one_at_a_time = threading.RLock()
"""Held while this process tunes: two benchmarks at once would time each other."""

RACE_WAIT = 1.0
"""Seconds to wait for a process that holds no more than a race: what is recorded serves as well meanwhile."""


class Resolver:
    """Decides, for one autotuner, where configs come from.

    Args:
        store: where records are looked for and kept.
        mode: what may be done about a miss.
        max_distance: how far a nearest scenario may be.
        before: is told each config before it is measured, and after all that was measured before is stored.
    """

    def __init__(
        self,
        store: TieredStore,
        mode: Mode,
        max_distance: float,
        settings: Settings,
        before: Callable[[Config], None] | None = None,
    ) -> None:
        self.store = store
        self._before = before
        kept = [
            tier.url
            for tier in store.tiers
            if not (tier.read_only or isinstance(tier, MemoryStore))
        ]
        self._home = ",".join(kept) or store.url
        self._lasting = bool(kept)
        self.mode = mode
        self._max_distance = max_distance
        self._settings = settings
        self._noted: set[tuple[Context, Scenario]] = set()
        self._trees: dict[Context, list[FoundTree]] = {}
        self._other_tools: dict[str, list[ForeignResult]] = {}

    def resolve(self, request: Request, *, wait: float) -> tuple[Resolution, int]:
        """The resolution that a launch runs, and how many configs were benchmarked for it.

        Args:
            wait: seconds to wait for another process that tunes the same scenario.

        Raises:
            ScenarioNotTuned: in strict mode, on a miss.
            NoValidConfigError: every config failed.
        """
        found = self._look_up(request) or self._taken_over(request)
        known = self._from_record(request, found)
        may_tune = self.mode is Mode.TUNE and not is_capturing_graph()
        if known and not (may_tune and self._unfinished(request, known, found)):
            return known, 0
        if may_tune:
            only_race = known and found and not request.due_configs(found.record)
            return self._tune(request, min(wait, RACE_WAIT) if only_race else wait)
        self._note_miss(request)
        if self.mode is Mode.STRICT:
            raise ScenarioNotTuned(self._explain_miss(request))
        return self._fallback(request), 0

    def explain(self, request: Request) -> Resolution:
        """What a launch would find now; benchmarks and writes nothing."""
        known = self._from_record(request, self._look_up(request))
        if known is not None:
            return known
        fallback = self._fallback(request)
        apart = fallback.differences or self._nearest_miss(request)
        return replace(fallback, differences=apart, missing=len(request.declared))

    def _note_miss(self, request: Request) -> None:
        """Puts a miss on the worklist, once per process: a fallback is looked up again and again."""
        miss = request.context, request.scenario
        if miss not in self._noted:
            self._noted.add(miss)
            self.store_quietly(lambda: self.store.miss(*miss))

    def store_quietly(self, action: Callable[[], Any]) -> None:
        """Does something to the store; if that fails, the launch goes on."""
        try:
            action()
        except (StoreError, OSError) as error:
            warn_once(f"store {self._home}", f"{self._home}: {error}; the program goes on without")

    def _look_up(self, request: Request, *, fresh: bool = False) -> Found | None:
        try:
            return self.store.get(request.context, request.scenario, fresh=fresh)
        except (StoreError, OSError) as error:
            warn_once(f"store {self._home}", f"{self._home}: {error}; the program goes on without")
            return None

    def _from_record(
        self, request: Request, found: Found | None, how: How = "exact"
    ) -> Resolution | None:
        """What a record says: a pin, or the best of what is declared today."""
        if found is None:
            return None
        record = found.record
        missing = len(request.unmeasured_configs(record))
        pinned = request.declared.pinned_config(record.pinned) if record.pinned else None
        if pinned is not None:
            return self._resolution(request, "pinned", pinned, store=found.store)
        best = winner(record, set(request.declared), describe(request.default))
        if best is None:
            return None
        return self._resolution(
            request, how, request.declared[best], store=found.store, missing=missing
        )

    def _tune(self, request: Request, wait: float) -> tuple[Resolution, int]:
        with _one_at_a_time, self.store.lease(request.context, request.scenario, wait=wait) as held:
            # Whoever held the lease before may have done the work, or died halfway through it.
            found = self._look_up(request, fresh=True)
            known = self._from_record(request, found)
            if known and not self._unfinished(request, known, found):
                return known, 0
            record = found.record if found else Record(scenario=request.scenario)
            due = request.due_configs(record)
            if (due or known) and not held:
                return known or self._fallback(request), 0
            return self._measure(request, record, due)

    def _unfinished(self, request: Request, known: Resolution, found: Found | None) -> bool:
        """Whether there is more to do; a pin ends that, and a winner is wanted only where the next process finds it."""
        if known.how == "pinned" or found is None:
            return False
        return (
            request.has_work(found.record)
            if self._lasting
            else bool(request.due_configs(found.record))
        )

    def _measure(
        self, request: Request, record: Record, due: list[Config]
    ) -> tuple[Resolution, int]:
        def keep(measurements: Sequence[Measurement]) -> None:
            nonlocal record
            taken = Record(scenario=request.scenario, measurements=tuple(measurements))
            record = merge_records(record, taken)
            self._put(request, taken)

        # Without a winner it never came to a race: whoever measured so far is in this one.
        earlier = record.measurements if record.winner is None else ()
        measured = self._tune_all(request, keep, _search(request, record, due), len(due), earlier)
        best = winner(record, set(request.declared), describe(request.default))
        if best is None and any(each.skipped for each in record.measurements):
            warn_once(f"memory {request.context.kernel.name}", _no_memory(request))
            return self._fallback(request), measured
        if best is None:
            raise NoValidConfigError(
                request.context.kernel.name, str(request.scenario), _reasons(request, record)
            )
        launches = tuned_launches(
            request.autotuner, request.declared[best], request.args, request.kwargs
        )
        won = Winner(config=best, at=now())
        self._put(request, Record(scenario=request.scenario, winner=won, launches=launches))
        missing = len(request.unmeasured_configs(record))
        config = request.declared[best]
        how: How = "tuned" if due or measured else "exact"
        return self._resolution(request, how, config, store=self._home, missing=missing), measured

    def _tune_all(
        self,
        request: Request,
        keep: Callable[[Sequence[Measurement]], None],
        search: Search,
        total: int,
        earlier: Sequence[Measurement],
    ) -> int:
        """Measures what a search asks for, within the plan's time, and says how many configs that were."""
        seconds, default = request.budget.seconds, describe(request.default)
        launch = CandidateLaunch(
            request.autotuner, request.declared, default, request.args, request.kwargs
        )
        # A caller's own benchmark is called once per config; Triton's may be asked again where it is close.
        race = request.budget.race and not request.context.problem.method.startswith(
            ("custom:", "wall")
        )
        until = math.inf if seconds is None else time.monotonic() + seconds
        title = f"{request.context.kernel.name}{request.scenario}"
        showing = progress(title, total, wanted=self._settings.progress)
        with (
            MeasurementWriter(keep) as keeper,
            showing as advance,
            pause_recording(request.autotuner, self.store),
        ):

            def note(measurement: Measurement) -> None:
                keeper(measurement)
                advance()

            def announce(config: Config) -> None:
                if self._before is not None:
                    keeper.drain()
                    self._before(config)

            return Tuner(
                launch, note, race=race, until=until, before=announce, earlier=earlier
            ).tune(search)

    def _put(self, request: Request, record: Record) -> None:
        if not self.store.read_only:
            self.store_quietly(lambda: self.store.put(request.context, [record]))

    def _fallback(self, request: Request) -> Resolution:
        """The first of: another toolchain's record, another tool's result, the nearest scenario, a decision tree, what
        was found on other GPUs of the family, the default."""
        return (
            self._foreign(
                request,
                "toolchain",
                self._settings.toolchain == "loose",
                "environment.triton",
                "environment.codegen",
            )
            or self._imported(request)
            or self._nearest(request)
            or self._tree(request)
            or self._foreign(request, "family", self._settings.family, "environment.device")
            or self._tree(request, family=self._settings.family)
            or self._resolution(
                request, "default", request.default, differences=self._nearest_miss(request)
            )
        )

    def _taken_over(self, request: Request) -> Found | None:
        """Triton's own results of this very launch, put into the store as measured."""
        record = self._quietly(lambda: measured(request, self._imported_for(request)), None)
        if record is None:
            return None
        self._put(request, record)
        return Found(record, self._home)

    def _imported(self, request: Request) -> Resolution | None:
        """What another tool found best."""
        held = stand_in(request, self._imported_for(request))
        return self._resolution(request, "imported", held[0], store=held[1]) if held else None

    def _imported_for(self, request: Request) -> list[ForeignResult]:
        """What was imported for a kernel, read once."""
        function = request.context.kernel.name.rpartition(".")[2]
        if function not in self._other_tools:
            self._other_tools[function] = self._quietly(
                lambda: list(self.store.imported(function)), []
            )
        return self._other_tools[function]

    def _nearest(self, request: Request) -> Resolution | None:
        near = nearest(
            (
                record
                for record in self._records(request.context)
                if self._from_record(request, Found(record, ""))
            ),
            request.scenario,
            exact=request.exact,
            max_distance=self._max_distance,
        )
        known = near and self._from_record(request, Found(near.record, self._home), "nearest")
        if not near or not known:
            return None
        apart = differences(request.scenario.model_dump(), near.record.scenario.model_dump())
        return replace(known, how="nearest", distance=near.distance, differences=apart)

    def _tree(self, request: Request, family: bool = False) -> Resolution | None:
        """A decision tree's choice among what is declared: a tree of this GPU, or of one of the architecture."""
        values = {**request.scenario.dtypes, **request.scenario.args}
        device = request.context.environment.device
        for tree, url in self._trees_for(request.context):
            fitted_on = tree.context.environment.device
            if fitted_on != device and not (family and fitted_on.arch == device.arch):
                continue
            chosen = next(
                (config for config in tree.rank(values) if config in request.declared), None
            )
            if chosen is not None:
                apart = differences(request.context.model_dump(), tree.context.model_dump())
                return self._resolution(
                    request, "tree", request.declared[chosen], store=url, differences=apart
                )
        return None

    def _trees_for(self, context: Context) -> list[FoundTree]:
        """The trees of a kernel, read once: the one first that was fitted in the context most like this one."""
        if context not in self._trees:
            found = self._quietly(lambda: list(self.store.trees(context.kernel.name)), [])
            self._trees[context] = sorted(found, key=lambda each: _foreignness(context, each))
        return self._trees[context]

    def _foreign(
        self, request: Request, how: How, allowed: bool, *may_differ: str
    ) -> Resolution | None:
        """The same scenario's record from another environment, if only what may differ does."""
        if not allowed:
            return None
        for context in self._other_contexts(request.context):
            apart = differences(request.context.model_dump(), context.model_dump())
            same_arch = context.environment.device.arch == request.context.environment.device.arch
            if not same_arch or not all(each.field.startswith(may_differ) for each in apart):
                continue
            found = self._quietly(partial(self.store.get, context, request.scenario), None)
            known = self._from_record(request, found, how)
            if known:
                return replace(known, how=how, differences=apart)
        return None

    def _nearest_miss(self, request: Request) -> list[Difference]:
        """What sets the nearest record apart: first within the context, else in the context that is most alike."""
        near = nearest(self._records(request.context), request.scenario)
        if near:
            return differences(request.scenario.model_dump(), near.record.scenario.model_dump())
        apart = [
            differences(request.context.model_dump(), each.model_dump())
            for each in self._other_contexts(request.context)
        ]
        return min(apart, key=len, default=[])

    def _explain_miss(self, request: Request) -> str:
        apart = "\n".join(f"  {each}" for each in self._nearest_miss(request))
        nearest_record = (
            f"the nearest record differs in\n{apart}"
            if apart
            else "no record of this kernel exists"
        )
        return (
            f"{request.context.kernel.name}{request.scenario} is not tuned for "
            f"{request.context.environment.device.name} in {self._home}, and the mode is strict; {nearest_record}"
        )

    def _records(self, context: Context) -> list[Record]:
        held: list[Record] = self._quietly(lambda: list(self.store.records(context)), [])
        return held

    def _other_contexts(self, context: Context) -> Iterator[Context]:
        held: list[Context] = self._quietly(
            lambda: list(self.store.contexts(context.kernel.name)), []
        )
        return (each for each in held if each != context)

    def _quietly(self, question: Callable[[], Any], otherwise: Any) -> Any:
        answer = [otherwise]
        self.store_quietly(lambda: answer.__setitem__(0, question()))
        return answer[0]

    def _resolution(self, request: Request, how: How, config: Any, **rest: Any) -> Resolution:
        return Resolution(
            how=how, config=config, scenario=request.scenario, context=request.context, **rest
        )


def _foreignness(context: Context, found: FoundTree) -> tuple[bool, bool, bool, bool, float]:
    """What counts against a tree: another GPU first, then another method, toolchain or source, then its age."""
    ours, theirs = context, found.tree.context
    return (
        theirs.environment.device != ours.environment.device,
        theirs.problem.method != ours.problem.method,
        theirs.environment != ours.environment,
        theirs.kernel != ours.kernel,
        -found.tree.at.timestamp(),
    )


def _search(request: Request, record: Record, due: list[Config]) -> Search:
    budget = request.budget
    left = request.budgeted_count(len(due))
    if budget.strategy == "optuna" and _has_optuna():
        timed = [each for each in record.measurements if not each.skipped]
        return OptunaSearch(
            request.declared,
            timed,
            [each for each in due[:1] if each == describe(request.default)],
            left,
        )
    return Exhaustive(due[:left])


def _has_optuna() -> bool:
    found = importlib.util.find_spec("optuna") is not None
    if not found:
        warn_once(
            "optuna",
            "optuna is not installed, so the first configs are measured: pip install 'dejavu-cache[sweep]'",
        )
    return found


def _no_memory(request: Request) -> str:
    return (
        f"{request.context.kernel.name}{request.scenario}: the device has no memory left to measure any config; "
        "the launch takes a fallback, and a later one tries again"
    )


def _reasons(request: Request, record: Record) -> dict[str, str]:
    measured = record.by_config
    reasons = {}
    for config in request.declared:
        failure = measured[config].failure if config in measured else None
        reasons[str(config)] = f"{failure.kind}: {failure.reason}" if failure else "not measured"
    return reasons
