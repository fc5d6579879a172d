"""A kernel's scenarios: on all GPUs, on one, on two that are compared, and each by itself."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import Query, Response
from pydantic import Field
from sqlalchemy import Connection

from dejavu_cache.model.record import Measurement, Record
from dejavu_cache.model.scenario import Config, Context, Scenario, canonical_json, divide_values

from ..errors import NotFoundError
from ..services.access import NAMESPACE
from ..services.log import LogEntry, LogFilter, read_log
from ..services.requests import Call, ContextDigest, CurrentCall, Namespace, ScenarioDigest
from ..storage import record_texts, summaries
from ..storage.summaries import ContextRow
from .rendering import Wanted, render_page, router

_LOUD = 0.05
"""Share by which a choice is slower than the best from which pages say so loudly."""
_MOST_CONTEXTS = 8
_MOST_WINNERS = 12
_NEAR_TIE = 0.02
"""Relative distance to the best median within which another run could have chosen a config."""
_MOST_ARRIVALS = 500
_MOST_ENTRIES = 1000
_BY_NUMBER = ("median", "excess", "differs", "slower")
"""Columns by which scenarios are sorted in descending order; others are arguments."""


class ScenarioColumns:
    """The arguments of scenarios, divided into those that vary and those that do not.

    Attributes:
        shared: The values that all scenarios have, by argument.
        varying: The arguments that differ, in the kernel's order.
    """

    def __init__(self, scenarios: Iterable[Scenario]) -> None:
        """Divide the arguments of some scenarios."""
        self.shared, self.varying = divide_values([scenario.values for scenario in scenarios])

    def cells(self, scenario: Scenario) -> list[Any]:
        """Return a scenario's values of the varying arguments."""
        return [scenario.values.get(name, "") for name in self.varying]

    def order(self, scenario: Scenario, first: str = "") -> list[Any]:
        """Return a key that sorts scenarios by one argument first and then by all from the left.

        Numbers come in numeric order, before other values.
        """
        values = scenario.values
        names = [first] if first in self.varying else []
        return [
            (False, value, "")
            if isinstance(value := values.get(name), (int, float))
            else (True, 0, canonical_json(value))
            for name in (*names, *self.varying)
        ]


class ConfigNames:
    """Short names of configs: the values that not all of them share.

    Attributes:
        shared: The values that all configs share.
    """

    def __init__(self, configs: Iterable[Config]) -> None:
        """Find what some configs share; a config alone keeps its full name."""
        rows = [config.values for config in dict.fromkeys(configs)]
        self.shared, _ = divide_values(rows) if len(rows) > 1 else ({}, [])

    def name(self, config: Config) -> str:
        """Return a config's values without the shared ones."""
        values = config.values.items()
        differing = [f"{name}={value}" for name, value in values if name not in self.shared]
        return ", ".join(differing) or str(config)

    def name_text(self, text: str | None) -> str:
        """Return the name of the config that readers get, given as JSON text."""
        return self.name(Config.model_validate_json(text)) if text else "no winner yet"


