"""A stub of NVIDIA's driver library for linking on machines without a driver."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from ..errors import PrewarmError

__all__ = ["make_stub_driver"]

_COMPILER = """#!/bin/sh
for each in "$@"; do
    case "$each" in *.c | *.cpp) set -- "-ffile-prefix-map=$(dirname "$each")=." "$@" ;; esac
done
exec {compiler} -Wl,--no-as-needed "$@"
"""
"""Script that runs the C compiler with two more options.

The first keeps the name of a temporary folder out of the modules, so that equal sources give equal
modules. The second keeps linkers that drop unneeded libraries, as Ubuntu's do, from dropping the
driver's, whose stub is empty.
"""


def make_stub_driver(folder: Path) -> None:
    """Write an empty `libcuda.so.1` and a script `cc` that compiles reproducibly to a folder.

    Host modules are linked against the driver's library, which a builder does not have. The linker
    does not need its content, so an empty library of its name is enough.

    Args:
        folder: the folder; it is created if it does not exist.

    Raises:
        PrewarmError: there is no C compiler, or it does not work.
    """
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise PrewarmError(
            "there is no C compiler on the builder, and Triton needs one for the modules that "
            "launch kernels: install gcc here (the program itself will not need it), or leave them "
            "out with --no-host-modules"
        )
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libcuda.so.1"
    command = [
        *compiler.split(),
        "-shared",
        "-fPIC",
        f"-Wl,-soname,{library.name}",
        "-x",
        "c",
        os.devnull,
    ]
    process = subprocess.run([*command, "-o", str(library)], capture_output=True, text=True)
    if process.returncode:
        raise PrewarmError(
            f"the C compiler {compiler} does not work: {process.stderr.strip()[-500:]}"
        )
    script = folder / "cc"
    script.write_text(_COMPILER.format(compiler=compiler), encoding="utf-8")
    script.chmod(0o755)
