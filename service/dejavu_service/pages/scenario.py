"""A scenario: why its config runs, all its measurements, and its history."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from sqlalchemy import Connection

from dejavu_cache.model.record import Measurement, Record
from dejavu_cache.model.scenario import Context

from ..errors import NotFoundError
from ..services.log import LogEntry, LogFilter, read_log
from ..services.requests import Call, ContextDigest, CurrentCall, Namespace, ScenarioDigest
from ..storage import contexts, record_texts, summaries
from .kernel import LOUD, ConfigNames
from .rendering import Wanted, page, render_page

_NEAR_TIE = 0.02
"""Relative distance to the best median within which another run could have chosen a config."""
_MOST_ARRIVALS = 500
_MOST_ENTRIES = 1000


@page("/pages/{namespace}/contexts/{context}/scenarios/{scenario}")
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
        record = _load_record(connection, namespace, context, scenario)
        text = contexts.load_text(connection, namespace, context)
        assert text is not None
        parsed = Context.model_validate_json(text)
        arrived = record_texts.list_arrivals(
            connection, namespace, context, scenario, _MOST_ARRIVALS
        )
        elsewhere = [
            (row, loaded[scenario])
            for row in summaries.load_contexts(connection, namespace, parsed.kernel.name)
            if row.digest != context
            and scenario in (loaded := summaries.load(connection, row.id, [scenario]))
        ]
    arrivals = [
        item._asdict() | {"measurement": Measurement.model_validate_json(item.text)}
        for item in arrived
    ]
    call.server.reader.note_use((namespace, context))
    chosen = record.pinned or (record.winner.config if record.winner else None)
    measured = sorted(
        record.measurements,
        key=lambda item: (item.median is None, item.median or 0.0, item.config.text),
    )
    medians = [item.median for item in measured if item.median is not None]
    timing = record.by_config.get(chosen) if chosen else None
    others = [item for item in measured if item.median is not None and item is not timing]
    best = medians[0] if medians else 0.0
    excess = timing.median / best - 1 if timing and timing.median and best else 0.0
    return render_page(
        "scenario.html",
        call,
        namespace,
        wanted,
        {"measurements": (item.model_dump() for item in measured), "arrivals": arrivals},
        context=parsed,
        record=record,
        chosen=chosen,
        timing=timing,
        measured=measured,
        best=best,
        slowest=medians[-1] if medians else 0.0,
        runner_up=others[0] if others else None,
        near=sum((item.median or 0.0) <= best * (1 + _NEAR_TIE) for item in others),
        excess=excess,
        is_loud=record.pinned is not None and excess >= LOUD,
        names=ConfigNames(item.config for item in measured),
        elsewhere=elsewhere,
        arrivals=arrivals,
        log=_log(call, namespace, parsed, record),
    )


def _load_record(connection: Connection, namespace: str, context: str, scenario: str) -> Record:
    stored = record_texts.load_text(connection, namespace, context, scenario)
    if stored is None or stored[1] is None:
        raise NotFoundError("there is no record of this scenario")
    return Record.model_validate_json(stored[1])


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
