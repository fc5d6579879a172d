"""Buckets: rules that map an argument's value to the representative of its bucket.

A bucket accepts every value. None, strings and numbers that are not finite stay as they are (but
infinity has an edge of `Edges` below it); a number below the first step goes to the first step.
`above` rounds up instead of down, for buffers that must hold a value.
"""

from __future__ import annotations

import bisect
import functools
import math
import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, StrictFloat, StrictInt, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from ..errors import SettingsError, did_you_mean, problem_text

__all__ = [
    "Bucket",
    "BucketName",
    "BucketSpec",
    "Edges",
    "Exact",
    "FiniteFloat",
    "Multiple",
    "Pow2",
    "parse_bucket",
]

FiniteFloat = Annotated[StrictFloat, Field(allow_inf_nan=False)]
_FORBID = ConfigDict(extra="forbid")
_Kind = TypeVar("_Kind", bound=type)

_RULES = {
    "Exact": "it takes no argument: Exact()",
    "Pow2": "min and max are powers of two: Pow2(min=16, max=4096)",
    "Edges": "give one list of finite numbers that increase: Edges([1, 16, 256])",
    "Multiple": "n is one whole number, 1 or more: Multiple(16)",
}
"""What each bucket is made of, as the end of a message."""


def _said_in_one_sentence(bucket: _Kind) -> _Kind:
    """Let a bucket's constructor raise a `SettingsError` that names the mistake and the remedy."""
    validate = bucket.__init__  # type: ignore[misc]

    @functools.wraps(validate)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            validate(self, *args, **kwargs)
        except ValidationError as error:
            name = bucket.__name__
            given = [*map(reprlib.repr, args)]
            given += [f"{key}={reprlib.repr(value)}" for key, value in kwargs.items()]
            reason = _reason(bucket, error.errors()[0])
            raise SettingsError(f"{name}({', '.join(given)}): {reason}") from None

    bucket.__init__ = construct  # type: ignore[misc]
    return bucket


def _reason(bucket: type, problem: Mapping[str, Any]) -> str:
    """Return what is wrong with a bucket's arguments, and what to write instead."""
    if problem["type"] == "value_error":
        return problem_text(problem)
    if problem["type"] == "unexpected_keyword_argument":
        unknown = problem["loc"][0]
        return f"it has no {unknown!r}: {did_you_mean(unknown, bucket.__annotations__)}"
    return _RULES[bucket.__name__]


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


@_said_in_one_sentence
@dataclass(frozen=True, config=_FORBID)
class Exact:
    """Give every value a scenario of its own; no other value stands in for it."""

    kind: Literal["exact"] = "exact"

    def __call__(self, value: Any) -> Any:
        """Return the value."""
        return value

    def above(self, value: int) -> int | None:
        """Return the value."""
        return value


@_said_in_one_sentence
@dataclass(frozen=True, config=_FORBID)
class Pow2:
    """Round down to a power of two between `min` and `max`.

    >>> Pow2()(33), Pow2(min=64)(33), Pow2(max=16)(33)
    (32, 64, 16)
    """

    min: StrictInt | None = Field(default=None, ge=1)
    max: StrictInt | None = Field(default=None, ge=1)
    kind: Literal["pow2"] = "pow2"

    @model_validator(mode="after")
    def _check_bounds(self) -> Pow2:
        for name, bound in (("min", self.min), ("max", self.max)):
            if bound is not None and bound & (bound - 1):
                below = 1 << (bound.bit_length() - 1)
                raise ValueError(
                    f"{name}={bound} is not a power of two: give {below} or {2 * below}"
                )
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min={self.min} is above max={self.max}: exchange them")
        return self

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

    def above(self, value: int) -> int | None:
        """Return the smallest power of two that is not below the value, or None above `max`."""
        step = max(1 << max(value - 1, 0).bit_length(), self.min or 1)
        return step if self.max is None or step <= self.max else None


@_said_in_one_sentence
@dataclass(frozen=True, config=_FORBID)
class Edges:
    """Round down to an edge; a value below the first edge goes to the first.

    Examples:
        >>> [Edges([1, 16, 256])(v) for v in (0, 15, 16, 9999)]
        [1, 1, 16, 256]
    """

    edges: tuple[StrictInt | FiniteFloat, ...] = Field(min_length=1)
    kind: Literal["edges"] = "edges"

    @model_validator(mode="after")
    def _check_edges(self) -> Edges:
        if any(a >= b for a, b in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError(f"they do not increase strictly: give {sorted(set(self.edges))}")
        return self

    def __call__(self, value: Any) -> Any:
        """Return the representative of the value's bucket."""
        is_infinite = isinstance(value, float) and math.isinf(value)
        if not is_infinite and not _is_number(value):
            return value
        return self.edges[max(bisect.bisect_right(self.edges, value) - 1, 0)]

    def above(self, value: int) -> int | None:
        """Return the first edge that is not below the value, or None above the last."""
        index = bisect.bisect_left(self.edges, value)
        return math.floor(self.edges[index]) if index < len(self.edges) else None


@_said_in_one_sentence
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

    def above(self, value: int) -> int | None:
        """Return the first multiple that is not below the value."""
        return max(-(-value // self.n), 1) * self.n


Bucket = Annotated[Exact | Pow2 | Edges | Multiple, Field(discriminator="kind")]

BucketName = Literal["exact", "pow2"]
"""A bucket by its kind, where the kind has no parameter that must be given."""

BucketSpec = Exact | Pow2 | Edges | Multiple | BucketName | Mapping[str, Any]
"""The three spellings of a bucket: `Pow2(max=64)`, `"pow2"`, `{"kind": "pow2", "max": 64}`."""


def parse_bucket(spec: BucketSpec) -> Bucket:
    """Return the bucket of any of its three spellings.

    Raises:
        SettingsError: no bucket is spelled like this.
    """
    if isinstance(spec, (Exact, Pow2, Edges, Multiple)):
        return spec
    fields = {"kind": spec} if isinstance(spec, str) else spec
    if not isinstance(fields, Mapping) or not isinstance(fields.get("kind"), str):
        raise SettingsError(
            f"{reprlib.repr(spec)} is no bucket: give one such as Multiple(16), Pow2(max=4096), "
            '"pow2" or {"kind": "edges", "edges": [1, 16, 256]}'
        )
    if fields["kind"] not in _KINDS:
        kind = fields["kind"]
        raise SettingsError(f"no bucket is called {kind!r}: {did_you_mean(kind, _KINDS)}")
    bucket: Bucket = _KINDS[fields["kind"]](**{str(name): fields[name] for name in fields})
    return bucket


_KINDS: Mapping[str, Any] = {"exact": Exact, "pow2": Pow2, "edges": Edges, "multiple": Multiple}
