"""Records of measurements: the one definition that files, wire and server share.

A `Context` (kernel, environment, problem) owns one `Record` per `Scenario`; a record owns one
`Measurement` per `Config`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Annotated, Literal, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    WrapValidator,
)

from .buckets import FiniteFloat
from .scenario import (
    Config,
    Context,
    Digest,
    FrozenModel,
    JsonInteger,
    Milliseconds,
    Moment,
    Scenario,
    Text,
    ValueModel,
    canonical_json,
    moment_after,
    share_config,
    sort_by_name,
)

T = TypeVar("T")

_CONFIG_TEXT, _TEXT = attrgetter("config.text"), attrgetter("text")

FORMAT = 2
"""The format version that this code writes; it reads this one and every older one."""


class Failure(FrozenModel):
    """The reason why a config has no timing.

    `skipped` is not the config's fault: the device had no memory left, and the config is measured
    another time. `crash`: the config killed the process that measured it, or its device's context.
    `wrong`: its results differ from the default config's.
    """

    kind: Literal[
        "out_of_resources",
        "compile_error",
        "ptxas_error",
        "invalid_timing",
        "crash",
        "skipped",
        "wrong",
    ]
    reason: Annotated[str, Field(max_length=2000)]


class Confidence(FrozenModel):
    """The certainty with which a race compared a config with the fastest one.

    For the fastest config itself, with the next one.
    """

    error: Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)]
    """Half of the interval that the ratio of the two times lies in, as a share of the ratio."""
    rounds: Annotated[StrictInt, Field(ge=1)]
    """Rounds in which the two ran one after the other."""


class Resources(FrozenModel):
    """What a config's launch takes of a GPU, as the compiler and the grid say."""

    programs: Annotated[StrictInt, Field(ge=0, lt=2**63)]
    """Programs of the grid."""
    registers: Annotated[StrictInt, Field(ge=0, lt=2**31)]
    """Registers of a thread."""
    spills: Annotated[StrictInt, Field(ge=0, lt=2**31)]
    """Registers that are kept in memory instead."""
    shared: Annotated[StrictInt, Field(ge=0, lt=2**31)]
    """Bytes of shared memory of a program."""


class Measurement(FrozenModel):
    """One config's timing or failure, with its provenance."""

    config: Annotated[Config, WrapValidator(share_config)]
    median: Milliseconds | None = None
    p20: Milliseconds | None = None
    p80: Milliseconds | None = None
    failure: Failure | None = None
    at: Moment
    by: Annotated[str, Field(max_length=200)] = ""
    """User and host."""
    seconds: Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)] = 0.0
    """What the measurement added to the time of its tune, waiting for compilers included."""
    cases: (
        Annotated[
            dict[Text, Milliseconds],
            AfterValidator(sort_by_name),
            Field(min_length=1, max_length=256),
        ]
        | None
    ) = None
    """Medians by case where a sweep measured several cases of the scenario.

    `median` is then the score over all of them as `model.selection` defines it, in milliseconds.
    A failure has the cases that the config ran before it failed.
    """
    confidence: Confidence | None = None
    """Certainty of the timing beside the fastest config's; None where no race compared the two."""
    resources: Resources | None = None
    """What the launch took of the GPU; None where nobody asked, as under the interpreter."""

    def model_post_init(self, _: object) -> None:
        """Check that there is either a timing or a failure."""
        if (self.median is None) == (self.failure is None):
            raise ValueError("a measurement has either a median or a failure")

    @property
    def case_count(self) -> int:
        """Return the number of named cases over which the config was measured."""
        return len(self.cases or ())

    @property
    def skipped(self) -> bool:
        """Return whether the config was left unmeasured."""
        return self.failure is not None and self.failure.kind == "skipped"

    @property
    def is_wrong(self) -> bool:
        """Return whether the config's results differ from the default config's."""
        return self.failure is not None and self.failure.kind == "wrong"


