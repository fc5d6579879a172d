"""What was measured in one scenario: the one definition that files, wire and server share.

A `Context` (kernel, environment, problem) owns `Record`s, one per `Scenario`; a record owns one `Measurement` per
`Config`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr

from .buckets import FiniteFloat
from .scenario import (
    Config,
    Context,
    FrozenModel,
    JsonInteger,
    Milliseconds,
    Moment,
    Scenario,
    Text,
    ValueModel,
    canonical_json,
)

__all__ = [
    "FORMAT",
    "MOST_LAUNCHES",
    "Failure",
    "Measurement",
    "Pin",
    "Record",
    "RecordSet",
    "RecordedLaunch",
    "Winner",
]

FORMAT = 1
"""The format version that this code writes; it reads this one and every older one."""


class Failure(FrozenModel):
    """Why a config has no timing.

    `skipped` says nothing about the config: the device had no memory left for it, and it is tried again another
    time. `crash`: it took down the process that measured it, or its device's context.
    """

    kind: Literal[
        "out_of_resources", "compile_error", "ptxas_error", "invalid_timing", "crash", "skipped"
    ]
    reason: Annotated[str, Field(max_length=2000)]


class Measurement(FrozenModel):
    """One config's timing or failure, with its provenance."""

    config: Config
    median: Milliseconds | None = None
    p20: Milliseconds | None = None
    p80: Milliseconds | None = None
    failure: Failure | None = None
    at: Moment
    by: Annotated[str, Field(max_length=200)] = ""
    """User and host."""
    seconds: Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)] = 0.0
    """What it cost to take, compilation included."""

    def model_post_init(self, _: Any) -> None:
        if (self.median is None) == (self.failure is None):
            raise ValueError("a measurement has either a median or a failure")

    @property
    def skipped(self) -> bool:
        """Whether this is no more than a note that the config was not measured."""
        return self.failure is not None and self.failure.kind == "skipped"

    @property
    def _age(self) -> tuple[datetime, str]:
        return self.at, canonical_json(self)

    @property
    def _slowness(self) -> tuple[float, str]:
        return (float("inf") if self.median is None else self.median), canonical_json(self)


class Winner(FrozenModel):
    """The config that was selected when the scenario was tuned."""

    config: Config
    at: Moment


class Pin(FrozenModel):
    """A config that a person chose over the measurements; `config` is None once taken back."""

    config: Config | None = None
    at: Moment
    by: Annotated[str, Field(max_length=200)] = ""


_LongText = Annotated[str, Field(max_length=4000)]
_TextByParameter = Annotated[dict[Text, _LongText], Field(max_length=256)]
_ScalarByParameter = Annotated[
    dict[
        Text,
        StrictBool
        | JsonInteger
        | FiniteFloat
        | Annotated[StrictStr, Field(max_length=4000)]
        | None,
    ],
    Field(max_length=256),
]


class RecordedLaunch(ValueModel):
    """What Triton was asked to compile at a launch, but for what the config says: see `dejavu_cache.triton_internals.compilation`."""

    wheel: Text
    """The build of Triton that compiled it."""
    signature: _TextByParameter = Field(default_factory=dict)
    """Types by parameter."""
    constants: _ScalarByParameter = Field(default_factory=dict)
    """What is compiled in, by parameter, or by `parameter.index` inside a tuple."""
    attrs: _TextByParameter = Field(default_factory=dict)
    """What was found out about a value (divisible by 16, …), by parameter, as JSON."""
    options: _ScalarByParameter = Field(default_factory=dict)
    """Compiler options that are not the default."""
    bound: Config | None = None
    """The only config that it can be compiled with, where another would have changed more than its own values."""


MOST_LAUNCHES = 64
"""In a record; a kernel with more specialisations than these is one that specialises on what it should not."""


class Record(FrozenModel):
    """All that is known of one scenario in one context."""

    scenario: Scenario
    winner: Winner | None = None
    pin: Pin | None = None
    launches: tuple[RecordedLaunch, ...] | None = Field(default=None, max_length=MOST_LAUNCHES)
    """What to compile the winner with, ahead of time; None where nobody has noted it."""
    measurements: tuple[Measurement, ...] = Field(default=(), max_length=100_000)

    def model_post_init(self, _: Any) -> None:
        """Sorts the measurements by config, one each: records are compared and diffed as text."""
        by_config = {measurement.config: measurement for measurement in self.measurements}
        if len(by_config) != len(self.measurements):
            raise ValueError("two measurements of one config in one record")
        ordered = tuple(sorted(self.measurements, key=lambda measurement: measurement.config.text))
        object.__setattr__(self, "measurements", ordered)
        object.__setattr__(
            self,
            "launches",
            tuple(sorted(set(self.launches or ()), key=lambda launch: launch.text)) or None,
        )

    @property
    def pinned(self) -> Config | None:
        """The config a person chose, if one is chosen now."""
        return self.pin.config if self.pin else None

    @property
    def by_config(self) -> dict[Config, Measurement]:
        """The measurements by their config."""
        return {measurement.config: measurement for measurement in self.measurements}


class RecordSet(FrozenModel):
    """A context and its records: what a file holds and the wire carries."""

    format: StrictInt = FORMAT
    context: Context
    records: tuple[Record, ...] = Field(default=(), max_length=1_000_000)
