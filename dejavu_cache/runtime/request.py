"""One scenario that a launch needs a config for, and how much tuning it is worth."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..model.resolution import How, Resolution
from ..model.scenario import Config, Context, Scenario
from ..system.background_threads import is_from_signal_handler
from ..triton_internals.config_names import DeclaredConfigs, describe
from ..tuning.measurement_marks import MeasurementMark
from ..tuning.result_check import CheckOptions, ResultCheck
from ..tuning.tuner import CandidateLaunch

__all__ = ["Request", "TuningBudget"]


@dataclass(frozen=True)
class TuningBudget:
    """Which configs of a scenario are measured, and how many of them.

    Attributes:
        searches: whether Optuna's sampler chooses which configs are measured, if not all are.
        seconds: how long one tune may take; the next tune continues where it stopped. None: no
            limit.
        configs: the number of measured configs at which a scenario counts as tuned. None: all.
        race: whether configs close to the best are measured again, in turns.
    """

    searches: bool = False
    seconds: float | None = None
    configs: int | None = None
    race: bool = True


@dataclass(frozen=True)
class Request:
    """One scenario that a launch needs a config for; `rules` says what a record means to it.

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
    def name(self) -> str:
        """Return the kernel's name and the scenario, as messages have them."""
        return f"{self.context.kernel.name}{self.scenario}"

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

    def candidate_launch(self) -> CandidateLaunch:
        """Return the launch as a tuner measures it."""
        default = describe(self.default)
        return CandidateLaunch(self.autotuner, self.declared, default, self.args, self.kwargs)

    def result_check(self, options: CheckOptions | None, mark: MeasurementMark) -> ResultCheck:
        """Return what compares the results of this launch's configs with the default's.

        Args:
            options: declarations of the kernel's author; None: nothing is compared, since the
                author does not want it, or the default config cannot run.
            mark: says which config touches the device.
        """
        return ResultCheck(
            self.candidate_launch(),
            self.default,
            mark,
            options,
            is_wanted=self.check is not None,
            title=self.name,
        )

    def resolution(
        self, how: How, config: Any, store: str | None = None, not_compared: Sequence[str] = ()
    ) -> Resolution:
        """Return the resolution of this request to a `triton.Config`; see `Resolution`."""
        return Resolution(
            how,
            config,
            self.scenario,
            self.context,
            store,
            not_compared=not_compared,
            not_stored=self.not_stored,
        )
