"""Entry point of the command `dejavu-cache`; `dejavu_cache.errors.ExitCode` has its exit codes."""

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules

import typer

from dejavu_cache.errors import DejavuError, ExitCode

from . import commands
from .application import add_examples, app
from .output import fail, note

COMMANDS = "dejavu_cache.commands"
"""Entry-point group of further commands: functions that take the app and add commands to it."""

_EXTRAS = {
    "cryptography": "signed",
    "numpy": "sweep",
    "opentelemetry": "otel",
    "ray": "ray",
    "torch": "gpu",
    "triton": "gpu",
}
"""Extras that install packages; all others are the server's."""


def main() -> None:
    """Run the command line and exit with its code."""
    _prepare_streams()
    sys.exit(run_command())


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default this process's, and return its exit code.

    Expected errors are printed as one line.
    """
    application = all_commands()
    try:
        code = application(arguments, standalone_mode=False, prog_name="dejavu-cache")
        sys.stdout.flush()
        if code == ExitCode.INTERRUPTED:  # as Typer has it of Ctrl-C
            note("interrupted")
        return code or ExitCode.SUCCESS
    except DejavuError as error:
        fail(error)
        return error.exit_code
    except ModuleNotFoundError as error:
        return _explain_missing_package(error)
    except OSError as error:
        return _explain_system_error(error)
    except Exception as error:
        # Typer's errors of usage have no public base class in all supported versions.
        if not hasattr(error, "format_message"):
            raise
        context = getattr(error, "ctx", None)
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stderr.write(f"{error.format_message()}\n")
            return ExitCode.USAGE
        command = context.command_path if context else "dejavu-cache"
        fail(f"{error.format_message()} (see `{command} --help`)")
        return ExitCode.USAGE


@cache
def all_commands() -> typer.Typer:
    """Return the application with the commands of this package and of all installed ones."""
    for module in iter_modules(commands.__path__):
        import_module(f"{commands.__name__}.{module.name}")
    for point in sorted(entry_points(group=COMMANDS), key=lambda point: point.name):
        try:
            point.load()(app)
        except ImportError as error:
            # Commands whose extra is not installed are left out; the others still work.
            if error.name and error.name.startswith("dejavu_"):
                raise
        except Exception as error:
            note(f"the commands of {point.value} are left out: {error}")
    add_examples(app)
    return app


def _prepare_streams() -> None:
    """Open the standard streams that are closed, and have the others show any character.

    The next file to be opened would take a closed stream's descriptor, and what child processes
    print would go into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - as long as Python
            setattr(sys, name, stream)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a kernel's name may be beyond a terminal's code
            stream.reconfigure(errors="backslashreplace")


def _explain_missing_package(error: ModuleNotFoundError) -> int:
    package = (error.name or "").partition(".")[0]
    if package.startswith("dejavu_"):
        raise error
    fail(f"this needs {package}: pip install 'dejavu-cache[{_EXTRAS.get(package, 'server')}]'")
    return ExitCode.USAGE


def _explain_system_error(error: OSError) -> int:
    """Report an error of the operating system, also one of writing standard output."""
    if not isinstance(error, BrokenPipeError):
        unnamed = isinstance(error, FileNotFoundError)  # as `os.getcwd` raises it
        subject = error.filename or ("the working directory" if unnamed else "standard output")
        fail(f"{subject}: {error.strerror or error}")
    with suppress(OSError):  # else the interpreter would try again to flush, and fail with 120
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.NEGATIVE if isinstance(error, BrokenPipeError) else ExitCode.UNUSABLE
