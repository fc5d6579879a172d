"""Exceptions of all packages of the project, under one root.

`drop_own_frames` shows authors their own errors as Triton shows them.
"""

import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from types import TracebackType
from typing import Any


class ExitCode(IntEnum):
    """Exit codes of the commands; docs/cli.md describes them."""

    SUCCESS = 0
    NEGATIVE = 1
    """The answer is no: something is wrong, differs, or was not found."""
    USAGE = 2
    UNUSABLE = 3
    """A store, server, database or file is missing, unreachable, damaged or full."""
    REFUSED = 4
    """The token or the store does not allow it."""
    PARTIAL = 5
    """Some of it was done; the message names the rest."""
    INTERRUPTED = 130


class DejavuError(Exception):
    """Root of the project's exceptions.

    Attributes:
        exit_code: the code with which a command ends that raises the error.
    """

    exit_code: ExitCode = ExitCode.UNUSABLE


class SettingsError(DejavuError, ValueError):
    """A setting or an argument is wrong; the message names it and what is accepted."""

    exit_code = ExitCode.USAGE


class KeyArgumentError(DejavuError, TypeError):
    """A key argument has a value that records cannot represent; the message names the argument."""


class NoValidConfigError(DejavuError, RuntimeError):
    """No config of a scenario can run.

    Attributes:
        reasons: the failure of every config, by the config's text.
    """

    def __init__(self, kernel: str, scenario: str, reasons: Mapping[str, str]) -> None:
        """Compose the message from the kernel, the scenario and the failures."""
        self.reasons = dict(reasons)
        lines = "\n".join(f"  {config}: {reason}" for config, reason in self.reasons.items())
        super().__init__(f"no config of {kernel} can run {scenario}; each one failed:\n{lines}")


class ScenarioNotTuned(DejavuError, LookupError):  # noqa: N818 - a public name
    """Strict mode met a scenario without a usable record."""


class UncomparedResultsError(DejavuError, RuntimeError):
    """The machine could not compute the default config's results, so no other config may win."""


class NothingComparedError(UncomparedResultsError):
    """Nothing that a launch writes can be compared, so no config but the default may win.

    Attributes:
        results: why, by output, as `model.record.OutputVerdict`s.
    """

    def __init__(self, reason: str, results: Mapping[str, Any]) -> None:
        """Say why nothing can be compared."""
        super().__init__(reason)
        self.results = results


class TooFewRecordsError(DejavuError, LookupError):
    """A decision tree needs more tuned scenarios; the message says how many."""

    exit_code = ExitCode.NEGATIVE


class UnknownDeviceError(DejavuError):
    """Records cannot describe the current device, so Triton tunes its kernels alone."""


class UnsupportedTritonError(DejavuError, ImportError):
    """The installed Triton is too old; the message names its version."""

    exit_code = ExitCode.USAGE


class PrewarmError(DejavuError):
    """A folder cannot be prewarmed as asked, or a prewarmed one be used; the message says why."""


class StoreError(DejavuError):
    """A store cannot do what was asked."""


class ReadOnlyStoreError(StoreError):
    """The store may only be read."""

    exit_code = ExitCode.REFUSED


class NewerFormatError(StoreError):
    """The records were written in a newer format than this version reads."""

    def __init__(self, where: str, version: int, newest: int) -> None:
        """Compose the message; this version of the package reads formats up to `newest`."""
        super().__init__(
            f"{where} has format {version}, and this version of dejavu-cache reads up to {newest}: "
            "upgrade dejavu-cache; the file is left as it is"
        )


class DamagedRecordsError(StoreError):
    """The bytes are not a record set."""


def did_you_mean(name: object, known: Iterable[str], prefix: str = "") -> str:
    """Return the end of a message about an unknown name: the nearest known one, or else all.

    Names that begin with the same prefix are compared without it.
    """
    from difflib import get_close_matches  # here, since only mistakes need it

    by_lower_case = {choice.removeprefix(prefix).lower(): choice for choice in known}
    wanted = str(name).strip().removeprefix(prefix).lower()
    nearest = get_close_matches(wanted, by_lower_case, n=1)
    if nearest:
        return f"did you mean {by_lower_case[nearest[0]]!r}?"
    return f"choose from {', '.join(by_lower_case.values()) or 'nothing, for there is none'}"


def problem_text(problem: Mapping[str, Any]) -> str:
    """Return what one of the problems of a `pydantic.ValidationError` says to a person."""
    message = str(problem["msg"])
    if problem["type"] in ("enum", "literal_error"):
        return did_you_mean(problem["input"], filter(None, re.findall(r"'([^']*)'", message)))
    if problem["type"] == "sequence_str":
        return f"give a list: [{problem['input']!r}]"
    return message.removeprefix("Value error, ")


def describe_problems(problems: Iterable[Mapping[str, Any]]) -> str:
    """Return the places of all problems of an error, and what each says to a person."""
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {problem_text(one)}" for one in problems)


_OWN = __name__.partition(".")[0]

_NEEDED = sys.stdlib_module_names | {"filelock", "httpx", "platformdirs", "pydantic"}
"""Packages whose errors, where this one has called them, are about this one."""


def drop_own_frames(error: BaseException) -> None:
    """Take this package's calls out of the traceback of an author's error.

    A config's hook, a pruning function, a benchmark function, a heuristic or the kernel itself may
    raise. Some thirty calls of this package lie between the launch and what failed: they are of no
    help to the author, and hide the lines that are. Python 3.10 keeps the call that caught it.
    An error of this package stays as it is, as does every error if debug messages are logged.
    """
    entries = list(_walk(error.__traceback__))
    packages = [entry.tb_frame.f_globals.get("__name__", "").partition(".")[0] for entry in entries]
    if _OWN not in packages or logging.getLogger(_OWN).isEnabledFor(logging.DEBUG):
        return
    end = len(packages) - packages[::-1].index(_OWN)
    if end == len(packages) or packages[end] in _NEEDED:
        return
    shown = entries[end]
    start = packages.index(_OWN)
    for place in reversed(range(end)):
        is_between = place >= start and packages[place] in sys.stdlib_module_names
        if packages[place] != _OWN and not is_between:
            frame = entries[place]
            shown = TracebackType(shown, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    error.__traceback__ = entries[0].tb_next = shown  # 3.10 raises the first entry again


def _walk(entry: TracebackType | None) -> Iterator[TracebackType]:
    while entry is not None:
        yield entry
        entry = entry.tb_next
