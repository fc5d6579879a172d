"""The outcome of resolving a scenario: the config and its provenance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .scenario import GENERATED_MODULE, Context, Difference, Environment, Scenario
from .selection import ChoiceEvidence

__all__ = ["How", "Resolution"]

How = Literal[
    "exact",
    "tuned",
    "nearest",
    "tree",
    "family",
    "toolchain",
    "pinned",
    "agreed",
    "imported",
    "default",
    "off",
]
"""The provenance of a config.

`exact`: recorded. `tuned`: benchmarked by this process. `nearest`: the winner of a neighbouring
scenario. `tree`: a decision tree's choice. `family`: recorded on another GPU of the architecture.
`toolchain`: recorded with another Triton. `pinned`: chosen by a person. `agreed`: chosen by another
rank of the job. `imported`: found by another tool. `default`: none of these, or a kernel with one
config. `off`: Triton's own autotuner decides, and nothing is looked up or recorded."""


@dataclass(frozen=True)
class Resolution:
    """The config of a scenario, and its provenance.

    Attributes:
        how: the provenance.
        config: the `triton.Config` that a launch runs; None if Triton has yet to choose it.
        scenario: the bucketed values and dtypes.
        context: kernel, environment and problem.
        store: URL of the record's store or of the tree's file, name of another tool, or None.
        distance: of a `nearest` scenario, in powers of two.
        differences: on a miss, the fields in which the nearest or the tree's records differ.
        missing: the number of declared configs without a measurement.
        unfinished: on a miss, whether the scenario has timings, but no winner.
        not_compared: which results of the config, or of a faster one that does not run for want of
            a comparison, were not compared with the default's, and why.
        wrong: the declared configs whose results were found to be wrong, with the evidence.
        agreed: whether all ranks of the job run this config, even if a later lookup finds another.
        only: whether pruning left the launch no other config.
        ignored_pin: the config that a person chose and the launch may not run, or None.
        not_stored: why the kernel's timings stay in this process, or None if they are stored.
        uncompared: why nothing of the launch can be compared, so that the default runs; or empty.
        is_idle: whether the launch has no work: then its config says nothing about others.
        recorded_in: the context of the record that stands in, if it is another one.
        recorded_for: the scenario of the record that stands in, if it is another one.
        nearest: on a miss, the distance of the nearest record of the context, however far; filled
            by `explain`.
        evidence: what the record says about the config and the others; filled by `explain`.
    """

    how: How
    config: Any
    scenario: Scenario
    context: Context
    store: str | None = None
    distance: float = 0.0
    differences: Sequence[Difference] = ()
    missing: int = 0
    unfinished: bool = False
    not_compared: Sequence[str] = ()
    wrong: Sequence[str] = ()
    agreed: bool = False
    only: bool = False
    not_stored: str | None = None
    ignored_pin: str | None = None
    uncompared: str = ""
    is_idle: bool = False
    recorded_in: Context | None = None
    recorded_for: Scenario | None = None
    nearest: float | None = None
    evidence: ChoiceEvidence | None = None

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

    def __str__(self) -> str:
        """Describe the resolution in several lines, for `explain`."""
        config = "Triton chooses it at the first launch" if self.config is None else self.config
        distance = f" at distance {self.distance:g}" if self.distance else ""
        lines = [
            f"{self.context.kernel.name}{self.scenario}",
            f"  config: {config}",
            f"  found:  {self.how}{distance}" + (f" in {self.store}" if self.store else ""),
        ]
        if self.how == "off":
            lines.append("  Triton's own autotuner decides; nothing is looked up or recorded")
        if self.evidence is not None:
            lines += [f"  {line}" for line in self.evidence.lines()]
        if self.nearest is not None:
            lines.append(f"  the nearest record is at distance {self.nearest:g}")
        if self.unfinished:
            lines.append("  no winner: configs were timed, and their results not compared")
        if self.uncompared:
            lines.append(f"  not tuned, since no results can be compared: {self.uncompared}")
        lines += [f"  not compared: {reason}" for reason in self.not_compared]
        if self.missing:
            lines.append(f"  unmeasured configs: {self.missing}")
        lines += [f"  wrong results: {evidence}" for evidence in self.wrong]
        if self.ignored_pin is not None:
            lines.append(f"  ignored pin, which the kernel does not declare: {self.ignored_pin}")
        if self.context.kernel.name.startswith(GENERATED_MODULE):
            lines.append("  its module's name is of this process alone: it is found by its code")
        if self.not_stored:
            lines.append(f"  not stored: {self.not_stored}")
        lines += [
            f"  differs from the nearest record in {difference}" for difference in self.differences
        ]
        return "\n".join(lines)
