"""What is known about a kernel's configs: the one definition that files, wire and server share.

A `Context` (kernel, environment, problem) owns `Record`s, one per `Scenario`; a record owns one
`Measurement` per `Config`. Everything is frozen, ordered and compared by value. Merging is a union:
nothing that was measured is lost, and the order of merges does not matter.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, Union

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from .buckets import Bucket
from .errors import MergeConflictError

__all__ = [
    "FORMAT",
    "Config",
    "Context",
    "Device",
    "Difference",
    "Environment",
    "Failure",
    "Kernel",
    "Launch",
    "Measurement",
    "OnConflict",
    "Pin",
    "Problem",
    "Record",
    "RecordSet",
    "Scalar",
    "Scenario",
    "Winner",
    "canonical_json",
    "differences",
    "merge_into",
    "merge_launches",
    "merge_records",
    "now",
]

FORMAT = 1
"""The format version that this code writes; it reads this one and every older one."""

OnConflict = Literal["newest", "fastest", "fail"]

_SAFE_INT = Annotated[StrictInt, Field(ge=-(2**63), lt=2**64)]
_FINITE = Annotated[StrictFloat, Field(allow_inf_nan=False)]
Scalar = Union[StrictBool, _SAFE_INT, _FINITE, Annotated[StrictStr, Field(max_length=500)], None]  # noqa: UP007
"""A value of a key argument or a meta-parameter, as JSON has it."""

Text = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{8,64}$")]
Milliseconds = Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)]
_Count = Annotated[StrictInt, Field(ge=0)]


_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE)


def _utc(given: Any, parse: ValidatorFunctionWrapHandler) -> datetime:
    # Without its offset, a moment would mean another one wherever it is read.
    if not isinstance(given, str | datetime) or (isinstance(given, str) and not _RFC_3339.fullmatch(given)):
        raise ValueError("a moment is written as in RFC 3339, with its offset: 2026-01-31T12:00:00Z")
    moment: datetime = parse(given)
    if moment.tzinfo is None:
        raise ValueError("a moment needs its time zone")
    try:
        return moment.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError("this moment lies outside the calendar in UTC") from None


Moment = Annotated[datetime, WrapValidator(_utc)]


def _sorted(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(mapping.items()))


Values = Annotated[dict[Text, Scalar], AfterValidator(_sorted), Field(max_length=256)]


def now() -> datetime:
    """The present moment in UTC, to the microsecond."""
    return datetime.now(timezone.utc)


def canonical_json(value: Any) -> str:
    """JSON on one line with sorted keys: equal values give equal text."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_none=True)
    return _ENCODER.encode(value)


_ENCODER = json.JSONEncoder(sort_keys=True, allow_nan=False, ensure_ascii=False)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Valued(_Model):
    """A model that can be a dictionary's key though it holds dictionaries."""

    @cached_property
    def text(self) -> str:
        """The canonical JSON: its identity."""
        return canonical_json(self)

    @cached_property
    def digest(self) -> str:
        """The first 24 hexadecimal digits of the text's SHA-256."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:24]

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.text == other.text


class Kernel(_Model):
    """A `triton.jit` function."""

    name: Text
    """Module and qualified name."""
    source: Digest
    """The source hash: see `dejavu_cache.source`."""


class Device(_Model):
    """A GPU model: two devices with equal fields share timings, no others do."""

    name: Text
    arch: Text
    """`sm_90`, `gfx942`, …; the machine's for the interpreter."""
    units: _Count
    """Streaming multiprocessors or compute units."""
    memory_gib: _Count


class Environment(_Model):
    """What a timing depends on besides the scenario."""

    device: Device
    triton: Text
    codegen: Text
    """The code generator behind Triton: ptxas or LLVM and its version."""
    variables: Annotated[dict[Text, str], AfterValidator(_sorted)] = Field(default_factory=dict, max_length=64)
    """The environment variables that change what Triton generates, where set."""


