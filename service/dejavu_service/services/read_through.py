"""Namespaces that answer from another one what they do not have themselves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from sqlalchemy import Connection

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.record import FORMAT

from ..errors import TooLargeError
from ..storage import record_texts
from ..storage.sql import divide
from .access import NAMESPACE, NAMESPACE_PATTERN, Principal, most_specific
from .merging import add_beneath

__all__ = [
    "ReadThrough",
    "RecordView",
    "iter_texts",
    "join_revisions",
    "load_record",
    "load_records",
    "load_scenarios",
    "load_texts",
    "render",
]

MOST_BYTES = 256 * 2**20
"""Bytes of a namespace's records of one context that are read at once, as clients read at most."""
PART_BYTES = 4 * 2**20
"""Bytes of some records that are read at once."""


class RecordView(NamedTuple):
    """The records of a context as a reader gets them.

    Attributes:
        namespace: The namespace that is read.
        context: The digest of the context.
        beneath: The namespace that answers what `namespace` does not have, or None.
    """

    namespace: str
    context: str
    beneath: str | None = None

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Return the namespaces that answer, the first one first."""
        return (self.namespace,) if self.beneath is None else (self.namespace, self.beneath)


class ReadThrough:
    """Rules that name the namespace beneath another one; there is none beneath that again."""

    def __init__(self, rules: Mapping[str, str]) -> None:
        """Take the namespaces beneath others by the pattern of the others' names.

        Raises:
            SettingsError: A rule is malformed, or a namespace beneath others reads through as well.
        """
        self._rules = dict(rules)
        for pattern, target in rules.items():
            if not (re.fullmatch(NAMESPACE_PATTERN, pattern) and re.fullmatch(NAMESPACE, target)):
                raise SettingsError(
                    f"DEJAVU_SERVER_READ_THROUGH: {pattern}={target} is no rule such as pr-*=main"
                )
            if self.beneath(target) is not None:
                raise SettingsError(
                    f"DEJAVU_SERVER_READ_THROUGH: {pattern} reads through to {target}, which reads "
                    f"through to {self.beneath(target)}: name the last one"
                )

    @classmethod
    def parse(cls, text: str) -> ReadThrough:
        """Parse `PATTERN=NAMESPACE`, separated by commas.

        Raises:
            SettingsError: As in the constructor, or a pattern is there twice.
        """
        pairs = [rule.strip().partition("=") for rule in text.split(",") if rule.strip()]
        rules = {pattern: target for pattern, _, target in pairs}
        if len(rules) < len(pairs):
            raise SettingsError("DEJAVU_SERVER_READ_THROUGH names a pattern twice")
        return cls(rules)

    def beneath(self, namespace: str) -> str | None:
        """Return the namespace beneath another one, or None."""
        pattern = most_specific(self._rules, namespace)
        target = None if pattern is None else self._rules[pattern]
        return None if target == namespace else target

    def view(self, principal: Principal, namespace: str, context: str) -> RecordView:
        """Return what a principal reads of a context: through, if it may read both namespaces.

        Raises:
            AccessDeniedError: The principal may not read the namespace.
        """
        principal.require("read", namespace)
        beneath = self.beneath(namespace) if self._rules else None
        if beneath is None or not principal.may("read", beneath):
            return RecordView(namespace, context)
        return RecordView(namespace, context, beneath)


def join_revisions(revisions: Sequence[str | None]) -> str:
    """Return the revision of a view, which changes with each of its namespaces'."""
    return ".".join(revision or "-" for revision in revisions)


def load_records(connection: Connection, view: RecordView) -> tuple[str, str] | None:
    """Load the revision and all records of a view, as JSON; None if it has no records.

    Raises:
        TooLargeError: A namespace has more than `MOST_BYTES` of them.
    """
    _check_size(connection, view, "text")
    layers = [
        record_texts.load_record_set(connection, namespace, view.context)
        for namespace in view.namespaces
    ]
    texts: dict[str, str] = {}
    for layer in filter(None, layers):
        for scenario, text in zip(layer.scenarios, layer.records, strict=True):
            texts[scenario] = _layer(texts.get(scenario), text)
    first = next(filter(None, layers), None)
    if first is None:
        return None
    revision = join_revisions([layer and layer.revision for layer in layers])
    return revision, render(first.context, [texts[scenario] for scenario in sorted(texts)])


def render(context: str, texts: Sequence[str]) -> str:
    """Render a record set as one line of JSON by joining the stored texts of its records."""
    return f'{{"context": {context}, "format": {FORMAT}, "records": [{", ".join(texts)}]}}'


def load_scenarios(connection: Connection, view: RecordView) -> tuple[str, str] | None:
    """Load the revision and the sorted scenarios of a view, as JSON; None if it has no records.

    Raises:
        TooLargeError: As for the records.
    """
    _check_size(connection, view, "scenario_text")
    layers = [
        record_texts.load_scenario_texts(connection, namespace, view.context)
        for namespace in view.namespaces
    ]
    if not any(layers):
        return None
    texts = {text for layer in filter(None, layers) for text in layer[1]}
    revision = join_revisions([layer and layer[0] for layer in layers])
    return revision, f'{{"scenarios": [{", ".join(sorted(texts))}]}}'


def _check_size(
    connection: Connection, view: RecordView, column: Literal["text", "scenario_text"]
) -> None:
    for namespace in view.namespaces:
        size = record_texts.count_bytes(connection, namespace, view.context, column)
        if size > MOST_BYTES:
            raise TooLargeError(
                f"the records of this context in {namespace!r} have {size} bytes, more than the "
                f"{MOST_BYTES} that are read at once: read them one by one, and see by  "
                "dejavu-cache quarantine list --writers  who wrote so much"
            )


def load_record(
    connection: Connection, view: RecordView, scenario: str
) -> tuple[str, str | None] | None:
    """Load the revision of a view and the JSON text of one record; None if it has no records."""
    layers = [
        record_texts.load_text(connection, namespace, view.context, scenario)
        for namespace in view.namespaces
    ]
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
        sizes.update(record_texts.load_sizes(connection, namespace, view.context, scenarios))
    for part in divide(sizes, sizes.__getitem__, len(sizes), PART_BYTES):
        yield load_texts(connection, view, part)


def load_texts(
    connection: Connection, view: RecordView, scenarios: Sequence[str]
) -> dict[str, str]:
    """Load the JSON texts of records by their scenario's digest, without those not there."""
    texts: dict[str, str] = {}
    for namespace in view.namespaces:
        layer = record_texts.load_texts(connection, namespace, view.context, scenarios)
        for scenario, text in layer.items():
            texts[scenario] = _layer(texts.get(scenario), text)
    return texts


def _layer(own: str | None, beneath: str) -> str:
    """Add to a record what it does not have of the record beneath it; both are JSON."""
    return beneath if own is None or own == beneath else add_beneath(own, beneath)
