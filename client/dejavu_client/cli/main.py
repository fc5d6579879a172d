"""Entry point of the command `dejavu-cache`.

Exit codes: 0 success; 1 a check failed, or something differs or was not found; 2 wrong usage; 3 the
store or the bundle cannot be used; 130 a sweep was interrupted.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

import typer

from dejavu_cache.errors import DejavuError, SettingsError

from .commands import (
    audit,
    bundle,
    doctor,
    heuristics,
    inspection,
    prewarm,
    remote,
    rename,
    report,
    run,
    sweep,
    transfer,
    upkeep,
)

__all__ = ["app", "main"]

COMMANDS = "dejavu_cache.commands"
"""Entry-point group of further commands: functions that take the app and add commands to it."""

WRONG_USAGE, UNUSABLE_STORE = 2, 3

EXTRAS = {
    "jinja2": "sweep",
    "numpy": "sweep",
    "optuna": "sweep",
    "ray": "ray",
    "sklearn": "sweep",
    "torch": "gpu",
    "triton": "gpu",
    "zstandard": "bundle",
}
"""Extra that installs a missing package; all packages not listed here belong to `server`."""

app = typer.Typer(
    name="dejavu-cache",
    help="Tuning results of Triton kernels: look at them, move them, keep them in order.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for family in (
    inspection,
    transfer,
    upkeep,
    rename,
    remote,
    run,
    sweep,
    audit,
    heuristics,
    report,
    prewarm,
    bundle,
    doctor,
):
    family.register(app)


def main() -> None:
    """Run the command line and exit with its code; print expected errors as one line."""
    _mount_plugins()
    try:
        app()
    except SettingsError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(WRONG_USAGE)
    except DejavuError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(UNUSABLE_STORE)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package.startswith("dejavu_"):
            raise
        extra = EXTRAS.get(package, "server")
        sys.stderr.write(f"error: this needs {package}: pip install 'dejavu-cache[{extra}]'\n")
        sys.exit(WRONG_USAGE)


def _mount_plugins() -> None:
    for point in sorted(entry_points(group=COMMANDS), key=lambda point: point.name):
        try:
            point.load()(app)
        except ImportError as error:
            # Commands whose extra is not installed are left out; the others still work.
            if error.name and error.name.startswith("dejavu_"):
                raise
        except Exception as error:
            sys.stderr.write(f"warning: the commands of {point.value} are left out: {error}\n")
