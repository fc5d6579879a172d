"""Moving records: export, import, and promotion from one namespace to another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection

from dejavu_cache.model.record import FORMAT, Record, RecordSet
from dejavu_cache.model.scenario import Context

from ..problems import ProblemError
from ..routes.json_body import has_nul
from ..storage import contexts, misses, records
from ..storage.database import Database
from .access import Principal
from .merging import override
from .records import check, merge

__all__ = ["Imported", "dump", "load", "promote", "render"]


class Imported(BaseModel):
    """What an import did."""

    sets: int = 0
    records: int = 0
    measurements: int = 0
    beside: int = 0


def render(whole: records.Whole) -> str:
    """A record set on one line, joined from the texts of its records."""
    return f'{{"context": {whole.context}, "format": {FORMAT}, "records": [{", ".join(whole.records)}]}}'


def dump(database: Database, who: Principal, namespace: str, kernel: str | None) -> Iterator[str]:
    """A line for each context, read as it is wanted.

    Raises:
        ProblemError: 403, before the first line.
    """
    who.require("read", namespace)
    return _lines(database, namespace, kernel)


def _lines(database: Database, namespace: str, kernel: str | None) -> Iterator[str]:
    with database.read() as connection:
        wanted = list(contexts.digests(connection, namespace, kernel))
    for digest in wanted:
        with database.read() as connection:
            whole = records.whole(connection, namespace, digest)
        if whole is not None:
            yield render(whole) + "\n"


def load(
    database: Database, who: Principal, namespace: str, lines: IO[bytes], most: int, longest: int
) -> Imported:
    """Merges an export, once every line has been found good.

    Raises:
        ProblemError: 403, or 413 or 422 naming the first line that is not; nothing was written then.
    """
    who.require("admin", namespace)
    for _ in _parsed(lines, most, longest):
        pass
    done = Imported()
    for sent in _parsed(lines, most, longest):
        with database.write() as connection:
            merged = merge(connection, who, namespace, sent)
        done.sets += 1
        done.records += merged.records
        done.measurements += merged.measurements
        done.beside += merged.beside
    return done


def _parsed(lines: IO[bytes], most: int, longest: int) -> Iterator[RecordSet]:
    lines.seek(0)
    number = 0
    while line := lines.readline(longest + 1):
        number += 1
        if len(line) > longest:
            raise ProblemError(
                413, f"line {number} has over {longest} bytes: split its records over several lines"
            )
        if line.strip():
            yield _parse(line, number, most)


def _parse(line: bytes, number: int, most: int) -> RecordSet:
    try:
        sent = RecordSet.model_validate_json(line)
    except (ValidationError, OverflowError) as error:
        first = (
            error.errors()[0]
            if isinstance(error, ValidationError)
            else {"loc": ("at",), "msg": str(error)}
        )
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise ProblemError(
            422, f"line {number}: {place}: {first['msg']}; nothing was imported"
        ) from None
    if has_nul(line):
        raise ProblemError(422, f"line {number}: a text has a NUL character; nothing was imported")
    check(sent, most)
    return sent


def promote(
    database: Database,
    who: Principal,
    source: str,
    target: str,
    kernel: str | None,
    digests: Sequence[str] | None,
) -> int:
    """Copies records to another namespace and lets them stand there; returns how many.

    Raises:
        ProblemError: 403, 404 if the source has nothing of the kind, or 422 for one namespace onto itself.
    """
    who.require("admin", source)
    who.require("admin", target)
    if source == target:
        raise ProblemError(
            422, f"{source!r} cannot be promoted to itself: name another namespace in `to`"
        )
    with database.read() as connection:
        known = list(contexts.digests(connection, source, kernel))
    missing = sorted(set(digests or ()) - set(known))
    if missing or not known:
        raise ProblemError(
            404,
            f"namespace {source!r} has no records of {', '.join(missing) or kernel or 'any kernel'}",
        )
    copied = 0
    for digest in known if digests is None else sorted(set(digests)):
        with database.write() as connection:
            copied += _promote_one(connection, who, source, target, digest)
    return copied


def _promote_one(
    connection: Connection, who: Principal, source: str, target: str, digest: str
) -> int:
    whole = records.whole(connection, source, digest)
    if whole is None:
        return 0
    theirs = [Record.model_validate_json(text) for text in whole.records]
    context_id = contexts.lock(connection, target, Context.model_validate_json(whole.context))
    ours = records.load(connection, context_id, [record.scenario.digest for record in theirs])
    merges = [override(ours.get(record.scenario.digest), record) for record in theirs]
    records.save(connection, context_id, [each.record for each in merges], promoted=True)
    for each in merges:
        records.add_claims(connection, context_id, each.claims, f"{who.name} from {source}")
        over = [(claim.measurement.config.digest, claim.digest) for claim in each.claims]
        records.stand_aside(connection, context_id, each.record.scenario.digest, over)
    misses.drop_tuned(connection, context_id, [record.scenario.digest for record in theirs])
    if any(ours.get(each.record.scenario.digest) != each.record for each in merges):
        contexts.changed(connection, context_id, len(theirs) - len(ours))
    return len(theirs)
