"""What Prometheus is told."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError

from .storage import contexts, leases
from .storage.database import Database

__all__ = ["Metrics"]

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30)


class Metrics:
    """The counters of one replica, and what the database holds."""

    def __init__(self, database: Database) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "dejavu_requests",
            "Requests answered",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "dejavu_request_seconds",
            "Time to answer",
            ["route"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        lookups = Counter(
            "dejavu_lookups", "Reads of records by outcome", ["outcome"], registry=self._registry
        )
        self.hits, self.unchanged, self.misses = (
            lookups.labels(each) for each in ("hit", "unchanged", "miss")
        )
        self._known: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._registry.register(_Holdings(database))

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts one request."""
        found = self._known.get((method, route, status))
        if found is None:
            found = self._requests.labels(method, route, str(status)), self._seconds.labels(route)
            self._known[method, route, status] = found
        found[0].inc()
        found[1].observe(seconds)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self._registry)


class _Holdings(Collector):
    """Asked of the database when somebody scrapes: every replica says the same."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        up = GaugeMetricFamily("dejavu_database_up", "Whether the database answers")
        held = GaugeMetricFamily("dejavu_leases_held", "Scenarios being tuned now")
        kept = GaugeMetricFamily(
            "dejavu_records", "Records", labels=["namespace", "kernel", "device"]
        )
        try:
            with self._database.read() as connection:
                held.add_metric([], leases.held(connection))
                for namespace, kernel, device, count in contexts.per_device(connection):
                    kept.add_metric([namespace, kernel, device], count)
        except SQLAlchemyError:
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield from (up, held, kept)
