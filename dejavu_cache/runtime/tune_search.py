"""The configs that a tune measures, in their order, and the earlier measurements that it uses."""

from __future__ import annotations

import importlib.util

from ..model.credibility import is_credible
from ..model.record import Measurement, Record
from ..model.scenario import Config
from ..system.notices import warn_once
from ..system.provenance import whoami
from ..triton_internals.config_names import describe
from ..tuning.config_failures import is_repeatable
from ..tuning.search import Exhaustive, OptunaSearch, Search
from .request import Request

__all__ = ["earlier_measurements", "make_search", "may_launch_default"]


def make_search(request: Request, record: Record, due: list[Config]) -> Search:
    """Return the search through the configs to measure, as far as the budget goes.

    Args:
        request: the scenario and its budget.
        record: what is known of it.
        due: the configs left to measure, in order.
    """
    limit = request.budgeted_count(len(due))
    if request.budget.strategy != "optuna" or not _has_optuna():
        return Exhaustive(due[:limit])
    unmeasured = {*request.unmeasured_configs(record)}
    measured = [entry for entry in record.measurements if entry.config not in unmeasured]
    default = describe(request.default)
    return OptunaSearch(
        request.declared, measured, [default] if due[:1] == [default] else [], limit
    )


def may_launch_default(request: Request, record: Record) -> bool:
    """Return whether nothing says that the default config's launch fails here, or ends programs.

    What compilers and other machines have reported may be different by now, or here.
    """
    default = record.by_config.get(describe(request.default))
    if default is None or default.failure is None or default.skipped:
        return True
    is_lasting = default.by == whoami() and not is_repeatable(default.failure)
    return default.failure.kind != "crash" and not is_lasting


def earlier_measurements(request: Request, record: Record) -> list[Measurement]:
    """Return this machine's timings of a scenario that was not raced yet: they join the race."""
    if record.winner is not None:
        return []
    return [
        measurement
        for measurement in record.measurements
        if measurement.by == whoami() and is_credible(measurement, request.shortest_timing)
    ]


def _has_optuna() -> bool:
    is_installed = importlib.util.find_spec("optuna") is not None
    if not is_installed:
        warn_once(
            "optuna",
            "optuna is not installed, so the first configs are measured: "
            "pip install 'dejavu-cache[sweep]'",
        )
    return is_installed
