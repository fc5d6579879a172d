"""Errors of commands that are no errors of the library.

DejavuError
├── NothingFoundError      a name or a pattern matches nothing
└── PartlyDoneError        some of what was asked is done
"""

from importlib import import_module

from dejavu_cache.errors import DejavuError, ExitCode


class NothingFoundError(DejavuError, LookupError):
    """A name or a pattern matches nothing; the message names it and where it was looked for."""

    exit_code = ExitCode.NEGATIVE


class PartlyDoneError(DejavuError):
    """Some of what was asked is done; the message names the rest."""

    exit_code = ExitCode.PARTIAL


def require_triton() -> None:
    """Raise here rather than in a child process if Triton is missing or too old."""
    import_module("dejavu_cache.triton_internals.versions")
