"""Buckets: rules that map an argument's value to the representative of its bucket.

A bucket accepts every value. None, strings and numbers that are not finite stay as they are (but
infinity has an edge of `Edges` below it); a number below the first step goes to the first step.
"""

import bisect
import math
import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    TypeAdapter,
    ValidationError,
)
from pydantic.dataclasses import dataclass

from ..errors import SettingsError, problem_text

FiniteFloat = Annotated[StrictFloat, Field(allow_inf_nan=False)]
_FORBID = ConfigDict(extra="forbid")


def _check_power_of_two(value: int) -> int:
    if value < 1 or value & (value - 1):
        raise ValueError("give a power of two")
    return value


_PowerOfTwo = Annotated[StrictInt, AfterValidator(_check_power_of_two)]


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, config=_FORBID)
class Exact:
    """Give every value a scenario of its own; no other value stands in for it."""

    kind: Literal["exact"] = "exact"

    def __call__(self, value: Any) -> Any:
        """Return the value."""
        return value


@dataclass(frozen=True, config=_FORBID)
class Pow2:
    """Round down to a power of two between `min` and `max`.

    >>> Pow2()(33), Pow2(min=64)(33), Pow2(max=16)(33)
    (32, 64, 16)
    """

    min: _PowerOfTwo | None = None
    max: _PowerOfTwo | None = None
    kind: Literal["pow2"] = "pow2"

    def __post_init__(self) -> None:
        """Check that the bounds are in order."""
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min={self.min} is above max={self.max}")

    def __call__(self, value: Any) -> Any:
        """Return the representative of the value's bucket."""
        if not _is_number(value):
            return value
        step = 1 << (int(value).bit_length() - 1) if value >= 1 else 0
        if self.min is not None and step < self.min:
            return self.min
        if self.max is not None and step > self.max:
            return self.max
        return step if step else value


@dataclass(frozen=True, config=_FORBID)
class Edges:
    """Round down to an edge; a value below the first edge goes to the first.

    Examples:
        >>> [Edges([1, 16, 256])(v) for v in (0, 15, 16, 9999)]
        [1, 1, 16, 256]
    """

    edges: tuple[StrictInt | FiniteFloat, ...] = Field(min_length=1)
    kind: Literal["edges"] = "edges"

    def __post_init__(self) -> None:
        """Check that the edges are in order."""
        if any(a >= b for a, b in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError("edges increase strictly")

    def __call__(self, value: Any) -> Any:
        """Return the representative of the value's bucket."""
        is_infinite = isinstance(value, float) and math.isinf(value)
        if not is_infinite and not _is_number(value):
            return value
        return self.edges[max(bisect.bisect_right(self.edges, value) - 1, 0)]


@dataclass(frozen=True, config=_FORBID)
class Multiple:
    """Round down to a multiple of `n`; a value below `n` goes to `n`.

    Examples:
        >>> [Multiple(16)(v) for v in (1, 16, 31, 32)]
        [16, 16, 16, 32]
    """

    n: StrictInt = Field(ge=1)
    kind: Literal["multiple"] = "multiple"

    def __call__(self, value: Any) -> Any:
        """Return the representative of the value's bucket."""
        if not _is_number(value):
            return value
        return max(int(value // self.n), 1) * self.n


Bucket = Annotated[Exact | Pow2 | Edges | Multiple, Field(discriminator="kind")]

_BUCKET: TypeAdapter[Bucket] = TypeAdapter(Bucket)

BucketName = Literal["exact", "pow2"]
"""A bucket by its kind, where the kind has no parameter that must be given."""

BucketSpec = Exact | Pow2 | Edges | Multiple | BucketName | Mapping[str, Any]
"""The three spellings of a bucket: `Pow2(max=64)`, `"pow2"`, `{"kind": "pow2", "max": 64}`."""


def parse_bucket(spec: BucketSpec) -> Bucket:
    """Return the bucket of any of its three spellings.

    Raises:
        SettingsError: no bucket is spelled like this.
    """
    try:
        return _BUCKET.validate_python({"kind": spec} if isinstance(spec, str) else spec)
    except ValidationError as error:
        problems = [(*map(str, item["loc"][1:]), problem_text(item)) for item in error.errors()]
        reasons = "; ".join(map(": ".join, problems))
        raise SettingsError(
            f"{reprlib.repr(spec)} is no bucket, such as Multiple(16), Pow2(max=4096), "
            f'"pow2" or {{"kind": "edges", "edges": [1, 16, 256]}}: {reasons}'
        ) from None
