"""A scenario: why its config runs, all its measurements, its neighbours and its history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fastapi import Response
from sqlalchemy import Connection

from dejavu_cache.model.record import Measurement, Record
from dejavu_cache.model.scenario import Config, Context, Scenario
from dejavu_cache.model.selection import distance

from ..errors import NotFoundError
from ..routes.common import Call, ContextDigest, CurrentCall, Namespace, ScenarioDigest
from ..services.log import LogEntry, LogFilter, read_log
from ..services.records import set_pin
from ..storage import contexts, record_texts, summaries
from .forms import AdminForm
from .rendering import PAGE_METHODS, pages_router, redirect, render_page
from .tables import LOUD, ConfigNames, ScenarioColumns

__all__ = ["TimingBar", "router", "timing_bars"]

router = pages_router()

_NEAR_TIE = 0.02
"""Relative distance to the best median within which another run could have chosen a config."""
_NEIGHBOURS = 8
_MOST_ARRIVALS = 500
_MOST_ENTRIES = 1000
_PATH = "/pages/{namespace}/contexts/{context}/scenarios/{scenario}"


class TimingBar(NamedTuple):
    """A measurement, compared with the other configs of its scenario.

    Attributes:
        measurement: The measurement.
        ratio: Its median over the best median; None if the config failed.
        share: Its median in percent of the slowest median.
        chosen: Whether readers get the config.
    """

    measurement: Measurement
    ratio: float | None
    share: int
    chosen: bool


@router.api_route(_PATH, methods=PAGE_METHODS)
def show_scenario(
    namespace: Namespace, context: ContextDigest, scenario: ScenarioDigest, call: CurrentCall
) -> Response:
    """Show why a scenario's config runs, all its measurements, neighbours and history."""
    call.principal.require("read", namespace)
    with call.database.read() as connection:
        record = _load_record(connection, namespace, context, scenario)
        text = contexts.load_text(connection, namespace, context)
        assert text is not None
        parsed = Context.model_validate_json(text)
        rows = summaries.load_contexts(connection, namespace, parsed.kernel.name)
        (own,) = (row.id for row in rows if row.digest == context)
        near = _nearest(record.scenario, summaries.load_scenarios(connection, own))
        near_by = summaries.load(connection, own, [other.digest for other, _ in near])
        elsewhere = [
            (Context.model_validate_json(row.text), loaded[scenario])
            for row in rows
            if row.id != own
            and scenario in (loaded := summaries.load(connection, row.id, [scenario]))
        ]
        arrived = record_texts.list_arrivals(
            connection, namespace, context, scenario, _MOST_ARRIVALS
        )
    call.server.reader.note_use((namespace, context))
    chosen = record.pinned or (record.winner.config if record.winner else None)
    bars = timing_bars(record, chosen)
    others = [bar for bar in bars if bar.ratio is not None and not bar.chosen]
    over_best = next((bar.ratio for bar in bars if bar.chosen), None)
    return render_page(
        "scenario.html",
        call,
        namespace,
        context=parsed,
        record=record,
        chosen=chosen,
        timing=record.by_config.get(chosen) if chosen else None,
        bars=bars,
        runner_up=others[0] if others else None,
        near=sum((bar.ratio or 0) <= 1 + _NEAR_TIE for bar in others),
        excess=over_best - 1 if over_best else 0.0,
        is_loud=record.pinned is not None and (over_best or 1) - 1 >= LOUD,
        names=ConfigNames([measurement.config for measurement in record.measurements]),
        neighbours=[
            (_differences(record.scenario, other), gap, near_by[other.digest])
            for other, gap in near
            if other.digest in near_by
        ],
        elsewhere=elsewhere,
        arrivals=[(Measurement.model_validate_json(item.text), item) for item in arrived],
        log=_log(call, namespace, parsed, record),
    )


@router.post(f"{_PATH}/pin")
def pin(
    namespace: Namespace, context: ContextDigest, scenario: ScenarioDigest, form: AdminForm
) -> Response:
    """Pin one of a scenario's measured configs, or remove the pin if the form names none."""
    call, digest = form.call, form.text("config", 24)
    config = None
    if digest:
        with call.database.read() as connection:
            record = _load_record(connection, namespace, context, scenario)
        configs = {measured.config.digest: measured.config for measured in record.measurements}
        config = configs.get(digest)
        if config is None:
            raise NotFoundError("this config was not measured in this scenario: reload the page")
    set_pin(call.database, call.principal, namespace, context, scenario, config, by="")
    return redirect(f"/pages/{namespace}/contexts/{context}/scenarios/{scenario}")


def timing_bars(record: Record, chosen: Config | None) -> list[TimingBar]:
    """Compare the configs of a scenario, fastest first, then those that failed."""
    timed = sorted(
        (measurement.median, measurement.config.text, measurement)
        for measurement in record.measurements
        if measurement.median is not None
    )
    best, slowest = (timed[0][0], timed[-1][0]) if timed else (0.0, 0.0)
    bars = [
        TimingBar(
            measurement=measurement,
            ratio=median / best if best else 1.0,
            share=max(round(100 * median / slowest) if slowest else 0, 1),
            chosen=measurement.config == chosen,
        )
        for median, _, measurement in timed
    ]
    return bars + [
        TimingBar(measurement, None, 0, measurement.config == chosen)
        for measurement in record.measurements
        if measurement.failure
    ]


def _load_record(connection: Connection, namespace: str, context: str, scenario: str) -> Record:
    stored = record_texts.load_text(connection, namespace, context, scenario)
    if stored is None or stored[1] is None:
        raise NotFoundError("there is no record of this scenario")
    return Record.model_validate_json(stored[1])


def _nearest(scenario: Scenario, texts: Mapping[str, str]) -> list[tuple[Scenario, float]]:
    others = [
        Scenario.model_validate_json(text)
        for digest, text in texts.items()
        if digest != scenario.digest
    ]
    gaps = [(other, distance(scenario, other)) for other in others]
    near = sorted(gaps, key=lambda pair: (pair[1], pair[0].text))[:_NEIGHBOURS]
    return [(other, gap) for other, gap in near if gap != float("inf")]


def _differences(scenario: Scenario, other: Scenario) -> list[tuple[str, object]]:
    columns = ScenarioColumns([scenario, other])
    return list(zip(columns.varying, columns.cells(other), strict=True))


def _log(call: Call, namespace: str, context: Context, record: Record) -> list[LogEntry] | None:
    """Return what people changed; None for those who may not read the log."""
    if not call.principal.may("admin", namespace):
        return None
    wanted = LogFilter(kernel=context.kernel.name, limit=_MOST_ENTRIES)
    page = read_log(call.database, call.principal, namespace, wanted)
    return [
        entry
        for entry in page.entries
        if entry.detail.get("context") in (None, context.digest)
        and entry.detail.get("scenario") in (None, str(record.scenario))
    ]
