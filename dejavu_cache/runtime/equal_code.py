"""Take over records of equal code under another key, and refuse those of other code.

Triton's key of a kernel changes with each edit, and stays where an edit is none of its text: the
IR that Triton generates decides in both cases.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..model.record import Record
from ..model.scenario import Context, now
from ..stores import Found
from ..system.notices import logger
from ..triton_internals.environment import is_capturing_graph, is_interpreting
from ..triton_internals.generated_code import find_other_code, generates_equal_code
from ..triton_internals.identity import is_decorated_alike
from .request import Request
from .service_phase import may_benchmark
from .tolerant_store import TolerantStore

__all__ = ["OtherCodeError", "adopt_equal_code", "refuse_other_code"]


class OtherCodeError(Exception):
    """Triton generates other code for a launch than its key's record was measured with.

    Attributes:
        code: what it generates.
    """

    def __init__(self, code: str) -> None:
        """Keep the code."""
        super().__init__(code)
        self.code = code


def adopt_equal_code(request: Request, store: TolerantStore) -> Found | None:
    """Return the scenario's record of equal code under another key, and keep it under this one.

    The winner's code is generated from the kernel of today, for a launch that was recorded with it.
    """
    if request.not_stored or is_interpreting():
        return None
    for found, is_same_scenario in _candidates(request, store):
        if not _is_equal(request, found.record, is_same_scenario=is_same_scenario):
            continue
        adopted = found.record.as_adopted(now()).model_copy(update={"scenario": request.scenario})
        store.put(request.context, adopted)
        name = request.context.kernel.name
        logger.info("%s%s: recorded of equal code before an edit", name, request.scenario)
        return Found(adopted, found.store)
    return None


def _candidates(request: Request, store: TolerantStore) -> Iterator[tuple[Found, bool]]:
    """Yield records that differ in nothing but keys, and whether they are of the same scenario."""
    wanted = request.scenario.without_keys
    for context in (request.context, *store.other_contexts(request.context)):
        if context != request.context:
            if not _may_be_equal(context, request.context):
                continue
            if found := store.get(context, request.scenario):
                yield found, True
        if wanted == request.scenario:
            continue
        for scenario in store.list_scenarios(context):
            is_other = scenario != request.scenario and scenario.without_keys == wanted
            if is_other and (found := store.get(context, scenario)):
                yield found, False


def refuse_other_code(request: Request, record: Record) -> None:
    """Compare the code of a recorded winner, which this launch is about to run, with the record's.

    Raises:
        OtherCodeError: it is other code, by what no key sees: a patched method of Triton's
            language, a function that reads a file, another value of a module's attribute.
    """
    winner = record.winner
    if winner is None or winner.config not in request.declared or not _may_compile():
        return
    code = find_other_code(
        request.autotuner,
        record.launches or (),
        request.declared[winner.config],
        request.args,
        request.kwargs,
    )
    if code is not None:
        raise OtherCodeError(code)


def _may_be_equal(context: Context, wanted: Context) -> bool:
    """Return whether two contexts differ in nothing but Triton's key of the kernel."""
    return (
        context.environment == wanted.environment
        and context.problem == wanted.problem
        and is_decorated_alike(context.kernel.source, wanted.kernel.source)
    )


def _is_equal(request: Request, record: Record, *, is_same_scenario: bool) -> bool:
    winner = record.winner
    if winner is None or not record.is_finished or winner.config not in request.declared:
        return False
    config, launches = request.declared[winner.config], record.launches or ()
    if not generates_equal_code(request.autotuner.fn, launches, winner.config, config):
        return False
    if not _may_compile():
        return is_same_scenario
    # What heuristics compute is no part of what was recorded to be generated again.
    other = find_other_code(
        request.autotuner,
        launches,
        config,
        request.args,
        request.kwargs,
        is_same_scenario=is_same_scenario,
    )
    return other is None


def _may_compile() -> bool:
    """Return whether the launch may compile before it runs: not while a request waits for it."""
    return may_benchmark() and not (is_interpreting() or is_capturing_graph())
