"""Validation of JSON texts from clients, bounded in memory and in what it says of errors."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json

from ..errors import TooLargeError

__all__ = ["MOST_RECORDS", "InvalidJsonError", "InvalidValueError", "require_few", "validate_json"]

_Model = TypeVar("_Model", bound=BaseModel)

MOST_VALUES = 100_000
"""Values of one request: each takes up to 100 bytes of memory, and 300 more if it is wrong, however
short it is written. A MiB of records, as clients send it, has some 65,000."""
MOST_RECORDS = 10_000
"""Records, copies or misses in one request: more would keep other writers waiting for seconds."""
_MOST_ERRORS = 20
"""Errors of a text that are listed."""
_MOST_COUNTED = 1000
"""Errors beyond which none is listed, because pydantic renders all of them or none."""
_LONGEST_MESSAGE = 300


class InvalidJsonError(ValueError):
    """The text is not JSON, or has a character that databases cannot store."""


class InvalidValueError(ValueError):
    """The text is JSON, and its value is not that of the model.

    Attributes:
        errors: The first errors, each with the path `loc` and the message `msg`.
        count: The number of errors found.
    """

    def __init__(self, errors: list[dict[str, Any]], count: int) -> None:
        """Keep the errors of a value."""
        self.errors, self.count = errors, count
        more = f", and {count - 1} more" if count > 1 else ""
        path = ".".join(map(str, errors[0]["loc"])) or "the value"
        super().__init__(f"{path}: {errors[0]['msg']}{more}")


def require_few(count: int, what: str) -> None:
    """Check how many records, copies or misses a request has.

    Raises:
        TooLargeError: There are more than `MOST_RECORDS`.
    """
    if count > MOST_RECORDS:
        raise TooLargeError(f"{count} {what} in one request: send at most {MOST_RECORDS} at a time")


def validate_json(text: bytes, model: type[_Model], most_values: float = MOST_VALUES) -> _Model:
    """Validate a JSON text; a long one holds the interpreter for some time, so not in a loop.

    Args:
        text: The text.
        model: The model of its value.
        most_values: The largest number of values in it.

    Raises:
        InvalidJsonError: The text is not JSON, is nested more than 200 deep, or has a NUL in it.
        InvalidValueError: The value is not that of the model.
        TooLargeError: The text has more than `most_values` values.
    """
    # Counted by what separates values, before any of them takes memory.
    if text.count(b",") + text.count(b"[") + text.count(b"{") > most_values:
        raise TooLargeError(f"over {most_values} values in one text: send fewer at a time")
    # Postgres stores no NUL. Without the escaped backslashes, what reads as its escape is one.
    if b"\\u0000" in text and b"\\u0000" in text.replace(b"\\\\", b""):
        raise InvalidJsonError("there is a NUL character in a text: leave it out")
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidJsonError(str(error)) from None
    validator: TypeAdapter[_Model] = _validator(model)
    try:
        return validator.validate_python(value)
    except ValidationError as error:
        described = _describe(error)
    # Not above, where it would keep pydantic's error, which takes as much memory as all values.
    raise described


@cache
def _validator(model: type[BaseModel]) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def _describe(error: ValidationError) -> InvalidValueError:
    count = error.error_count()
    if count > _MOST_COUNTED:
        message = f"has over {_MOST_COUNTED} errors: compare it with /v1/openapi.json"
        return InvalidValueError([{"loc": (), "msg": message}], 1)
    listed = error.errors(include_url=False, include_context=False, include_input=False)
    errors = [
        {"loc": _shorten(item["loc"]), "msg": item["msg"][:_LONGEST_MESSAGE]}
        for item in listed[:_MOST_ERRORS]
    ]
    return InvalidValueError(errors, count)


def _shorten(path: tuple[int | str, ...]) -> tuple[int | str, ...]:
    return tuple(part if isinstance(part, int) else part[:100] for part in path)
