"""A scenario: why its config runs, all its measurements, its neighbours and its history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dejavu_cache.model.record import Measurement, Record
from dejavu_cache.model.scenario import Config, Context, Scenario
from dejavu_cache.model.selection import distance

from ..errors import NotFoundError
from ..services.access import Principal
from ..services.log import LogEntry, read_log
from ..storage import contexts, coverage, records, summaries
from ..storage.database import Database
from ..storage.log import LogFilter
from ..storage.summaries import Summary
from .columns import ConfigNames, ScenarioColumns
from .context import LOUD
from .views import ScenarioRow, TimingBar, scenario_row

__all__ = ["ScenarioView", "find_config", "scenario_page"]

_NEIGHBOURS = 8
_MOST_ARRIVALS = 500
_MOST_ENTRIES = 1000


class Neighbour(NamedTuple):
    """Another scenario of the context, how far away it is, and its values that differ."""

    digest: str
    distance: float
    differing: dict[str, Any]
    summary: Summary


class Elsewhere(NamedTuple):
    """The same scenario in another context of the kernel."""

    digest: str
    context: Context
    summary: Summary


class ArrivalView(NamedTuple):
    """A measurement that arrived, who sent it when, and whether readers get it."""

    measurement: Measurement
    stands: bool
    sender: str
    received_at: float


class ScenarioView(NamedTuple):
    """A scenario as its page shows it.

    Attributes:
        context: The context.
        row: The record, compared.
        names: The short names of the configs.
        best: The fastest config's timing.
        runner_up: The fastest config after the one that readers get.
        excess: The share by which the chosen config is slower than the best.
        neighbours: The nearest scenarios of the context.
        elsewhere: The same scenario on other GPUs and Tritons.
        arrivals: The measurements in the order in which they arrived, newest first.
        log: What people changed; None for those who may not read the log.
    """

    context: Context
    row: ScenarioRow
    names: ConfigNames
    best: TimingBar | None
    runner_up: TimingBar | None
    excess: float | None
    neighbours: list[Neighbour]
    elsewhere: list[Elsewhere]
    arrivals: list[ArrivalView]
    log: list[LogEntry] | None

    @property
    def is_loud(self) -> bool:
        """Return whether a person's choice costs 5% or more."""
        return self.row.record.pinned is not None and (self.excess or 0) >= LOUD


def scenario_page(
    database: Database, principal: Principal, namespace: str, digest: str, scenario: str
) -> ScenarioView:
    """Load a scenario with all that is known of it.

    Raises:
        AccessDeniedError: The principal may not read the namespace.
        NotFoundError: There is no record of the scenario.
    """
    principal.require("read", namespace)
    with database.read() as connection:
        text = contexts.load_text(connection, namespace, digest)
        stored = records.load_text(connection, namespace, digest, scenario)
        if text is None or stored is None or stored[1] is None:
            raise NotFoundError("there is no record of this scenario")
        context = Context.model_validate_json(text)
        record = Record.model_validate_json(stored[1])
        rows = coverage.load_contexts(connection, namespace, context.kernel.name)
        own = next(row for row in rows if row.digest == digest)
        near = _nearest(record.scenario, coverage.load_scenarios(connection, own.id))
        near_summaries = summaries.load(connection, own.id, [entry.digest for entry, _ in near])
        elsewhere = [
            Elsewhere(row.digest, Context.model_validate_json(row.text), loaded[scenario])
            for row in rows
            if row.id != own.id
            and scenario in (loaded := summaries.load(connection, row.id, [scenario]))
        ]
        arrived = records.list_arrivals(connection, namespace, digest, scenario, _MOST_ARRIVALS)
    neighbours = [
        Neighbour(
            entry.digest, gap, _differences(record.scenario, entry), near_summaries[entry.digest]
        )
        for entry, gap in near
        if entry.digest in near_summaries
    ]
    row = scenario_row(record)
    timed = [bar for bar in row.bars if bar.ratio is not None]
    chosen = next((bar for bar in timed if bar.chosen), None)
    return ScenarioView(
        context=context,
        row=row,
        names=ConfigNames([measurement.config for measurement in record.measurements]),
        best=timed[0] if timed else None,
        runner_up=next((bar for bar in timed if not bar.chosen), None),
        excess=chosen.ratio - 1 if chosen and chosen.ratio else None,
        neighbours=neighbours,
        elsewhere=elsewhere,
        arrivals=[
            ArrivalView(Measurement.model_validate_json(item.text), *item[1:]) for item in arrived
        ],
        log=_log(database, principal, namespace, context, record),
    )


def find_config(
    database: Database, namespace: str, context: str, scenario: str, digest: str
) -> Config:
    """Return the measured config of a record that has a digest.

    Raises:
        NotFoundError: There is no record of the scenario, or it has no such config.
    """
    with database.read() as connection:
        stored = records.load_text(connection, namespace, context, scenario)
    if stored is not None and stored[1] is not None:
        for measurement in Record.model_validate_json(stored[1]).measurements:
            if measurement.config.digest == digest:
                return measurement.config
    raise NotFoundError("this config was not measured in this scenario: reload the page")


def _nearest(scenario: Scenario, texts: Mapping[str, str]) -> list[tuple[Scenario, float]]:
    others = [
        Scenario.model_validate_json(text)
        for digest, text in texts.items()
        if digest != scenario.digest
    ]
    gaps = [(other, distance(scenario, other)) for other in others]
    near = sorted(gaps, key=lambda pair: (pair[1], pair[0].text))[:_NEIGHBOURS]
    return [(other, gap) for other, gap in near if gap != float("inf")]


def _differences(scenario: Scenario, other: Scenario) -> dict[str, Any]:
    columns = ScenarioColumns([scenario, other])
    return dict(zip(columns.varying, columns.cells(other), strict=True))


def _log(
    database: Database, principal: Principal, namespace: str, context: Context, record: Record
) -> list[LogEntry] | None:
    if not principal.may("admin", namespace):
        return None
    wanted = LogFilter(namespace=namespace, kernel=context.kernel.name)
    page = read_log(database, principal, wanted, _MOST_ENTRIES)
    return [
        entry
        for entry in page.entries
        if entry.detail.get("context") in (None, context.digest)
        and entry.detail.get("scenario") in (None, str(record.scenario))
    ]