class Problem(_Model):
    """What is tuned, as the decorator declares it."""

    keys: tuple[Text, ...] = Field(max_length=256)
    buckets: Annotated[dict[Text, Bucket], AfterValidator(_sorted)] = Field(default_factory=dict, max_length=256)
    """Buckets by key argument; `Exact` is the absence of one."""
    method: Text
    """The benchmark method: `events-cold`, `cudagraph-warm`, `wall`, or `custom:` and a function's name."""


class Context(_Valued):
    """What all the records of one file have in common."""

    kernel: Kernel
    environment: Environment
    problem: Problem


class Scenario(_Valued):
    """The bucketed values of the key arguments and the dtypes of the tensors."""

    args: Values = Field(default_factory=dict)
    dtypes: Annotated[dict[Text, Text], AfterValidator(_sorted)] = Field(default_factory=dict, max_length=256)

    @cached_property
    def text(self) -> str:
        """The canonical JSON: its identity."""
        return _ENCODER.encode({"args": self.args, "dtypes": self.dtypes})  # what a dump would give, sooner

    def __str__(self) -> str:
        args = ", ".join(f"{name}={value}" for name, value in self.args.items())
        dtypes = ", ".join(f"{name}: {value}" for name, value in self.dtypes.items())
        return f"({args}{'; ' if args and dtypes else ''}{dtypes})"


class Config(_Valued):
    """One `triton.Config` without its hook: meta-parameters and compiler options."""

    params: Values = Field(default_factory=dict)
    options: Values = Field(default_factory=dict)
    """`num_warps`, `num_stages`, `num_ctas`, … , those that are set."""

    @cached_property
    def text(self) -> str:
        """The canonical JSON: its identity."""
        return _ENCODER.encode({"options": self.options, "params": self.params})

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in {**self.params, **self.options}.items())


class Failure(_Model):
    """Why a config has no timing.

    `skipped` says nothing about the config: the device had no memory left for it, and it is tried again another
    time. `crash`: it took down the process that measured it, or its device's context.
    """

    kind: Literal["out_of_resources", "compile_error", "ptxas_error", "invalid_timing", "crash", "skipped"]
    reason: Annotated[str, Field(max_length=2000)]


class Measurement(_Model):
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


class Winner(_Model):
    """The config that was selected when the scenario was tuned."""

    config: Config
    at: Moment


class Pin(_Model):
    """A config that a person chose over the measurements; `config` is None once taken back."""

    config: Config | None = None
    at: Moment
    by: Annotated[str, Field(max_length=200)] = ""


_Told = Annotated[str, Field(max_length=4000)]
_ToldByParameter = Annotated[dict[Text, _Told], Field(max_length=256)]
_ToldValues = Annotated[
    dict[Text, Union[StrictBool, _SAFE_INT, _FINITE, Annotated[StrictStr, Field(max_length=4000)], None]],  # noqa: UP007
    Field(max_length=256),
]


class Launch(_Valued):
    """What Triton was asked to compile at a launch, but for what the config says: see `dejavu_cache.launches`."""

    wheel: Text
    """The build of Triton that compiled it."""
    signature: _ToldByParameter = Field(default_factory=dict)
    """Types by parameter."""
    constants: _ToldValues = Field(default_factory=dict)
    """What is compiled in, by parameter, or by `parameter.index` inside a tuple."""
    attrs: _ToldByParameter = Field(default_factory=dict)
    """What was found out about a value (divisible by 16, …), by parameter, as JSON."""
    options: _ToldValues = Field(default_factory=dict)
    """Compiler options that are not the default."""
    bound: Config | None = None
    """The only config that it can be compiled with, where another would have changed more than its own values."""


MOST_LAUNCHES = 64
"""In a record; a kernel with more specialisations than these is one that specialises on what it should not."""


