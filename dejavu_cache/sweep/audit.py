"""Check the results of recorded winners on this machine's GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import NamedTuple

from ..model.record import Failure, OutputVerdict, Record, Winner, are_compared, sum_up
from ..model.scenario import Config, moment_after
from ..model.selection import trusted_configs
from ..runtime.record_lookup import best_config
from ..runtime.request import Request
from ..runtime.winner_check import WinnerCheck
from ..stores import Store
from ..tuning.config_failures import failed_measurement
from ..tuning.result_check import CheckOptions
from .requests import make_request
from .suite import Case

__all__ = ["AuditedWinner", "audit_winners"]


class AuditedWinner(NamedTuple):
    """A recorded winner and how its results compare with the default config's.

    Attributes:
        case: the name of the case that was launched.
        kernel: the kernel's name.
        scenario: the scenario as text.
        config: the winner as text.
        results: what comparing each output has shown.
    """

    case: str
    kernel: str
    scenario: str
    config: str
    results: dict[str, OutputVerdict]

    @property
    def verdict(self) -> OutputVerdict:
        """The outcome over all outputs, and its reason."""
        return sum_up(self.results)


def audit_winners(cases: Iterable[Case], store: Store) -> Iterator[AuditedWinner]:
    """Compare each recorded winner's results with the default's, on the arguments of its case.

    What that shows is recorded: no machine that shares the store runs a winner that is wrong, and
    none compares one again that is right.

    Args:
        cases: the cases to launch; those without a record of this device are left out.
        store: the store with the records.

    Raises:
        StoreError: the store cannot be read or written.
    """
    for case in cases:
        request = make_request(case)
        stored = store.get(request.context, request.scenario, fresh=True)
        best = best_config(request, stored.record) if stored else None
        if best is None:
            continue
        with closing(WinnerCheck(request, request.check or CheckOptions())) as check:
            results = dict(check.check(request.declared[best]))
        name, scenario = request.context.kernel.name, str(request.scenario)
        audited = AuditedWinner(case.name, name, scenario, str(best), results)
        if stored is not None and not store.read_only:
            addition = _addition(request, stored.record, best, audited)
            if addition is not None:
                store.put_now(request.context, [addition])
        yield audited


def _addition(
    request: Request, record: Record, best: Config, audited: AuditedWinner
) -> Record | None:
    """Return what an audit adds to a record, or None."""
    if audited.verdict.outcome == "wrong":
        failed = failed_measurement(best, Failure(kind="wrong", reason=audited.verdict.reason))
        return Record(scenario=request.scenario, measurements=(failed,))
    if not are_compared(audited.results) or best in trusted_configs(record, None):
        return None
    at = moment_after(record.winner.at if record.winner else None)
    winner = Winner(config=best, at=at, results=audited.results)
    return Record(scenario=request.scenario, winner=winner)
