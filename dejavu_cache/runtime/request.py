"""One scenario that a launch needs a config for, and how much tuning it is worth.

Measurements of this process, which it believes more than what others have recorded.

Leave configs out of a launch during which processes have died or hung.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..model.record import Measurement, Record
from ..model.resolution import How, Resolution
from ..model.scenario import Config, Context, Difference, Scenario
from ..model.selection import is_credible, shortest_timing
from ..system.background_threads import is_from_signal_handler
from ..system.notices import warn_once, whoami
from ..triton_internals.config_names import DeclaredConfigs, describe
from ..tuning.measurement_marks import Suspect
from ..tuning.result_check import CheckOptions
from ..tuning.search import Strategy
from ..tuning.tuner import CandidateLaunch

__all__ = [
    "MOST_SCENARIOS",
    "OwnTrials",
    "Request",
    "TuningBudget",
    "leave_out_suspects",
]


@dataclass(frozen=True)
class TuningBudget:
    """Which configs of a scenario are measured, and how many of them.

    Attributes:
        strategy: which configs are measured: all, or those that Optuna's sampler proposes.
        seconds: how long one tune may take; the next tune continues where it stopped. None: no
            limit.
        configs: the number of measured configs at which a scenario counts as tuned. None: all.
        race: whether configs close to the best are measured again, in turns.
    """

    strategy: Strategy = "exhaustive"
    seconds: float | None = None
    configs: int | None = None
    race: bool = True


@dataclass(frozen=True)
class Request:
    """One scenario that a launch needs a config for.

    Attributes:
        autotuner: a copy of the launching autotuner that only this request uses, with `nargs` set.
        context: the kernel, the environment and the problem.
        scenario: the bucketed key values and the tensors' dtypes.
        declared: the configs that may run here, after pruning.
        default: the config of last resort.
        exact: key arguments for whose value no other value may stand in.
        args: the launch's positional arguments.
        kwargs: the launch's keyword arguments, `grid` and `warmup` included.
        budget: how much tuning the scenario gets.
        check: how results are compared before a config may win; None where they are not.
        prunes: whether `declared` may lack configs that the kernel declares.
        not_stored: why the kernel's timings stay in this process, or None if they are stored.
    """

    autotuner: Any
    context: Context
    scenario: Scenario
    declared: DeclaredConfigs
    default: Any
    exact: frozenset[str]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    budget: TuningBudget = TuningBudget()
    check: CheckOptions | None = None
    prunes: bool = False
    not_stored: str | None = None

    @property
    def has_no_choice(self) -> bool:
        """Return whether pruning left one config, which then needs no benchmark."""
        return self.prunes and len(self.declared) == 1

    @property
    def has_empty_grid(self) -> bool:
        """Return whether the launch of the default config has no programs, so that it does nothing.

        A grid that cannot be evaluated fails at the launch.
        """
        grid = self.kwargs.get("grid")
        named = {**self.autotuner.nargs, **self.kwargs, **self.default.all_kwargs()}
        named.pop("grid", None)
        try:
            sizes = grid(named) if callable(grid) else grid
            return sizes is not None and any(int(size) <= 0 for size in sizes)
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            return False

    def refuse_conflicts(self) -> None:
        """Check that the launch sets nothing that the configs set.

        Raises:
            ValueError: it does; Triton says the same at a benchmark, which a record makes needless.
        """
        if self.has_no_choice:
            return
        conflicts = self.kwargs.keys() & self.default.kwargs.keys()
        if conflicts:
            raise ValueError(
                f"Conflicting meta-parameters: {', '.join(conflicts)}."
                " Make sure that you don't re-define auto-tuned symbols."
            )

    def without(self, configs: Collection[Config]) -> Request:
        """Return the request without some of its configs.

        If the default is among them, the first one left is the default; none may be left.
        """
        if not any(config in self.declared for config in configs):
            return self
        remaining = [self.declared[config] for config in self.declared if config not in configs]
        default = self.default
        if remaining and describe(default) in configs:
            default = remaining[0]
        declared = DeclaredConfigs(self.context.kernel.name, remaining)
        return replace(self, declared=declared, default=default)

    def candidate_launch(self, default: Config | None = None) -> CandidateLaunch:
        """Return the launch as a tuner measures it.

        Args:
            default: the config that takes part in every race; None: the launch's own.
        """
        if default is None:
            default = describe(self.default)
        return CandidateLaunch(self.autotuner, self.declared, default, self.args, self.kwargs)

    def unmeasured_configs(self, record: Record | None) -> list[Config]:
        """Return the declared configs that have neither a timing nor a failure of their own.

        Another machine's timing that no launch can have is none.
        """
        measured = record.by_config if record else {}
        return [
            config
            for config in self.declared
            if config not in measured or self._is_void(measured[config])
        ]

    def disputable_configs(self, record: Record) -> list[Config]:
        """Return the failed configs that may run by now, or on this machine, the default first.

        What may end the process or compute wrong results is not disputed, except of the default,
        which runs in any case.
        """
        measured, default = record.by_config, describe(self.default)
        disputable = [
            config
            for config in self.declared
            if config in measured
            and (failure := measured[config].failure) is not None
            and (config == default or failure.kind not in ("crash", "wrong"))
        ]
        return sorted(disputable, key=lambda config: config != default)

    @property
    def shortest_timing(self) -> float:
        """Return the least believable timing of the benchmark method, in milliseconds."""
        return shortest_timing(self.context.problem.method)

    def _is_void(self, measurement: Measurement) -> bool:
        if measurement.failure is not None or measurement.by == whoami():
            return measurement.skipped
        return not is_credible(measurement, self.shortest_timing)

    def due_configs(self, record: Record | None) -> list[Config]:
        """Return the configs left to measure, the default first; none once the budget is met."""
        unmeasured = self.unmeasured_configs(record)
        if self._remaining_configs(len(unmeasured)) <= 0:
            return []
        return sorted(unmeasured, key=lambda config: config != describe(self.default))

    def budgeted_count(self, due: int) -> int:
        """Return how many of `due` unmeasured configs the budget still allows."""
        return max(min(due, self._remaining_configs(due)), 0)

    def has_work(self, record: Record) -> bool:
        """Return whether a tune is unfinished: configs to measure, or the race and its winner."""
        return record.winner is None or bool(self.due_configs(record))

    def resolution(
        self,
        how: How,
        config: Any,
        *,
        store: str | None = None,
        missing: int = 0,
        differences: Sequence[Difference] = (),
        not_compared: Sequence[str] = (),
        wrong: Sequence[str] = (),
        only: bool = False,
        ignored_pin: str | None = None,
        uncompared: str = "",
        is_idle: bool = False,
    ) -> Resolution:
        """Return the resolution of this request to a `triton.Config`; see `Resolution`."""
        return Resolution(
            how=how,
            config=config,
            scenario=self.scenario,
            context=self.context,
            store=store,
            missing=missing,
            differences=differences,
            not_compared=not_compared,
            wrong=wrong,
            only=only,
            not_stored=self.not_stored,
            ignored_pin=ignored_pin,
            uncompared=uncompared,
            is_idle=is_idle,
        )

    def _remaining_configs(self, unmeasured: int) -> int:
        if self.budget.configs is None:
            return unmeasured
        return self.budget.configs - (len(self.declared) - unmeasured)


MOST_SCENARIOS = 4096


class OwnTrials:
    """The measurements that one autotuner of this process has made.

    A server keeps the first measurement of a config, so it may go on saying what this process knows
    to be false.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self._scenarios: dict[tuple[Context, Scenario], dict[Config, Measurement]] = {}

    def add(
        self, context: Context, scenario: Scenario, measurements: Iterable[Measurement]
    ) -> None:
        """Remember measurements; one that lacked memory says nothing."""
        key = context, scenario
        if key not in self._scenarios and len(self._scenarios) >= MOST_SCENARIOS:
            self._scenarios.clear()
        trials = self._scenarios.setdefault(key, {})
        trials.update(
            {
                measurement.config: measurement
                for measurement in measurements
                if not measurement.skipped
            }
        )

    def of(self, context: Context, scenario: Scenario) -> dict[Config, Measurement]:
        """Return this process's measurements of a scenario, by config."""
        return self._scenarios.get((context, scenario), {})

    def forget(self, context: Context, scenario: Scenario) -> None:
        """Forget the measurements of a scenario, so that its configs are tried again."""
        self._scenarios.pop((context, scenario), None)

    def correct(self, context: Context, record: Record) -> Record:
        """Return a record in which other machines' measurements give way to this process's."""
        measurements = record.by_config
        corrections = {
            config: trial
            for config, trial in self.of(context, record.scenario).items()
            if config not in measurements or measurements[config].by != trial.by
        }
        if not corrections:
            return record
        merged = tuple({**measurements, **corrections}.values())
        return record.model_copy(update={"measurements": merged})


def leave_out_suspects(
    request: Request, record: Record | None, suspects: Iterable[Suspect]
) -> Request:
    """Return a request without the configs that may end or block this process.

    A config that a person pinned stays. Nothing is said of those whose failure is recorded.

    Args:
        request: the launch's request.
        record: the record of its scenario, if there is one.
        suspects: configs that processes were measuring when they died or hung.
    """
    pinned = record.pinned if record else None
    failed = set(_failed_configs(record)) if record else set()
    reasons = {
        suspect.config: suspect.reason
        for suspect in suspects
        if suspect.config in request.declared and suspect.config != pinned
    }
    if not reasons:
        return request
    name = request.context.kernel.name
    for config, reason in reasons.items():
        if config in failed:
            continue
        warn_once(
            f"suspect {name}{request.scenario} {config}",
            f"{name}{request.scenario}: ({config}) is not run for a day: {reason}; to clear or "
            "convict it, measure it with `dejavu-cache sweep`, where a crash costs only a worker",
        )
    return request.without(reasons)


def _failed_configs(record: Record) -> Iterator[Config]:
    for measurement in record.measurements:
        if measurement.failure is not None and not measurement.skipped:
            yield measurement.config
