"""Check the results of recorded winners on this machine's GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import NamedTuple

from ..model.record import Failure, Measurement, OutputVerdict, Record
from ..runtime.record_lookup import best_config
from ..runtime.request import Request
from ..runtime.winner_check import WinnerCheck
from ..stores import Store
from ..tuning.config_failures import failed_measurement
from ..tuning.result_check import CheckOptions, sum_up
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
        verdict: the outcome over all outputs, and its reason.
        outputs: the verdict on each output.
    """

    case: str
    kernel: str
    scenario: str
    config: str
    verdict: OutputVerdict
    outputs: dict[str, OutputVerdict]


def audit_winners(cases: Iterable[Case], store: Store) -> Iterator[AuditedWinner]:
    """Compare each recorded winner's results with the default's, on the arguments of its case.

    A winner that is wrong is recorded as such, so that no machine that shares the store runs it.

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
            outputs = check.check(request.declared[best])
        verdict = sum_up(outputs)
        if verdict.outcome == "wrong" and not store.read_only:
            failure = Failure(kind="wrong", reason=verdict.reason)
            _put(store, request, failed_measurement(best, failure))
        yield AuditedWinner(
            case.name,
            request.context.kernel.name,
            str(request.scenario),
            str(best),
            verdict,
            outputs,
        )


def _put(store: Store, request: Request, measurement: Measurement) -> None:
    record = Record(scenario=request.scenario, measurements=(measurement,))
    store.put_now(request.context, [record])