class OutputVerdict(FrozenModel):
    """What comparing one output of a config with the default config's has shown.

    `not_compared` has the reason, such as a lack of memory, and `wrong` the evidence.
    """

    outcome: Literal["equal", "not_compared", "wrong"]
    reason: Annotated[str, Field(max_length=2000)] = ""


ALL_OUTPUTS = "all outputs"
"""Name under which a verdict stands that is the same for every output."""

NO_MEMORY = "no memory"
"""Memory lacked for a copy: another process, or a later launch, may compare."""

NO_WORK = "no work"
"""The launch wrote nothing: another one may."""

NO_DEFAULT = "no default"
"""The default config, with which results are compared, cannot run."""

SWITCHED_OFF = "switched off"
"""The kernel's author, or the user, wants nothing compared."""

BEHIND_POINTERS = "behind pointers"
"""The kernel writes memory that is none of its arguments."""

NOT_COPYABLE = "cannot be copied"
"""A tensor's class or layout allows no copy."""

NOT_REPEATABLE = "not repeatable"
"""The default config does not repeat its own results."""

HELD_BEFORE = "held before"
"""An output held its results before the launch, so nothing shows whether they are written."""

Results = Mapping[str, OutputVerdict]
"""Verdicts on one config, by output."""

_RANKS = ("equal", "not_compared", "wrong")


def are_compared(results: Results | None) -> bool:
    """Return whether a comparison lets other processes take a config on trust.

    At least one output has to be equal. One that was not compared excuses itself alone, unless the
    reason is a lack of memory, which says nothing of the config.
    """
    is_equal = False
    for verdict in (results or {}).values():
        lacks_memory = verdict.outcome == "not_compared" and verdict.reason.startswith(NO_MEMORY)
        if verdict.outcome == "wrong" or lacks_memory:
            return False
        is_equal = is_equal or verdict.outcome == "equal"
    return is_equal


def has_reason(results: Results | None, *reasons: str) -> bool:
    """Return whether some output was not compared for one of the reasons that are named."""
    return any(
        verdict.outcome == "not_compared" and verdict.reason.startswith(reasons)
        for verdict in (results or {}).values()
    )


def sum_up(results: Results) -> OutputVerdict:
    """Return the verdict on a config: wrong if an output is, equal if another one was compared."""
    wrong, is_equal = [], False
    for name, verdict in results.items():
        is_equal = is_equal or verdict.outcome == "equal"
        if verdict.outcome == "wrong":
            wrong.append(f"{name} {verdict.reason}")
    if wrong:
        return OutputVerdict(outcome="wrong", reason="; ".join(wrong)[:2000])
    if is_equal:
        return OutputVerdict(outcome="equal")
    reason = "; ".join(reasons_not_compared(results))
    return OutputVerdict(outcome="not_compared", reason=reason[:2000])


def reasons_not_compared(results: Results | None) -> list[str]:
    """Return which outputs were not compared, and why, in words."""
    if not results:
        return [f"{ALL_OUTPUTS}: no comparison is recorded"]
    return [
        f"{output}: {verdict.reason or 'no reason is recorded'}"
        for output, verdict in results.items()
        if verdict.outcome == "not_compared"
    ]


def join_results(*comparisons: Results) -> dict[str, OutputVerdict]:
    """Return the worst verdict of each output over the comparisons of several launches."""
    joined: dict[str, OutputVerdict] = {}
    for output, verdict in (item for results in comparisons for item in results.items()):
        joined[output] = max(
            joined.get(output, verdict), verdict, key=lambda entry: _RANKS.index(entry.outcome)
        )
    return joined


Share = Annotated[StrictFloat, Field(gt=0, lt=1)]

MOST_OMISSIONS = 16
"""Largest number of lists of configs of which a winner says what was left out."""


