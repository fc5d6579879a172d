"""What a server tells those who run it: metrics for Prometheus, and its log as JSON lines."""

import json
import logging
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError

from .services import leases
from .storage import contexts
from .storage.database import Database

_MOST_SERIES = 1000
"""Numbers of records that are told apart: each writer can invent names."""
_OTHERS = "(others)"
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30)


class Metrics:
    """The counters of one replica, and gauges computed from the database."""

    def __init__(self, database: Database) -> None:
        """Create the metrics in a registry of their own."""
        self._registry = CollectorRegistry()
        requests = Counter(
            "dejavu_requests",
            "Requests answered",
            ["method", "route", "status"],
            registry=self._registry,
        )
        seconds = Histogram(
            "dejavu_request_seconds",
            "Time to answer",
            ["route"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        # Looking up a metric by its labels costs more than counting.
        self._requests, self._seconds = cache(requests.labels), cache(seconds.labels)
        self._registry.register(_DatabaseGauges(database))

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request and the seconds it took."""
        self._requests(method, route, status).inc()
        self._seconds(route).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in the exposition format."""
        return generate_latest(self._registry)


class _DatabaseGauges(Collector):
    """Gauges read from the database at each scrape, so that all replicas report the same."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def collect(self) -> Iterator[GaugeMetricFamily]:
        up = GaugeMetricFamily("dejavu_database_up", "Whether the database answers, undamaged")
        leases_held = GaugeMetricFamily("dejavu_leases_held", "Scenarios being tuned now")
        records = GaugeMetricFamily(
            "dejavu_records", "Records", labels=["namespace", "kernel", "device"]
        )
        try:
            with self._database.read() as connection:
                leases_held.add_metric([], leases.count_held(connection))
                listed = contexts.count_records_per_device(connection, _MOST_SERIES)
                rest = contexts.count_records(connection) - sum(row[-1] for row in listed)
                for *labels, count in listed:
                    records.add_metric(labels, count)
                if rest > 0:
                    records.add_metric([_OTHERS] * 3, rest)
        except SQLAlchemyError:
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 0 if self._database.is_damaged else 1)
        yield from (up, leases_held, records)


class _JsonFormatter(logging.Formatter):
    """Formats time, level, logger, message and the fields of `extra={"fields": …}`."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, timezone.utc)
        line = {
            "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_log(level: str) -> None:
    """Send all logs of at least this level to stderr as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)