class Record(_Model):
    """All that is known of one scenario in one context."""

    scenario: Scenario
    winner: Winner | None = None
    pin: Pin | None = None
    launches: tuple[Launch, ...] | None = Field(default=None, max_length=MOST_LAUNCHES)
    """What to compile the winner with, ahead of time; None where nobody has noted it."""
    measurements: tuple[Measurement, ...] = Field(default=(), max_length=100_000)

    def model_post_init(self, _: Any) -> None:
        """Sorts the measurements by config, one each: records are compared and diffed as text."""
        by_config = {measurement.config: measurement for measurement in self.measurements}
        if len(by_config) != len(self.measurements):
            raise ValueError("two measurements of one config in one record")
        ordered = tuple(sorted(self.measurements, key=lambda measurement: measurement.config.text))
        object.__setattr__(self, "measurements", ordered)
        object.__setattr__(self, "launches", tuple(sorted(set(self.launches or ()), key=_text)) or None)

    @property
    def pinned(self) -> Config | None:
        """The config a person chose, if one is chosen now."""
        return self.pin.config if self.pin else None

    @property
    def by_config(self) -> dict[Config, Measurement]:
        """The measurements by their config."""
        return {measurement.config: measurement for measurement in self.measurements}


class RecordSet(_Model):
    """A context and its records: what a file holds and the wire carries."""

    format: StrictInt = FORMAT
    context: Context
    records: tuple[Record, ...] = Field(default=(), max_length=1_000_000)


def merge_records(one: Record, two: Record, on_conflict: OnConflict = "newest") -> Record:
    """The union of two records of one scenario.

    The order does not matter and a repeated merge changes nothing. Where both measured one config,
    `on_conflict` decides; the later winner and the later pin stand.

    Raises:
        MergeConflictError: `on_conflict="fail"`, and two timings of one config differ.
    """
    if one.scenario != two.scenario:
        raise ValueError(f"these are different scenarios: {one.scenario} and {two.scenario}")
    if one == two:
        return one
    measured = one.by_config
    for config, theirs in two.by_config.items():
        ours = measured.get(config)
        measured[config] = theirs if ours is None else _settle(ours, theirs, on_conflict)
    return Record(
        scenario=one.scenario,
        winner=_later(one.winner, two.winner),
        pin=_later(one.pin, two.pin),
        launches=merge_launches(one, two),
        measurements=tuple(measured.values()),
    )


def merge_launches(*records: Record | None) -> tuple[Launch, ...] | None:
    """The launches of all, up to as many as a record holds: always the same ones, whatever the order."""
    union = {launch for record in records if record for launch in record.launches or ()}
    return tuple(sorted(union, key=_text)[:MOST_LAUNCHES]) or None


def _text(launch: Launch) -> str:
    return launch.text


def _settle(ours: Measurement, theirs: Measurement, on_conflict: OnConflict) -> Measurement:
    if ours == theirs:
        return ours
    if ours.skipped != theirs.skipped:
        return theirs if ours.skipped else ours
    if on_conflict == "fail":
        raise MergeConflictError(
            f"two measurements of ({ours.config}): {ours.median} ms at {ours.at} and {theirs.median} ms at {theirs.at}"
        )
    if on_conflict == "fastest":
        return min(ours, theirs, key=lambda measurement: measurement._slowness)
    return max(ours, theirs, key=lambda measurement: measurement._age)


def _later(one: Any, two: Any) -> Any:
    held = [each for each in (one, two) if each is not None]
    return max(held, key=lambda each: (each.at, canonical_json(each)), default=None)


class Difference(NamedTuple):
    """One field in which what was wanted and what was found are not equal."""

    field: str
    wanted: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.field}: {self.found!r} recorded, {self.wanted!r} wanted"


def differences(wanted: Mapping[str, Any], found: Mapping[str, Any], prefix: str = "") -> list[Difference]:
    """The leaves in which two nested mappings differ, in order."""
    result: list[Difference] = []
    for name in dict.fromkeys([*wanted, *found]):
        one, two = wanted.get(name), found.get(name)
        if isinstance(one, Mapping) and isinstance(two, Mapping):
            result += differences(one, two, f"{prefix}{name}.")
        elif one != two or type(one) is not type(two):
            result.append(Difference(prefix + name, one, two))
    return result


def merge_into(
    known: Mapping[Scenario, Record], records: Iterable[Record], on_conflict: OnConflict = "newest"
) -> dict[Scenario, Record]:
    """What is known with `records` merged in, as a new dictionary."""
    merged = dict(known)
    for record in records:
        before = merged.get(record.scenario)
        merged[record.scenario] = record if before is None else merge_records(before, record, on_conflict)
    return merged
