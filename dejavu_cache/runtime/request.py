"""What a launch asks, `Request`: a config for its scenario; and the answer, `Resolution`."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..model.record import Record
from ..model.scenario import GENERATED_MODULE, Config, Context, Difference, Scenario
from ..system.background_threads import let_signals_through
from ..system.notices import counted
from ..triton_internals.config_names import DeclaredConfigs, describe
from ..tuning.measurement_marks import MeasurementMark
from ..tuning.result_check import CheckOptions, ResultCheck
from ..tuning.tuner import CandidateLaunch

How = Literal["exact", "tuned", "pinned", "predicted", "default"]
"""The provenance of a config.

`exact`: recorded. `tuned`: benchmarked by this process. `pinned`: chosen by a person. `predicted`:
expected to be fast by other records. `default`: none of these, or a kernel with one config."""


@dataclass(frozen=True)
class Resolution:
    """The config of a scenario, and its provenance.

    Attributes:
        how: the provenance.
        config: the `triton.Config` that a launch runs; None if Triton has yet to choose it.
        scenario: the bucketed values and dtypes.
        context: kernel, environment and problem.
        store: URL of the record's store, or None.
        gain: the share of the default's time that a predicted config is expected to save.
        predicted_from: how many records that was predicted from.
        differences: the fields in which what stands in differs from what was asked for.
        not_compared: which results of the config, or of a faster one that does not run for want of
            a comparison, were not compared with the default's, and why.
        not_tuned: why nothing of the launch can be compared, so that the default runs, or None.
        agreed: whether all ranks of the job run this config, even if a later lookup finds another.
        by_triton: whether Triton's own autotuner decides, and nothing is looked up or recorded.
        has_no_choice: whether pruning left the launch no other config.
        is_idle: whether the launch has no work: then its config says nothing about others.
        not_stored: why the kernel's timings stay in this process, or None if they are stored.
        recorded_in: the context of the record that stands in, if it is another one.
        recorded_for: the scenario of the record that stands in, if it is another one.
        notes: what the record says of the config and the others, in lines; filled by `explain`.
    """

    how: How
    config: Any
    scenario: Scenario
    context: Context
    store: str | None = None
    gain: float = 0.0
    predicted_from: int = 0
    differences: Sequence[Difference] = ()
    not_compared: Sequence[str] = ()
    not_tuned: str | None = None
    agreed: bool = False
    by_triton: bool = False
    has_no_choice: bool = False
    is_idle: bool = False
    not_stored: str | None = None
    recorded_in: Context | None = None
    recorded_for: Scenario | None = None
    notes: Sequence[str] = ()

    @property
    def final(self) -> bool:
        """Return whether a later lookup cannot find better; fallbacks are looked up again."""
        if self.is_idle:
            return False
        is_fixed = self.agreed or self.has_no_choice or self.by_triton
        return is_fixed or self.how in ("exact", "tuned", "pinned")

    @property
    def wrong(self) -> list[str]:
        """Return the notes about declared configs whose results were found to be wrong."""
        return [note for note in self.notes if note.startswith("wrong results: ")]

    @property
    def provenance(self) -> str:
        """Say where the config is from, and of a predicted one, what it is expected to save."""
        said: str = self.how
        if self.predicted_from:
            sources = counted(self.predicted_from, "record")
            said += f" from {sources} to save {self.gain:.0%} of the default's time"
        return f"{said}, by agreement of the job's ranks" if self.agreed else said

    def __str__(self) -> str:
        """Describe the resolution in several lines, for `explain`."""
        config = "Triton chooses it at the first launch" if self.config is None else self.config
        source = f" in {self.store}" if self.store else ""
        lines = [
            f"{self.context.kernel.name}{self.scenario}",
            f"  config: {config}",
            f"  found:  {self.provenance}{source}",
            *(f"  {note}" for note in self.notes),
        ]
        if self.by_triton:
            lines.append("  Triton's own autotuner decides; nothing is looked up or recorded")
        if self.not_tuned:
            lines.append(f"  not tuned, since no results can be compared: {self.not_tuned}")
        lines += [f"  not compared: {reason}" for reason in self.not_compared]
        if self.context.kernel.name.startswith(GENERATED_MODULE):
            lines.append("  its module's name is of this process alone: it is found by its code")
        if self.not_stored:
            lines.append(f"  not stored: {self.not_stored}")
        lines += [f"  differs in {difference}" for difference in self.differences]
        return "\n".join(lines)


LOSS = 0.01
"""Share by which a config that a tune left out may be faster than its winner."""


@dataclass(frozen=True)
class TuningBudget:
    """Which configs of a scenario are measured, and how many of them.

    Attributes:
        seconds: how long one tune may take; the next tune continues where it stopped. None: no
            limit.
        configs: the number of measured configs at which a scenario counts as tuned. None: all.
        loss: the share by which a config may be faster that is left out by prediction. 0: none is.
    """

    seconds: float | None = None
    configs: int | None = None
    loss: float = LOSS


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
            return sizes is not None and min(map(int, sizes), default=1) <= 0
        except Exception as error:
            let_signals_through(error)
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
        if self.declared.keys().isdisjoint(configs):
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

        Without options nothing is compared, since the kernel's author does not want it, or the
        default config cannot run.
        """
        return ResultCheck(
            self.candidate_launch(),
            self.default,
            mark,
            options,
            is_wanted=self.check is not None,
            title=self.name,
        )

    def note_timings(self, record: Record) -> None:
        """Give the autotuner Triton's `configs_timings`, by what is recorded.

        They are what `do_bench` returned, or would have: quantiles, infinite ones for a failed
        config, or a number.
        """
        timings: dict[Any, Any] = {}
        measured = record.by_config
        for described, config in self.declared.items():
            if (entry := measured.get(described)) is None:
                continue
            if entry.median is None:
                timings[config] = [math.inf] * 3
            elif entry.p20 is None:
                timings[config] = entry.median
            else:
                timings[config] = [entry.median, entry.p20, entry.p80]
        self.autotuner.configs_timings = timings

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
