"""Differences between the records of two stores, GPUs or versions of Triton."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from dejavu_cache.model.record import Measurement, Record
from dejavu_cache.model.scenario import Context
from dejavu_cache.stores import Store

from .kernel_names import kernel_matches
from .record_queries import context_matches, last_measured, winning_measurement

__all__ = ["ComparedSide", "differences", "environment_differences"]


class ComparedSide(NamedTuple):
    """One side of a comparison: a store, and the GPU and version of Triton that count there."""

    store: Store
    device: str
    triton: str

    def contexts(self, kernel: str) -> dict[tuple[str, ...], Context]:
        """Return by kernel, source and problem the context that was tuned last."""
        newest: dict[tuple[str, ...], tuple[datetime, Context]] = {}
        for context in self.store.contexts():
            if context_matches(context, kernel, self.device, self.triton):
                identity = context.kernel
                key = (identity.name, identity.source, context.problem.model_dump_json())
                candidate = last_measured(self.store.records(context)), context
                newest[key] = max(newest.get(key, candidate), candidate, key=lambda item: item[0])
        return {key: context for key, (_, context) in newest.items()}


def environment_differences(
    left: ComparedSide, right: ComparedSide, kernel: str
) -> Iterator[dict[str, Any]]:
    """Yield the scenarios whose winners differ between two GPUs or Tritons, or that one lacks.

    Args:
        left: one side.
        right: the other side.
        kernel: as for `kernel_matches`.
    """
    left_contexts, right_contexts = left.contexts(kernel), right.contexts(kernel)
    for key in sorted({*left_contexts, *right_contexts}):
        contexts = left_contexts.get(key), right_contexts.get(key)
        sides = [
            {record.scenario: record for record in side.store.records(context)} if context else {}
            for side, context in zip((left, right), contexts, strict=True)
        ]
        named = [
            f"{context.environment.device.name}, Triton {context.environment.triton}"
            if context
            else "nothing"
            for context in contexts
        ]
        context = contexts[0] or contexts[1]
        assert context is not None
        for scenario in sorted({*sides[0], *sides[1]}, key=lambda scenario: scenario.text):
            row = _difference(context, sides[0].get(scenario), sides[1].get(scenario))
            if row and (row["what"] == "winner" or row["what"].startswith("only in")):
                yield {**row, "device": " | ".join(named)}


def differences(left: Store, right: Store, kernel: str) -> Iterator[dict[str, Any]]:
    """Yield what differs between two stores, for kernels that `kernel_matches`, by scenario."""
    contexts = {
        context
        for context in (*left.contexts(), *right.contexts())
        if kernel_matches(context.kernel.name, kernel)
    }
    for context in sorted(contexts, key=lambda context: context.text):
        left_records = {record.scenario: record for record in left.records(context)}
        right_records = {record.scenario: record for record in right.records(context)}
        scenarios = {*left_records, *right_records}
        for scenario in sorted(scenarios, key=lambda scenario: scenario.text):
            row = _difference(context, left_records.get(scenario), right_records.get(scenario))
            if row:
                yield row


def _difference(
    context: Context, left: Record | None, right: Record | None
) -> dict[str, Any] | None:
    if left == right:
        return None
    left_winner = winning_measurement(left) if left else None
    right_winner = winning_measurement(right) if right else None
    if left is None or right is None:
        what = "only in A" if left else "only in B"
    elif left_winner and right_winner and left_winner.config != right_winner.config:
        what = "winner"
    elif left.by_config.keys() != right.by_config.keys():
        what = "configs measured"
    elif left.by_config != right.by_config:
        what = "timings"
    else:
        what = "pin" if left.pin != right.pin else "winner's date, verdicts or launches"
    return {
        "kernel": context.kernel.name,
        "device": context.environment.device.name,
        "scenario": str((left or right).scenario),  # type: ignore[union-attr]
        "what": what,
        "a": str(left_winner.config) if left_winner else None,
        "b": str(right_winner.config) if right_winner else None,
        "cost": _cost(left, left_winner, right_winner) if what == "winner" else None,
    }


def _cost(
    left: Record | None, left_winner: Measurement | None, right_winner: Measurement | None
) -> float | None:
    """Return the time of B's winner by A's measurements, as a multiple of A's winner's time."""
    if left is None or left_winner is None or right_winner is None:
        return None
    measured = left.by_config.get(right_winner.config)
    if measured is None or measured.median is None or not left_winner.median:
        return None
    return round(measured.median / left_winner.median, 3)
