"""The command `dejavu-cache`.

Exit codes: 0 it is as it should be; 1 something is wrong, or differs, or a check failed; 2 the command was
given wrongly; 3 the store or the bundle cannot be used; 130 a sweep was interrupted.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

import typer

from dejavu_cache.errors import DejavuError, SettingsError

from .commands import (
    bundle,
    diff,
    doctor,
    freeze,
    heuristics,
    listing,
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
"""The entry-point group of other distributions' commands: each a function that is given the app."""

USAGE, UNUSABLE = 2, 3

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
"""Which extra brings what is missing; the server's has all the rest."""

app = typer.Typer(
    name="dejavu-cache",
    help="Tuning results of Triton kernels: look at them, move them, keep them in order.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for module in (
    listing, diff, transfer, freeze, upkeep, rename, remote, run, sweep, heuristics, report, prewarm, bundle, doctor,
):  # fmt: skip
    module.register(app)


def main() -> None:
    """Runs the command line and exits with its code; an error of ours is one line, not a traceback."""
    _mount_plugins()
    try:
        app()
    except SettingsError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(USAGE)
    except DejavuError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(UNUSABLE)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package.startswith("dejavu_"):
            raise
        extra = EXTRAS.get(package, "server")
        sys.stderr.write(f"error: this needs {package}: pip install 'dejavu-cache[{extra}]'\n")
        sys.exit(USAGE)


def _mount_plugins() -> None:
    for point in sorted(entry_points(group=COMMANDS), key=lambda point: point.name):
        try:
            point.load()(app)
        except ImportError as error:
            # Its extra is not installed: its commands are missing, the others work.
            if error.name and error.name.startswith("dejavu_"):
                raise
        except Exception as error:
            sys.stderr.write(f"warning: the commands of {point.value} are left out: {error}\n")
