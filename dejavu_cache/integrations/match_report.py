"""Report how many results of other autotuners launches can take over, and on which condition."""

from __future__ import annotations

from collections.abc import Iterable

from ..model.foreign_result import ForeignResult, version_order

__all__ = ["report_matches"]

_SHOWN = 4
"""Versions of Triton that are named."""


def report_matches(results: Iterable[ForeignResult], installed: str) -> list[str]:
    """Return lines that say which results can match a launch here.

    Args:
        results: as they were read.
        installed: the version of Triton; empty where it is not installed.
    """
    every = [result for result in results if not result.proof]  # Triton's own prove their kernel
    if not every:
        return []
    named = [result for result in every if result.named]
    ordered = [result for result in every if not result.named and _has_dtypes(result)]
    lost = len(every) - len(named) - len(ordered)
    ways = [
        f"{len(named)} by the names of arguments" if named else "",
        f"{len(ordered)} by their order and dtypes" if ordered else "",
        f"{lost} never, as they have neither names nor dtypes" if lost else "",
    ]
    usable = [*named, *ordered]
    versions = {result.triton for result in usable} - {"", installed}
    other = sorted(versions, key=version_order, reverse=True)
    strangers = sum(result.triton in other for result in usable)
    lines = [f"match: {', '.join(filter(None, ways))}"]
    if strangers:
        shown = ", ".join([*other[:_SHOWN], *(["…"] if len(other) > _SHOWN else [])])
        here = f"Triton {installed}" if installed else "the Triton that will run"
        lines.append(
            f"{len(usable) - strangers} of these are of {here} or of no version; {strangers} of "
            f"others ({shown}) serve with DEJAVU_CACHE_TOOLCHAIN=loose"
        )
    return lines


def _has_dtypes(result: ForeignResult) -> bool:
    return any(value.startswith("torch.") for value in result.key)