def current_source(rows: Iterable[ContextRow]) -> str:
    """Return the source hash of a kernel that is in use: read or written, or else made, last."""
    return max(rows, key=lambda row: (row.used_at // 86400, row.created_at)).source


class Side(NamedTuple):
    """A context of a namespace, and its records in numbers by their scenario's digest."""

    namespace: str
    row: ContextRow
    tuned: dict[str, Any]

    @property
    def name(self) -> str:
        """The GPU and Triton."""
        return f"{self.row.device}, Triton {self.row.triton}"

    @property
    def path(self) -> str:
        """Path of the context's page."""
        return f"/pages/{self.namespace}/contexts/{self.row.digest}"


class ScenarioRow(NamedTuple):
    """A scenario, and its record in numbers on each side; None where a side has none."""

    scenario: Scenario
    tuned: list[Any]

    @property
    def median(self) -> float:
        """Median of the first side's config in milliseconds; 0 if there is none."""
        first = self.tuned[0]
        return 0.0 if first is None or first.median is None else first.median

    @property
    def excess(self) -> float:
        """Share by which the first side's config is slower than the best; 0 if not known."""
        first = self.tuned[0]
        return 0.0 if first is None or first.excess is None else first.excess

    @property
    def slower(self) -> float:
        """Median of the first side's config over that of the second's; 0 if not known."""
        second = self.tuned[1] if len(self.tuned) > 1 else None
        return self.median / second.median if second and second.median else 0.0

    @property
    def differs(self) -> bool:
        """Whether the sides run different configs, or not all have a record."""
        return len({summary and summary.chosen for summary in self.tuned}) > 1


class ScenariosFilter(Wanted):
    """The order of the scenarios."""

    sort: str = Field(default="", max_length=500)


class KernelFilter(ScenariosFilter):
    """A kernel by its full name."""

    name: str = Field(min_length=1, max_length=500)


@router.get("/pages/{namespace}/kernel")
def show_kernel(
    namespace: Namespace, call: CurrentCall, wanted: Annotated[KernelFilter, Query()]
) -> Response:
    """Show the current source of a kernel on all GPUs: which config readers get where."""
    call.principal.require("read", namespace)
    with call.database.read() as connection:
        rows = summaries.load_contexts(connection, namespace, wanted.name)
        if not rows:
            raise NotFoundError(f"namespace {namespace!r} has no records of {wanted.name!r}")
        source = current_source(rows)
        of_source = [row for row in rows if row.source == source]
        of_source.sort(key=lambda row: (row.device, row.triton, row.digest))
        shown = of_source[:_MOST_CONTEXTS]
        sides = [Side(namespace, row, summaries.load(connection, row.id)) for row in shown]
        left_out = len(of_source) - len(shown)
        return _show_scenarios("kernel.html", call, wanted, sides, left_out=left_out)


@router.get("/pages/{namespace}/contexts/{context}")
def show_context(
    namespace: Namespace,
    context: ContextDigest,
    call: CurrentCall,
    wanted: Annotated[ScenariosFilter, Query()],
) -> Response:
    """Show a kernel on a GPU: which config readers get in its scenarios, and what it costs."""
    call.principal.require("read", namespace)
    with call.database.read() as connection:
        side = _load_side(connection, namespace, context)
        call.server.reader.used.add((namespace, context))
        return _show_scenarios("context.html", call, wanted, [side])


class ContextsFilter(ScenariosFilter):
    """The digest of another context, and another namespace; empty for the same."""

    other: str = Field(default="", pattern=r"^[0-9a-f]{0,24}$")
    to: str = Field(default="", max_length=500)


@router.get("/pages/{namespace}/contexts/{context}/compare")
def compare_contexts(
    namespace: Namespace,
    context: ContextDigest,
    call: CurrentCall,
    wanted: Annotated[ContextsFilter, Query()],
) -> Response:
    """Compare a context with another GPU, Triton or namespace, what is slower here first."""
    there = wanted.to if re.fullmatch(NAMESPACE, wanted.to) else namespace
    for name in (namespace, there):
        call.principal.require("read", name)
    wanted.sort = wanted.sort or "slower"
    with call.database.read() as connection:
        left = _load_side(connection, namespace, context)
        loaded = summaries.load_contexts(connection, namespace, left.row.context.kernel.name)
        siblings = [Side(namespace, row, {}) for row in loaded if row.records]
        siblings.sort(key=lambda side: (side.row.source != left.row.source, side.name))
        others = [side.row.digest for side in siblings if side.row.digest != context]
        other = wanted.other or (others[0] if others and there == namespace else context)
        right = _load_side(connection, there, other)
        return _show_scenarios(
            "compare_context.html", call, wanted, [left, right], siblings=siblings
        )


def _load_side(connection: Connection, namespace: str, digest: str) -> Side:
    rows = summaries.load_contexts(connection, namespace, digest=digest)
    if not rows or not rows[0].records:
        raise NotFoundError(
            f"namespace {namespace!r} has no records of this context: choose another"
        )
    return Side(namespace, rows[0], summaries.load(connection, rows[0].id))


def _show_scenarios(
    template: str, call: Call, wanted: ScenariosFilter, sides: Sequence[Side], **values: Any
) -> Response:
    """Show the scenarios of contexts, and what readers get in each of them."""
    texts = {
        digest: summary.scenario_text for side in sides for digest, summary in side.tuned.items()
    }
    rows = [
        ScenarioRow(Scenario.model_validate_json(text), [side.tuned.get(digest) for side in sides])
        for digest, text in texts.items()
    ]
    columns = ScenarioColumns(row.scenario for row in rows)
    rows.sort(key=lambda row: columns.order(row.scenario, wanted.sort))
    if wanted.sort in _BY_NUMBER:
        rows.sort(key=lambda row: -getattr(row, wanted.sort))
    shown = rows[wanted.rows()]
    wins = [Counter(summary.chosen for summary in side.tuned.values()) for side in sides]
    total: Counter[str | None] = sum(wins, Counter())
    parsed = {text: Config.model_validate_json(text) for text in total if text}
    names = ConfigNames(parsed.values())
    ranked = sorted(parsed, key=lambda text: (-total[text], text))
    return render_page(
        template,
        call,
        sides[0].namespace,
        wanted,
        {"scenarios": _list_records(rows, sides)},
        sides=sides,
        columns=columns,
        names=names,
        winners=[
            (names.name(parsed[text]), [won[text] for won in wins])
            for text in ranked[:_MOST_WINNERS]
        ],
        rows=shown,
        counts=_count_rows(rows),
        total=len(rows),
        **values,
    )


def _count_rows(rows: Sequence[ScenarioRow]) -> dict[str, int]:
    """Count the costly pins of the first side, and how it differs from the second one."""
    both = [row for row in rows if all(row.tuned)]
    return {
        "loud": sum(
            bool(row.tuned[0] and row.tuned[0].pinned) for row in rows if row.excess >= _LOUD
        ),
        "slower": sum(row.slower >= 1 + _LOUD for row in both),
        "same": sum(not row.differs for row in both),
        "differing": sum(row.differs for row in both),
        "only_first": sum(not any(row.tuned[1:]) for row in rows),
        "only_second": sum(row.tuned[0] is None for row in rows),
    }


def _list_records(rows: Sequence[ScenarioRow], sides: Sequence[Side]) -> Iterator[dict[str, Any]]:
    for row in rows:
        for side, summary in zip(sides, row.tuned, strict=True):
            if summary is not None:
                home = {"namespace": side.namespace, "context": side.row.context}
                yield home | summary._asdict() | {"scenario": row.scenario}


@router.get("/pages/{namespace}/contexts/{context}/scenarios/{scenario}")
def show_scenario(
    namespace: Namespace,
    context: ContextDigest,
    scenario: ScenarioDigest,
    call: CurrentCall,
    wanted: Annotated[Wanted, Query()],
) -> Response:
    """Show why a scenario's config runs, all its measurements, and its history."""
    call.principal.require("read", namespace)
    with call.database.read() as connection:
        stored = record_texts.load_text(connection, namespace, context, scenario)
        if stored is None or stored[1] is None:
            raise NotFoundError("there is no record of this scenario")
        parsed = summaries.load_contexts(connection, namespace, digest=context)[0].context
        arrived = record_texts.list_arrivals(
            connection, namespace, context, scenario, _MOST_ARRIVALS
        )
        tuned = {
            row.digest: (row, loaded[scenario])
            for row in summaries.load_contexts(connection, namespace, parsed.kernel.name)
            if scenario in (loaded := summaries.load(connection, row.id, scenario))
        }
    record = Record.model_validate_json(stored[1])
    _, summary = tuned.pop(context)
    arrivals = [
        {"received_at": at, "sender": sender, "stands": stands}
        | {"measurement": Measurement.model_validate_json(text)}
        for text, stands, sender, at in arrived
    ]
    call.server.reader.used.add((namespace, context))
    chosen = record.pinned or (record.winner.config if record.winner else None)
    measured = sorted(
        record.measurements,
        key=lambda item: (item.median is None, item.median or 0.0, item.config.text),
    )
    timing = record.by_config.get(chosen) if chosen else None
    others = [item for item in measured if item.median is not None and item is not timing]
    best, excess = summary.best or 0.0, summary.excess or 0.0
    return render_page(
        "scenario.html",
        call,
        namespace,
        wanted,
        {
            "measurements": measured,
            "arrivals": arrivals,
            "log": _log(call, namespace, parsed, record),
        },
        context=parsed,
        record=record,
        chosen=chosen,
        timing=timing,
        best=best,
        slowest=summary.slowest or 0.0,
        runner_up=others[0] if others else None,
        near=sum((item.median or 0.0) <= best * (1 + _NEAR_TIE) for item in others[1:]),
        excess=excess,
        is_loud=summary.pinned and excess >= _LOUD,
        names=ConfigNames(item.config for item in measured),
        elsewhere=tuned.values(),
    )


def _log(call: Call, namespace: str, context: Context, record: Record) -> list[LogEntry] | None:
    """Return what people changed; None for those who may not read the log."""
    if not call.principal.may("admin", namespace):
        return None
    wanted = LogFilter(kernel=context.kernel.name, limit=_MOST_ENTRIES)
    listed = read_log(call.database, call.principal, namespace, wanted)
    return [
        entry
        for entry in listed.entries
        if entry.detail.get("context") in (None, context.digest)
        and entry.detail.get("scenario") in (None, str(record.scenario))
    ]
