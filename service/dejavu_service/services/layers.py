"""Loading of records as readers of a namespace get them, with those of the namespace beneath it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

from sqlalchemy import Connection

from ..errors import TooLargeError
from ..storage import records
from ..storage.records import StoredRecordSet
from ..storage.sql import divide
from .merging import add_beneath
from .read_through import RecordView

__all__ = [
    "iter_texts",
    "join_revisions",
    "join_texts",
    "load_record_set",
    "load_scenario_texts",
    "load_texts",
]

MOST_BYTES = 256 * 2**20
"""Bytes of a namespace's records of one context that are read at once, as clients read at most."""
PART_BYTES = 4 * 2**20
"""Bytes of some records that are read at once."""


def join_revisions(revisions: Sequence[str | None]) -> str:
    """Return the revision of a view, which changes with each of its namespaces'."""
    return ".".join(revision or "-" for revision in revisions)


def load_record_set(connection: Connection, view: RecordView) -> StoredRecordSet | None:
    """Load all records of a view, ordered by their scenario's text; None if it has none.

    Raises:
        TooLargeError: A namespace has more than `MOST_BYTES` of them.
    """
    _check_size(connection, view, "text")
    layers = [
        records.load_record_set(connection, namespace, view.context)
        for namespace in view.namespaces
    ]
    revision = join_revisions([layer and layer.revision for layer in layers])
    texts: dict[str, str] = {}
    for layer in filter(None, layers):
        for scenario, text in zip(layer.scenarios, layer.records, strict=True):
            texts[scenario] = _layer(texts.get(scenario), text)
    first = next(filter(None, layers), None)
    if first is None:
        return None
    return StoredRecordSet(
        first.context, revision, [texts[scenario] for scenario in sorted(texts)], sorted(texts)
    )


def _check_size(
    connection: Connection, view: RecordView, column: Literal["text", "scenario_text"]
) -> None:
    for namespace in view.namespaces:
        size = records.count_bytes(connection, namespace, view.context, column)
        if size > MOST_BYTES:
            raise TooLargeError(
                f"the records of this context in {namespace!r} have {size} bytes, more than the "
                f"{MOST_BYTES} that are read at once: read them one by one, and see by  "
                "dejavu-cache quarantine writers  who wrote so much"
            )


def load_scenario_texts(connection: Connection, view: RecordView) -> tuple[str, list[str]] | None:
    """Load the revision and the sorted scenarios of a view; None if it has no records.

    Raises:
        TooLargeError: As for the records.
    """
    _check_size(connection, view, "scenario_text")
    layers = [
        records.load_scenario_texts(connection, namespace, view.context)
        for namespace in view.namespaces
    ]
    if not any(layers):
        return None
    texts = {text for layer in filter(None, layers) for text in layer[1]}
    return join_revisions([layer and layer[0] for layer in layers]), sorted(texts)


def join_texts(
    layers: Sequence[tuple[str, str | None] | None],
) -> tuple[str, str | None] | None:
    """Join the namespaces' revisions and texts of one record; None if there is no context."""
    if not any(layers):
        return None
    merged: str | None = None
    for _, text in filter(None, layers):
        merged = merged if text is None else _layer(merged, text)
    return join_revisions([layer and layer[0] for layer in layers]), merged


def iter_texts(
    connection: Connection, view: RecordView, scenarios: Sequence[str]
) -> Iterator[dict[str, str]]:
    """Iterate over what `load_texts` returns, as much at a time as may be in memory."""
    sizes: Counter[str] = Counter()
    for namespace in view.namespaces:
        sizes.update(records.load_sizes(connection, namespace, view.context, scenarios))
    for part in divide(sizes, sizes.__getitem__, len(sizes), PART_BYTES):
        yield load_texts(connection, view, part)


def load_texts(
    connection: Connection, view: RecordView, scenarios: Sequence[str]
) -> dict[str, str]:
    """Load the JSON texts of records by their scenario's digest, without those not there."""
    texts: dict[str, str] = {}
    for namespace in view.namespaces:
        layer = records.load_texts(connection, namespace, view.context, scenarios)
        for scenario, text in layer.items():
            texts[scenario] = _layer(texts.get(scenario), text)
    return texts


def _layer(own: str | None, beneath: str) -> str:
    """Add to a record what it does not have of the record beneath it; both are JSON."""
    return beneath if own is None or own == beneath else add_beneath(own, beneath)
