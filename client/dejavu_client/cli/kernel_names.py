"""Names of kernels on the command line: full, their ends, globs, and suggestions for mistakes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from .errors import NothingFoundError

__all__ = ["kernel_matches", "matching_kernels", "shorten_kernels"]


def kernel_matches(name: str, pattern: str) -> bool:
    """Return whether a kernel's name is the pattern or ends with it, by whole components.

    Args:
        name: the kernel's module and qualified name.
        pattern: a name, the end of one, or a glob such as `*attention*`; empty matches all.
    """
    if not pattern:
        return True
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def matching_kernels(names: Iterable[str], pattern: str, url: str) -> list[str]:
    """Return the kernels that a pattern names, sorted; an exact name matches no other kernel.

    Args:
        names: all kernels.
        pattern: as for `kernel_matches`.
        url: where the kernels are, for the error message.

    Raises:
        NothingFoundError: no kernel matches; the message suggests similar names.
    """
    names = sorted(set(names))
    if pattern in names:
        return [pattern]
    matches = [name for name in names if kernel_matches(name, pattern)]
    if not matches:
        raise NothingFoundError(_explain_no_kernel(names, pattern, url))
    return matches


def shorten_kernels(names: Sequence[str]) -> list[str]:
    """Return the shortest end of each name, by whole components, that names no other kernel."""
    ends = {name: _shortest_end(name, {*names} - {name}) for name in names}
    return [ends[name] for name in names]


def _shortest_end(name: str, others: Collection[str]) -> str:
    parts = name.split(".")
    for count in range(1, len(parts)):
        end = ".".join(parts[-count:])
        if not any(kernel_matches(other, end) for other in others):
            return end
    return name


def _explain_no_kernel(names: list[str], pattern: str, url: str) -> str:
    if not names:
        return f"{url} holds no records"
    ends = {name.rpartition(".")[2]: name for name in names}
    candidates = [*names, *ends]
    close = get_close_matches(pattern.strip("*"), candidates, n=3, cutoff=0.6)
    close += [name for end, name in ends.items() if pattern.strip("*").lower() in name.lower()]
    suggestions = list(dict.fromkeys(ends.get(name, name) for name in close))[:3]
    remedy = (
        f"did you mean {' or '.join(suggestions)}?"
        if suggestions
        else "`dejavu-cache ls` lists the kernels"
    )
    return f"{url} has no kernel {pattern!r}; {remedy}"