class Winner(FrozenModel):
    """The config that was selected when the scenario was tuned."""

    config: Config
    at: Moment
    adopted_at: Moment | None = None
    """When the record was taken over from equal code under another key.

    Only the winner's code was compared then: earlier measurements of others stand for nothing once
    another config wins.
    """
    results: (
        Annotated[dict[Text, OutputVerdict], AfterValidator(sort_by_name), Field(max_length=4096)]
        | None
    ) = None
    """Verdicts by output; None if nobody said, which counts as not compared."""
    omissions: Annotated[dict[Digest, Share], Field(max_length=MOST_OMISSIONS)] = Field(
        default_factory=dict
    )
    """By the digest of all configs that a launch declared: the share by which one that its tune has
    left out, by what records and measurements said, may still be faster than the winner."""

    @property
    def is_compared(self) -> bool:
        """Return whether the config's results were compared, and none was found wrong."""
        return are_compared(self.results)


class Pin(FrozenModel):
    """A config that a person chose over the measurements; `config` is None once taken back."""

    config: Config | None = None
    at: Moment
    by: Annotated[str, Field(max_length=200)] = ""

    @classmethod
    def after(
        cls, earlier: Pin | None, config: Config | None, by: str, present: Moment | None = None
    ) -> Pin:
        """Return a pin that every merge prefers to an earlier one, whatever clock dated that.

        `present` is the present moment by another clock than this machine's.
        """
        return cls(config=config, at=moment_after(earlier.at if earlier else None, present), by=by)


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
    """The arguments of a Triton compilation at a launch, without those that the config determines.

    `dejavu_cache.triton_internals.compilation` makes them, and compiles from them.
    """

    wheel: Text
    """The build of Triton that compiled it."""
    signature: _TextByParameter = Field(default_factory=dict)
    """Types by parameter."""
    constants: _ScalarByParameter = Field(default_factory=dict)
    """Compile-time constants by parameter, or by `parameter.index` inside a tuple."""
    attrs: _TextByParameter = Field(default_factory=dict)
    """Properties that Triton specialises on (divisible by 16, …), by parameter, as JSON."""
    options: _ScalarByParameter = Field(default_factory=dict)
    """Compiler options that are not the default."""
    bound: Config | None = None
    """The only config that it is valid for, where a config changes more than its own values."""
    config: Digest | None = None
    """Digest of the config with which `code` was generated."""
    code: Digest | None = None
    """What Triton generated, as `triton_internals.generated_code` has it; None if unknown."""


MOST_LAUNCHES = 64
"""Largest number of launches in a record.

A kernel with more specialises on a value that varies from call to call.
"""


MOST_MEASUREMENTS = 10_000
"""Largest number of measurements in a record; a merge leaves out the oldest."""


