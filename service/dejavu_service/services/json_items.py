"""Validation of JSON bodies in small steps, so that a large one never holds the interpreter.

A JSON parser and pydantic keep Python's interpreter lock for the whole of a text. A thread that
validates the items of its long array one after the other lets the event loop run in between, and
stops at the first item that is wrong. The items take ten times the memory of their text, so they
are dropped again, and validated a second time when they are read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar, overload

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json

from ..errors import TooLargeError
from .json_text import has_nul

__all__ = ["InvalidJsonError", "InvalidValueError", "StreamedItems", "validate_json"]

_Model = TypeVar("_Model", bound=BaseModel)

_SMALL = 64 * 1024
"""Bytes of a text that is parsed as one piece."""
_MAX_VALUES = 250_000
"""Values of one piece, by the brackets and commas that separate them."""
_MAX_ERRORS = 20
"""Errors of a text that are listed."""
_MAX_COUNTED = 1000
"""Errors beyond which none is listed, because pydantic renders all of them or none."""
_LONGEST_MESSAGE = 300

_SPACE = re.compile(rb"[ \t\r\n]*")
_SCALAR = re.compile(rb"[^\s,\[\]{}\"]+")
# Bounded: the regular expression engine remembers each repetition.
_WITHIN = re.compile(
    rb'(?:[^\[\]{}"]+|"[^"\\]*(?:\\.[^"\\]*){0,50}"){0,500}',
    re.DOTALL,
)


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


class _Pieces(NamedTuple):
    """An object's text without the items of one array, and where those items are."""

    rest: bytes
    items: list[tuple[int, int]]


def validate_json(
    body: bytes, model: type[_Model], items: str | None = None, max_items: int = 0
) -> _Model:
    """Validate a JSON text.

    Args:
        body: The text.
        model: The model of its value.
        items: The field whose items are validated one after the other if the text is long; its
            value is then a `StreamedItems`.
        max_items: The largest number of such items in a long text.

    Raises:
        InvalidJsonError: The text is not JSON.
        InvalidValueError: The value is not that of the model.
        TooLargeError: The text has more than `max_items` items.
    """
    if has_nul(body):
        raise InvalidJsonError("the body has a NUL character in a text: leave it out")
    validator: TypeAdapter[_Model] = _validator(model)
    if items is None or len(body) <= _SMALL:
        return _validate(validator, _parse(body), ())
    pieces = _split(body, items, max_items)
    value = _parse(pieces.rest)
    if not pieces.items:
        return _validate(validator, value, ())
    annotation: Any = model.model_fields[items].annotation
    item_validator = _validator(annotation.__args__[0])
    streamed = StreamedItems(body, pieces.items, item_validator, items)
    for _ in streamed:
        pass
    value[items] = []
    return _validate(validator, value, ()).model_copy(update={items: streamed})


