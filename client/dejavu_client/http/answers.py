"""Parsing of a server's answers, which are not to be trusted.

An error names the server, whose URL each function takes.
"""

from __future__ import annotations

import json
import math
import time
from email.utils import parsedate_to_datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dejavu_cache.model.record import FORMAT, RecordSet
from dejavu_cache.model.scenario import ValueModel, canonical_json
from dejavu_cache.system.background_threads import uninterrupted
from dejavu_cache.system.notices import printable

from .errors import NonsenseError

__all__ = [
    "parse_json",
    "parse_record_set",
    "parse_scenarios",
    "problem_detail",
    "retry_after",
    "to_json",
    "validate",
]

LONGEST_RETRY_AFTER = 60.0
"""Seconds to leave a busy server alone, however long it asks for."""


def to_json(model: ValueModel) -> Any:
    """Return a model as the JSON value that requests carry."""
    with uninterrupted():
        return json.loads(model.text)


def parse_json(body: bytes, server: str) -> Any:
    """Parse a body; raise `NonsenseError` if it is not JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NonsenseError(f"{server} answered what is not JSON: {error}") from None


def validate(kind: Any, value: Any, server: str) -> Any:
    """Return a value as a model; raise `NonsenseError` if it does not fit."""
    try:
        with uninterrupted():
            return TypeAdapter(kind).validate_json(json.dumps(value))
    except (ValidationError, ValueError) as error:
        raise NonsenseError(
            f"{server} does not follow the protocol: {str(error).splitlines()[0]}"
        ) from None


def parse_record_set(body: bytes, server: str) -> RecordSet:
    """Parse a record set of any format that this version reads."""
    try:
        with uninterrupted():
            record_set = RecordSet.model_validate_json(body)
    except ValidationError as error:
        raise NonsenseError(
            f"{server} answered what is not a record set: {str(error).splitlines()[0]}"
        ) from None
    if record_set.format > FORMAT:
        raise NonsenseError(
            f"{server} sends format {record_set.format}; this version of dejavu-cache reads "
            f"formats up to {FORMAT}: upgrade it"
        )
    return record_set


def retry_after(text: str) -> float | None:
    """Return the seconds of a `Retry-After` header, a number or a date; None if it is neither."""
    try:
        seconds = float(text) if text.isdigit() else _seconds_until(text)
    except (ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER)


def _seconds_until(date: str) -> float:
    return parsedate_to_datetime(date).timestamp() - time.time()


def parse_scenarios(body: bytes, server: str) -> list[str]:
    """Return the texts of the scenarios of an answer, be it a list of them or a record set.

    Without pydantic, whose code a daemon thread must not run while the interpreter ends.
    """
    answer = parse_json(body, server)
    try:
        if "records" in answer:
            return [_scenario_text(record["scenario"]) for record in answer["records"]]
        return [_scenario_text(scenario) for scenario in answer["scenarios"]]
    except (TypeError, KeyError, AttributeError, ValueError, RecursionError) as error:
        raise NonsenseError(f"{server} lists no scenarios: {error}") from None


def _scenario_text(scenario: Any) -> str:
    args, dtypes = scenario.get("args", {}), scenario.get("dtypes", {})
    is_sound = (
        scenario.keys() <= {"args", "dtypes"}
        and max(len(args), len(dtypes)) <= 256
        and all(map(_is_text, [*args, *dtypes, *dtypes.values()]))
        and all(map(_is_scalar, args.values()))
    )
    if not is_sound:
        raise ValueError(f"{str(scenario)[:80]} is no scenario")
    return canonical_json({"args": args, "dtypes": dtypes})


def _is_text(value: Any) -> bool:
    return (
        isinstance(value, str)
        and 1 <= len(value) <= 500
        and all(character >= " " and character != "\x7f" for character in value)
    )


def _is_scalar(value: Any) -> bool:
    if isinstance(value, int):  # or a boolean
        return -(2**63) <= value < 2**64
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or (isinstance(value, str) and len(value) <= 500)


def problem_detail(body: bytes) -> str:
    """Return the human-readable text of a problem+json body as one line, or an empty string."""
    try:
        problem = json.loads(body)
        text = str(problem.get("detail") or problem.get("title") or "")[:500]
        return printable(" ".join(text.split()))
    except (ValueError, AttributeError, RecursionError):
        return ""