class Record(FrozenModel):
    """All measurements of one scenario in one context, with its winner, pin and launches."""

    scenario: Scenario
    winner: Winner | None = None
    pin: Pin | None = None
    launches: tuple[RecordedLaunch, ...] | None = Field(default=None, max_length=MOST_LAUNCHES)
    """Launches to compile ahead of time with the winner; None if none was recorded."""
    measurements: tuple[Measurement, ...] = Field(default=(), max_length=MOST_MEASUREMENTS)

    def model_post_init(self, _: object) -> None:
        """Sort the measurements by config: records are compared and diffed as text."""
        if len(set(map(_CONFIG_TEXT, self.measurements))) != len(self.measurements):
            raise ValueError("two measurements of one config in one record")
        ordered = tuple(sorted(self.measurements, key=_CONFIG_TEXT))
        object.__setattr__(self, "measurements", ordered)
        launches = tuple(sorted(set(self.launches or ()), key=_TEXT))
        object.__setattr__(self, "launches", launches or None)

    @property
    def pinned(self) -> Config | None:
        """Return the config that a person chose, or None."""
        return self.pin.config if self.pin else None

    @property
    def is_finished(self) -> bool:
        """Return whether a tune has ended with a winner that is not known to be wrong."""
        if self.winner is None:
            return False
        outcomes = map(attrgetter("outcome"), (self.winner.results or {}).values())
        wrong = map(attrgetter("config"), filter(attrgetter("is_wrong"), self.measurements))
        return "wrong" not in outcomes and self.winner.config not in wrong

    def omits(self, among: str, loss: float) -> bool:
        """Return whether a tune of these configs left some out, and no more than may be lost."""
        return self.omissions.get(among, math.inf) <= loss

    @property
    def omissions(self) -> Mapping[str, float]:
        """The winner's omissions, or none if a config has failed since it was written.

        That config may have been the best of a list that lacks the winner.
        """
        winner = self.winner
        if winner is None or not winner.omissions:
            return {}
        failed = any(
            entry.failure is not None and not entry.skipped and entry.at > winner.at
            for entry in self.measurements
        )
        return {} if failed else winner.omissions

    def omissions_with(self, more: Mapping[str, float]) -> dict[str, float]:
        """Return the omissions after another tune, at most as many as a winner may have."""
        return dict([*{**self.omissions, **more}.items()][-MOST_OMISSIONS:])

    @property
    def is_exemplary(self) -> bool:
        """Return whether other scenarios may go by the winner, as those of a decision tree do.

        Its results were compared, unless the kernel's author wants none compared.
        """
        if self.winner is None or not self.is_finished:
            return False
        return self.winner.is_compared or has_reason(self.winner.results, SWITCHED_OFF)

    @property
    def is_unfinished(self) -> bool:
        """Return whether the record has timings, but neither a winner nor a person's choice."""
        return bool(self.measurements) and not (self.pin or self.is_finished)

    def reasons_not_compared(self, config: Config) -> list[str]:
        """Return which results of a config were not compared with the default's, and why."""
        if self.winner is not None and self.winner.config == config:
            return reasons_not_compared(self.winner.results)
        return [f"{ALL_OUTPUTS}: this config has won no tune"]

    @property
    def by_config(self) -> dict[Config, Measurement]:
        """Return the measurements by config."""
        return {measurement.config: measurement for measurement in self.measurements}

    def as_adopted(self, at: datetime) -> Record:
        """Return the record as it is kept under another key of equal code from a moment on."""
        assert self.winner is not None
        winner = self.winner.model_copy(update={"adopted_at": at, "at": at})
        return self.model_copy(update={"winner": winner})

    @property
    def times_by_case(self) -> dict[Config, dict[str, float]]:
        """Return the medians by case of the configs that were timed in named cases."""
        times = {
            measurement.config: {
                case: time for case, time in (measurement.cases or {}).items() if time > 0
            }
            for measurement in self.measurements
            if measurement.failure is None
        }
        return {config: by_case for config, by_case in times.items() if by_case}


class RecordSet(FrozenModel):
    """A context and its records: the content of a file and of a message to the server."""

    format: StrictInt = FORMAT
    context: Context
    records: tuple[Record, ...] = Field(default=(), max_length=1_000_000)


def record_set_line(context: Context, records: Iterable[Record]) -> Iterator[str]:
    """Yield the texts that make up a record set's `canonical_json`, and a line end.

    Each record is formatted when its turn comes: parsed, they take ten times the memory of their
    text.
    """
    yield f'{{"context": {context.text}, "format": {FORMAT}, "records": ['
    for index, record in enumerate(records):
        yield f"{', ' if index else ''}{canonical_json(record)}"
    yield "]}\n"


def divide(sized: Iterable[tuple[T, int]], most: int, total: int) -> Iterator[list[T]]:
    """Divide values, given with their sizes, into parts of `most` and of a `total` size.

    A value that is larger is a part of its own.
    """
    part: list[T] = []
    used = 0
    for value, size in sized:
        if part and (len(part) == most or used + size > total):
            yield part
            part, used = [], 0
        part.append(value)
        used += size
    if part:
        yield part


def version_of(text: str | bytes, field: str = "format") -> int:
    """Return the version that a JSON document states of its format; 0 if it does not."""
    try:
        version = json.loads(text).get(field)
    except (ValueError, AttributeError, RecursionError):
        return 0
    return version if isinstance(version, int) else 0


def first_problem(error: Exception) -> str:
    """Return the place and the text of a validation's first error, or the text of another one."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_context=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))[:500]
