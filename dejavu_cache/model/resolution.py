"""How a launch came by its config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .merge import Difference
from .scenario import Context, Environment, Scenario

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
]
"""`exact`: recorded. `tuned`: benchmarked by this process. `nearest`: a neighbouring scenario's winner.
`tree`: a decision tree's choice. `family`: recorded on another GPU of the architecture. `toolchain`: recorded
with another Triton. `pinned`: chosen by a person. `agreed`: chosen by another rank of the job. `imported`: found by
another tool. `default`: none of these, or nothing to choose."""


@dataclass(frozen=True)
class Resolution:
    """A scenario's config, and how it was found.

    Attributes:
        how: see `How`.
        config: the `triton.Config` that a launch runs.
        scenario: the bucketed values and dtypes.
        context: kernel, environment and problem.
        store: the URL of the store that had the record, or of the tree's file, or the other tool's name, or None.
        distance: of a `nearest` scenario, in powers of two.
        differences: on a miss, field by field, what sets the nearest record apart, or the tree's records.
        missing: declared configs without a measurement.
        agreed: whether all ranks of the job run it, whatever is found later.
    """

    how: How
    config: Any
    scenario: Scenario
    context: Context
    store: str | None = None
    distance: float = 0.0
    differences: Sequence[Difference] = ()
    missing: int = 0
    agreed: bool = False

    @property
    def environment(self) -> Environment:
        """What the timings depend on besides the scenario."""
        return self.context.environment

    @property
    def final(self) -> bool:
        """Whether a later look cannot find better: a fallback is looked up again."""
        return self.agreed or self.how in ("exact", "tuned", "pinned")

    def __str__(self) -> str:
        lines = [
            f"{self.context.kernel.name}{self.scenario}",
            f"  config: {self.config}",
            f"  found:  {self.how}" + (f" in {self.store}" if self.store else ""),
        ]
        if self.missing:
            lines.append(f"  unmeasured configs: {self.missing}")
        lines += [
            f"  differs from the nearest record in {difference}" for difference in self.differences
        ]
        return "\n".join(lines)
