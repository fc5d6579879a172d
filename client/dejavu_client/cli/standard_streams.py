"""Standard streams that commands can rely on, however the program was started."""

from __future__ import annotations

import io
import os
import sys

__all__ = ["prepare_streams"]


def prepare_streams() -> None:
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
