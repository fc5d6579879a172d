"""Kernels, environments, scenarios and configs: the identity of records and measurements.

All models are frozen, keep their mappings sorted and are compared by value.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
)

from ..system.notices import printable
from .buckets import Bucket, FiniteFloat

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

JsonInteger = Annotated[StrictInt, Field(ge=-(2**63), lt=2**64)]
"""An integer that an argument of a kernel can hold: any of i64 or u64."""

GENERATED_MODULE = "generated-module"
"""Stands for a module whose name another process would not have; no module is called so."""

MOST_CHARACTERS = 500
"""Limit of a string in a record."""

Scalar = (
    StrictBool
    | JsonInteger
    | FiniteFloat
    | Annotated[StrictStr, Field(max_length=MOST_CHARACTERS)]
    | None
)
"""A value of a key argument or a meta-parameter, as JSON has it."""


def is_scalar(value: object) -> bool:
    """Check that records can hold a value as it is: a `Scalar`, and no integer as a float.

    Values of derived classes, such as those of an enumeration, are held as what they derive from.
    """
    if isinstance(value, int):
        return -(2**63) <= value < 2**64
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return len(value) <= MOST_CHARACTERS and not any("\ud800" <= c <= "\udfff" for c in value)
    return value is None


Text = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{8,64}$")]
Milliseconds = Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)]
_Count = Annotated[StrictInt, Field(ge=0, lt=2**31)]


CLOCK_TOLERANCE = timedelta(days=1)
"""How far another machine's clock may be ahead of this one's."""

_YEARS = range(2000, 2200)
"""Years that a clock may show: a moment after another one is in the calendar too."""

_KEY = re.compile(r"(?<= )[0-9a-f]{32}\b")


def _in_utc(moment: datetime) -> datetime:
    if moment.year not in _YEARS:
        raise ValueError(f"a moment lies in the years {_YEARS.start} to {_YEARS.stop - 1}")
    return moment.astimezone(timezone.utc)


Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]
"""A moment with its offset: without one, it would be read in the reader's time zone."""


def sort_by_name(mapping: dict[str, T]) -> dict[str, T]:
    """Return a mapping in the order of its names, so that equal ones give equal text."""
    # Mostly it is: to look takes a quarter of the time.
    return mapping if [*mapping] == sorted(mapping) else dict(sorted(mapping.items()))


def as_text(name: str) -> str:
    """Return a name as a `Text`: without control characters, and cut if it is long."""
    if name.isprintable() and len(name) <= MOST_CHARACTERS:
        return name
    line = printable(name).replace("\t", "\\t").replace("\n", "\\n")
    text = line.encode(errors="backslashreplace").decode()
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:100]}…{hashlib.sha256(text.encode()).hexdigest()[:32]}"


Values = Annotated[dict[Text, Scalar], AfterValidator(sort_by_name), Field(max_length=256)]


def now() -> datetime:
    """Return the present moment in UTC, in the first year that there is if the clock is wrong."""
    moment = datetime.now(timezone.utc)
    return moment if moment.year in _YEARS else moment.replace(year=_YEARS.start)


def moment_after(earlier: datetime | None, present: datetime | None = None) -> datetime:
    """Return the present moment, or the next one after that of an entry that is to be replaced.

    Of two entries, a merge keeps the later one, and another machine's clock may be ahead of this
    one's, by which `present` may be given.
    """
    present = present or now()
    if earlier is None or earlier < present:
        return present
    return earlier + timedelta(microseconds=1)


def canonical_json(value: Any) -> str:
    """Encode as one line of JSON with sorted keys, so that equal values give equal text."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_none=True)
    return _ENCODER.encode(value)


_ENCODER = json.JSONEncoder(sort_keys=True, allow_nan=False, ensure_ascii=False)


class FrozenModel(BaseModel):
    """An immutable model that rejects unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ValueModel(FrozenModel):
    """A model that is hashable although it contains dictionaries."""

    @cached_property
    def text(self) -> str:
        """Return the canonical JSON, which is the model's identity."""
        return canonical_json(self)

    @cached_property
    def digest(self) -> str:
        """Return the first 24 hexadecimal digits of the text's SHA-256."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:24]

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with other values, whose text is its own."""
        twin = super().model_copy(update=update, deep=deep)
        for name in ("text", "digest"):
            twin.__dict__.pop(name, None)
        return twin

    def __hash__(self) -> int:
        """Hash the text."""
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        """Compare the type and the text."""
        return type(other) is type(self) and self.text == other.text


class Kernel(FrozenModel):
    """A `triton.jit` function."""

    name: Text
    """Module and qualified name."""
    source: Digest
    """The key of its code: see `dejavu_cache.triton_internals.identity`."""


class Device(FrozenModel):
    """A GPU model: two devices with equal fields share timings, no others do."""

    name: Text
    arch: Text
    """`sm_90`, `gfx942`, …; the machine's for the interpreter."""
    units: _Count
    """Streaming multiprocessors or compute units."""
    memory_gib: _Count


