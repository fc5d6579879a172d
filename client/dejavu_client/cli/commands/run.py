"""`run`: a program whose kernels are cached without a change to it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

import dejavu_cache
from dejavu_cache.errors import SettingsError
from dejavu_cache.settings import PREFIX, Settings
from dejavu_cache.stores import make_absolute

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
    mode: Annotated[
        str,
        typer.Option(
            "--mode", help="DEJAVU_CACHE_MODE for the command: tune, reuse, strict or off."
        ),
    ] = "",
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
    options = {
        "URL": make_absolute(store) if store else "",  # the command may change folders
        "MODE": mode,
        "POLICY": str(Path(policy).absolute()) if policy else "",
    }
    changes = {PREFIX + name: value for name, value in options.items() if value}
    environment = {**os.environ, **changes, PREFIX + "INSTALL": "1"}
    Settings.from_environment(environment)  # wrong values raise before the command
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(STARTUP), os.environ.get("PYTHONPATH", "")))
    )
    executable = shutil.which(words[0])
    if executable is None:
        if Path(words[0]).is_file():
            raise SettingsError(f"{words[0]} is not executable: name its interpreter before it")
        raise SettingsError(f"{words[0]} is no command that can be found")
    sys.stdout.flush()
    with _signals_of_a_shell():
        try:
            os.execvpe(executable, words, environment)
        except OSError as error:
            raise SettingsError(f"{words[0]} cannot be run: {error.strerror}") from None


@contextmanager
def _signals_of_a_shell() -> Iterator[None]:
    """Have the signals that Python ignores end a command again, as when a shell starts it.

    Where the command cannot be run, this process goes on and ignores them as before.
    """
    # Windows has neither.
    ignored = [getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name)]
    before = [(number, signal.signal(number, signal.SIG_DFL)) for number in ignored]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
