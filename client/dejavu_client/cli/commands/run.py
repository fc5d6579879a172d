"""`run`: a program whose kernels are cached without a change to it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

import dejavu_cache
from dejavu_cache.errors import SettingsError
from dejavu_cache.settings import PREFIX, Settings

__all__ = ["register"]

STARTUP = Path(dejavu_cache.__file__).parent / "installation" / "startup"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
    )(run)


def run(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND…", help="A Python program, or what starts one."),
    ],
    store: Annotated[
        str, typer.Option("--store", metavar="URL", help="DEJAVU_CACHE_URL for the command.")
    ] = "",
    mode: Annotated[str, typer.Option("--mode", help="DEJAVU_CACHE_MODE for the command.")] = "",
    policy: Annotated[
        str, typer.Option("--policy", metavar="FILE", help="DEJAVU_CACHE_POLICY for the command.")
    ] = "",
) -> None:
    """Run a command in which triton.autotune is cached, and in all Python processes it starts.

    The command takes this process's place. Python's -E, -I and -S switch it off, since they ignore
    PYTHONPATH.
    """
    words = command[1:] if command[:1] == ["--"] else command
    if not words:
        raise SettingsError("no command is named: dejavu-cache run -- python train.py")
    options = {"URL": store, "MODE": mode, "POLICY": str(Path(policy).absolute()) if policy else ""}
    changes = {PREFIX + name: value for name, value in options.items() if value}
    environment = {**os.environ, **changes, PREFIX + "INSTALL": "1"}
    Settings.from_environment(environment)  # raises for wrong values before the command starts
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(STARTUP), os.environ.get("PYTHONPATH", "")))
    )
    executable = shutil.which(words[0])
    if executable is None:
        raise SettingsError(f"{words[0]} is no command that can be found")
    sys.stdout.flush()
    os.execvpe(executable, words, environment)