class StreamedItems(Sequence[Any]):
    """Items of a long array, which are made anew whenever they are read, and not kept."""

    def __init__(
        self,
        body: bytes,
        spans: list[tuple[int, int]],
        validator: TypeAdapter[Any],
        name: str,
    ) -> None:
        """Read the items of the field `name` at the `spans` of a text."""
        self._body, self._spans = body, spans
        self._validator, self._name = validator, name

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._spans)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> StreamedItems: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Validate one item, or return a part of the items that is read later."""
        if isinstance(index, slice):
            return StreamedItems(self._body, self._spans[index], self._validator, self._name)
        start, end = self._spans[index]
        return _validate(self._validator, _parse(self._body[start:end]), (self._name, index))


@cache
def _validator(model: type[BaseModel]) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def _parse(text: bytes) -> Any:
    if text.count(b",") + text.count(b"[") + text.count(b"{") > _MAX_VALUES:
        raise InvalidValueError(
            [{"loc": (), "msg": f"has over {_MAX_VALUES} values: send fewer at a time"}], 1
        )
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidJsonError(str(error)) from None


def _validate(validator: TypeAdapter[_Model], value: Any, path: tuple[int | str, ...]) -> _Model:
    try:
        return validator.validate_python(value)
    except ValidationError as error:
        count = error.error_count()
        if count > _MAX_COUNTED:
            message = f"has over {_MAX_COUNTED} errors: compare it with /v1/openapi.json"
            raise InvalidValueError([{"loc": path, "msg": message}], 1) from None
        listed = error.errors(include_url=False, include_context=False, include_input=False)
        errors = [
            {"loc": (*path, *_shorten(item["loc"])), "msg": item["msg"][:_LONGEST_MESSAGE]}
            for item in listed[:_MAX_ERRORS]
        ]
        raise InvalidValueError(errors, count) from None


def _shorten(path: tuple[int | str, ...]) -> tuple[int | str, ...]:
    return tuple(part if isinstance(part, int) else part[:100] for part in path)


def _split(body: bytes, items: str, max_items: int) -> _Pieces:
    """Cut the items of one array out of an object's text, without checking either.

    Raises:
        InvalidJsonError: The text is no JSON object.
        TooLargeError: The array has more than `max_items` items.
    """
    name = b'"' + items.encode() + b'"'
    rest, cut = bytearray(b"{"), list[tuple[int, int]]()
    at = _skip_space(body, _expect(body, _skip_space(body, 0), b"{"))
    while body[at : at + 1] != b"}":
        end = _end_of(body, at)
        key, at = body[at:end], _skip_space(body, end)
        at = _skip_space(body, _expect(body, at, b":"))
        # Of a field that occurs twice the last one counts, as for any parser.
        cut = [] if key == name else cut
        if key == name and body[at : at + 1] == b"[":
            cut, at = _split_array(body, at, max_items)
            if len(cut) > max_items:
                raise TooLargeError(
                    f"over {max_items} {items} in one request: send at most {max_items} at a time"
                )
            value = b"[]"
        else:
            end = _end_of(body, at)
            value, at = body[at:end], end
        rest += key + b":" + value
        at = _skip_space(body, at)
        if body[at : at + 1] == b",":
            rest += b","
            at = _skip_space(body, at + 1)
        elif body[at : at + 1] != b"}":
            raise _malformed_at(at)
    if _skip_space(body, at + 1) != len(body):
        raise _malformed_at(at + 1)
    return _Pieces(bytes(rest + b"}"), cut)


def _split_array(body: bytes, at: int, max_items: int) -> tuple[list[tuple[int, int]], int]:
    """Return where an array's items begin and end, and where it ends or has too many items."""
    cut: list[tuple[int, int]] = []
    at = _skip_space(body, at + 1)
    if body[at : at + 1] == b"]":
        return cut, at + 1
    while len(cut) <= max_items:
        end = _end_of(body, at)
        cut.append((at, end))
        at = _skip_space(body, end)
        if body[at : at + 1] == b"]":
            return cut, at + 1
        at = _skip_space(body, _expect(body, at, b","))
    return cut, at


def _end_of(body: bytes, at: int) -> int:
    """Return where the value that begins at a position ends."""
    first = body[at : at + 1]
    if first == b'"':
        return _end_of_string(body, at)
    if first not in (b"{", b"["):
        scalar = _SCALAR.match(body, at)
        if scalar is None:
            raise _malformed_at(at)
        return scalar.end()
    depth = 0
    while True:
        within = _WITHIN.match(body, at)
        assert within is not None
        at = within.end()
        following = body[at : at + 1]
        if following == b'"':
            at = _end_of_string(body, at)
        elif following in (b"{", b"["):
            depth, at = depth + 1, at + 1
        elif following in (b"}", b"]"):
            depth, at = depth - 1, at + 1
            if depth == 0:
                return at
        elif not following:
            raise _malformed_at(at)


def _end_of_string(body: bytes, at: int) -> int:
    end = at
    while True:
        end = body.find(b'"', end + 1)
        if end < 0:
            raise _malformed_at(len(body))
        backslashes = end
        while body[backslashes - 1] == ord("\\"):
            backslashes -= 1
        if (end - backslashes) % 2 == 0:
            return end + 1


def _skip_space(body: bytes, at: int) -> int:
    match = _SPACE.match(body, at)
    assert match is not None
    return match.end()


def _expect(body: bytes, at: int, character: bytes) -> int:
    if body[at : at + 1] != character:
        raise _malformed_at(at)
    return at + 1


def _malformed_at(at: int) -> InvalidJsonError:
    return InvalidJsonError(f"unexpected end or character at byte {at}")
