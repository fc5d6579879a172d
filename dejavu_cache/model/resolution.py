"""The outcome of resolving a scenario: the config, its provenance, and what speaks for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from ..system.notices import counted
from .record import Measurement, Record
from .scenario import GENERATED_MODULE, Config, Context, Difference, Environment, Scenario, now

__all__ = ["How", "Resolution", "evidence_lines"]

How = Literal[
    "exact", "tuned", "toolchain", "nearest", "tree", "pinned", "agreed", "default", "off"
]
"""The provenance of a config.

`exact`: recorded. `tuned`: benchmarked by this process. `toolchain`: recorded with another Triton.
`nearest`: the winner of a neighbouring scenario. `tree`: a decision tree's choice. `pinned`: chosen
by a person. `agreed`: chosen by another rank of the job. `default`: none of these, or a kernel with
one config. `off`: Triton's own autotuner decides, and nothing is looked up or recorded."""


@dataclass(frozen=True)
class Resolution:
    """The config of a scenario, and its provenance.

    Attributes:
        how: the provenance.
        config: the `triton.Config` that a launch runs; None if Triton has yet to choose it.
        scenario: the bucketed values and dtypes.
        context: kernel, environment and problem.
        store: URL of the record's store or of the tree's file, or None.
        distance: of a `nearest` scenario, in powers of two.
        differences: the fields in which what stands in differs from what was asked for.
        not_compared: which results of the config, or of a faster one that does not run for want of
            a comparison, were not compared with the default's, and why.
        uncompared: why nothing of the launch can be compared, so that the default runs; or empty.
        agreed: whether all ranks of the job run this config, even if a later lookup finds another.
        only: whether pruning left the launch no other config.
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
    distance: float = 0.0
    differences: Sequence[Difference] = ()
    not_compared: Sequence[str] = ()
    uncompared: str = ""
    agreed: bool = False
    only: bool = False
    is_idle: bool = False
    not_stored: str | None = None
    recorded_in: Context | None = None
    recorded_for: Scenario | None = None
    notes: Sequence[str] = ()

    @property
    def environment(self) -> Environment:
        """Return the context's environment."""
        return self.context.environment

    @property
    def final(self) -> bool:
        """Return whether a later lookup cannot find better; fallbacks are looked up again."""
        if self.is_idle:
            return False
        return self.agreed or self.only or self.how in ("exact", "tuned", "pinned", "off")

    @property
    def wrong(self) -> list[str]:
        """Return the notes about declared configs whose results were found to be wrong."""
        return [note for note in self.notes if note.startswith("wrong results: ")]

    def __str__(self) -> str:
        """Describe the resolution in several lines, for `explain`."""
        config = "Triton chooses it at the first launch" if self.config is None else self.config
        distance = f" at distance {self.distance:g}" if self.distance else ""
        lines = [
            f"{self.context.kernel.name}{self.scenario}",
            f"  config: {config}",
            f"  found:  {self.how}{distance}" + (f" in {self.store}" if self.store else ""),
            *(f"  {note}" for note in self.notes),
        ]
        if self.how == "off":
            lines.append("  Triton's own autotuner decides; nothing is looked up or recorded")
        if self.uncompared:
            lines.append(f"  not tuned, since no results can be compared: {self.uncompared}")
        lines += [f"  not compared: {reason}" for reason in self.not_compared]
        if self.context.kernel.name.startswith(GENERATED_MODULE):
            lines.append("  its module's name is of this process alone: it is found by its code")
        if self.not_stored:
            lines.append(f"  not stored: {self.not_stored}")
        lines += [f"  differs in {difference}" for difference in self.differences]
        return "\n".join(lines)


def evidence_lines(
    record: Record, config: Config, declared: Collection[Config], default: Config | None = None
) -> list[str]:
    """Return what a record says for and against a config, one line per fact.

    Args:
        record: the record from which the config was taken.
        config: the config.
        declared: the configs that the kernel declares.
        default: the config of last resort, if it is known.
    """
    measured = {own: entry for own, entry in record.by_config.items() if own in declared}
    timed = {own: entry.median for own, entry in measured.items() if entry.median}
    choice, lines = record.by_config.get(config), []
    if choice is not None and choice.median:
        spread = "" if choice.p20 is None else f" ({choice.p20:.4g} to {choice.p80:.4g})"
        cases = f", the mean of {choice.case_count} cases" if choice.cases else ""
        lines.append(f"time: {choice.median:.4g} ms{spread}{cases}")
    if record.pin is not None and record.pinned == config:
        lines.append(_moment_line("pinned", record.pin.at, record.pin.by))
    elif choice is not None:
        lines.append(_moment_line("measured", choice.at, choice.by))
    if choice is not None and choice.median:
        others = [own for own in timed if own != config]
        if others:
            runner_up = min(others, key=timed.__getitem__)
            lines.append(f"runner-up: {runner_up}, {_cost(measured[runner_up], choice)}")
        if default in timed:
            lines.append(f"default: {default}, {_cost(measured[default], choice)}")
    failed = sum(entry.failure is not None for entry in measured.values())
    lines.append(f"compared: {counted(len(timed), 'config')} timed, {failed} failed")
    return lines


def _cost(measurement: Measurement, choice: Measurement) -> str:
    """Return a config's time as a multiple of the chosen one's, and how sure a race was."""
    cost = f"{(measurement.median or 0.0) / (choice.median or 1.0):.2f}x"
    if measurement is choice or not (measurement.confidence and choice.confidence):
        return cost
    return f"{cost} to within {max(measurement.confidence.error, choice.confidence.error):.1%}"


def _moment_line(verb: str, moment: datetime, author: str) -> str:
    seconds = max((now() - moment).total_seconds(), 0.0)
    age = f"{seconds:.0f} seconds"
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            age = f"{seconds / length:.0f} {unit}"
            break
    by = f", by {author}" if author else ""
    return f"{verb}: {age} ago, {moment:%Y-%m-%d %H:%M} UTC{by}"