class Environment(ValueModel):
    """All that a timing depends on besides kernel and scenario."""

    device: Device
    triton: Text
    codegen: Text
    """The code generator behind Triton: ptxas or LLVM and its version."""
    variables: Annotated[dict[Text, str], AfterValidator(sort_by_name)] = Field(
        default_factory=dict, max_length=64
    )
    """The environment variables that are set and change the code that Triton generates."""

    @property
    def settings(self) -> dict[str, str]:
        """Its variables, with no path of ptxas, which Inductor sets while a program runs."""
        return {**self.variables, "TRITON_PTXAS_PATH": ""}


class Problem(FrozenModel):
    """The tuning problem that a decorator declares."""

    keys: tuple[Text, ...] = Field(max_length=256)
    buckets: Annotated[dict[Text, Bucket], AfterValidator(sort_by_name)] = Field(
        default_factory=dict, max_length=256
    )
    """Buckets by key argument; arguments with `Exact` are left out."""
    method: Text
    """The benchmark method: `events-cold`, `cudagraph-warm`, `wall`, …"""


class Context(ValueModel):
    """Kernel, environment and problem: common to all records of one file."""

    kernel: Kernel
    environment: Environment
    problem: Problem


class Scenario(ValueModel):
    """The bucketed values of the key arguments, and what else a launch brings to the compiler."""

    args: Values = Field(default_factory=dict)
    dtypes: Annotated[dict[Text, Text], AfterValidator(sort_by_name)] = Field(
        default_factory=dict, max_length=256
    )
    """Dtypes of tensors, kinds of other arguments that are no `i32`, and constants as `=value`."""

    @cached_property
    def text(self) -> str:
        """Return the canonical JSON, which is the model's identity."""
        # Equal to `canonical_json(self)`, and faster: a launch may wait for this.
        return _ENCODER.encode({"args": self.args, "dtypes": self.dtypes})

    @cached_property
    def without_keys(self) -> Scenario:
        """Return the scenario without the keys of functions that the launch is given."""
        dtypes = {name: _KEY.sub("", kind) for name, kind in self.dtypes.items()}
        return self if dtypes == self.dtypes else Scenario(args=self.args, dtypes=dtypes)

    @property
    def values(self) -> dict[str, Any]:
        """Return the key values and the dtypes by argument, which a decision tree takes."""
        dtypes = {name: kind for name, kind in self.dtypes.items() if not kind.startswith("=")}
        return {**self.args, **dtypes}

    def __str__(self) -> str:
        """Format the values and dtypes as a call's arguments."""
        args = ", ".join(f"{name}={value}" for name, value in self.args.items())
        dtypes = ", ".join(
            f"{name}{kind}" if kind.startswith("=") else f"{name}: {kind}"
            for name, kind in self.dtypes.items()
        )
        return f"({args}{'; ' if args and dtypes else ''}{dtypes})"


class Config(ValueModel):
    """One `triton.Config` without its hook: meta-parameters and compiler options."""

    params: Values = Field(default_factory=dict)
    options: Values = Field(default_factory=dict)
    """`num_warps`, `num_stages`, `num_ctas`, …; only those that are set."""

    @cached_property
    def text(self) -> str:
        """Return the canonical JSON, which is the model's identity."""
        return _ENCODER.encode({"options": self.options, "params": self.params})

    @property
    def values(self) -> dict[str, Any]:
        """Return parameters and options by name."""
        return {**self.params, **self.options}

    def __str__(self) -> str:
        """Format parameters and options as `NAME=VALUE, …`."""
        return ", ".join(f"{name}={value}" for name, value in self.values.items())


def share_config(values: Any, validate: Any) -> Config:
    """Return one object for all equal configs, which a kernel declares and its records repeat."""
    text = repr(values)
    if (config := _shared.get(text)) is None:
        _shared[text] = config = validate(values)
    return config


_shared: WeakValueDictionary[str, Config] = WeakValueDictionary()


def divide_values(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Return the values that all rows share, by name, and the names whose values differ."""
    names = dict.fromkeys(name for row in rows for name in row)
    varying = [name for name in names if len({canonical_json(row.get(name)) for row in rows}) > 1]
    return {name: rows[0][name] for name in names if name not in varying}, varying


class Difference(NamedTuple):
    """A field whose value in a record differs from the one looked for."""

    field: str
    wanted: object
    found: object

    def __str__(self) -> str:
        """Name the field and both values."""
        return f"{self.field}: {self.found!r} recorded, {self.wanted!r} wanted"


def differences(
    wanted: Mapping[str, Any], found: Mapping[str, Any], prefix: str = ""
) -> list[Difference]:
    """Return the leaves in which two nested mappings differ, in order."""
    result: list[Difference] = []
    for name in dict.fromkeys([*wanted, *found]):
        left, right = wanted.get(name), found.get(name)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            result += differences(left, right, f"{prefix}{name}.")
        elif left != right or type(left) is not type(right):
            result.append(Difference(prefix + name, left, right))
    return result
