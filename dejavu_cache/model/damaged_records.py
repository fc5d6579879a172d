"""Read what can be read of a record, so that one bad entry costs itself alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from .record import Measurement, Pin, Record, RecordedLaunch, Winner
from .scenario import FrozenModel, Scenario

__all__ = ["ReadRecord", "first_problem", "read_record"]

Model = TypeVar("Model", bound=FrozenModel)


class ReadRecord(NamedTuple):
    """A record's readable part, and what is wrong with the rest.

    Attributes:
        record: the record without the entries that are damaged or of a newer version; None if
            nothing of it can be used.
        problem: what the first damaged entry is, or an empty string.
    """

    record: Record | None
    problem: str = ""


def read_record(text: str | bytes) -> ReadRecord:
    """Read a record's JSON; a bad measurement, launch, winner or pin is left out."""
    try:
        return ReadRecord(Record.model_validate_json(text))
    except ValidationError as error:
        problem = first_problem(error)
    try:
        fields = json.loads(text)
        scenario = Scenario.model_validate_json(json.dumps(fields["scenario"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return ReadRecord(None, problem)
    measurements = {entry.config: entry for entry in _readable(Measurement, fields, "measurements")}
    launches = tuple(_readable(RecordedLaunch, fields, "launches"))
    try:
        record = Record(
            scenario=scenario,
            winner=next(_readable(Winner, fields, "winner"), None),
            pin=next(_readable(Pin, fields, "pin"), None),
            launches=launches or None,
            measurements=tuple(measurements.values()),
        )
    except ValidationError:  # too many entries
        return ReadRecord(None, problem)
    return ReadRecord(None if record == Record(scenario=scenario) else record, problem)


def first_problem(error: ValidationError) -> str:
    """Return the place and the text of a validation's first error."""
    first = error.errors(include_url=False, include_context=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


def _readable(kind: type[Model], fields: dict[str, Any], name: str) -> Iterator[Model]:
    """Yield the valid entries of a field that holds one or a list of them."""
    entries = fields.get(name)
    for entry in entries if isinstance(entries, list) else [entries]:
        try:
            yield kind.model_validate_json(json.dumps(entry))
        except (ValidationError, RecursionError):
            continue
