"""The modules of the host that Triton runs a C compiler for at a first launch: built here, loaded only there.

They are linked against the driver's library, which a builder does not have, and whose content the linker does not
need: an empty library of its name stands in for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from filelock import FileLock

from ..errors import PrewarmError
from ..triton_internals.hooks import build_host_modules_with
from ..triton_internals.host_modules import build_driver_module, build_launcher

__all__ = ["HostModuleBuilder", "make_tools"]

_COMPILER = """#!/bin/sh
for each in "$@"; do
    case "$each" in *.c | *.cpp) set -- "-ffile-prefix-map=$(dirname "$each")=." "$@" ;; esac
done
exec {compiler} -Wl,--no-as-needed "$@"
"""
"""Without it, the name of a temporary folder would get into a module, and no two were ever equal. And where linkers
drop libraries that seem not to be needed, as Ubuntu's do, they would drop the driver's, whose stand-in is empty."""


def make_tools(folder: Path) -> None:
    """Makes an empty `libcuda.so.1` in a folder, and a C compiler that gives the same module for the same source.

    Raises:
        PrewarmError: there is no C compiler, or it does not work.
    """
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise PrewarmError(
            "there is no C compiler on the builder, and Triton needs one for the modules that launch kernels: install "
            "gcc here (the program itself will not need it), or leave them out with --no-host-modules"
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
    done = subprocess.run([*command, "-o", str(library)], capture_output=True, text=True)
    if done.returncode:
        raise PrewarmError(f"the C compiler {compiler} does not work: {done.stderr.strip()[-500:]}")
    (folder / "libcuda.so").symlink_to(library.name)  # Triton 3.4 asks for it by this name
    script = folder / "cc"
    script.write_text(_COMPILER.format(compiler=compiler), encoding="utf-8")
    script.chmod(0o755)


class HostModuleBuilder:
    """Builds what launching takes, through Triton's own drivers.

    Args:
        tools: what `make_tools` made.
    """

    def __init__(self, tools: Path) -> None:
        os.environ["CC"] = str(tools / "cc")
        self._one_builds = FileLock(tools / "cuda-utils.lock")
        build_host_modules_with(str(tools))

    def build(self, compiled: Any, target: Any) -> str:
        """Builds the modules for one kernel; returns why it cannot be done, or nothing.

        Raises:
            Exception: what Triton or the compiler raise.
        """
        if target.backend == "cuda":
            with self._one_builds:  # the largest of them, which the others then find
                build_driver_module("cuda")
            build_launcher("cuda", compiled)
            return ""
        try:
            build_driver_module("hip")
            build_launcher("hip", compiled)
        except (AttributeError, FileNotFoundError, RuntimeError) as error:
            return (
                f"{target.arch}: the modules that launch kernels are left out, since the library they find the driver "
                f"by is not here ({str(error)[:120]}): install torch for ROCm on the builder, or have gcc at run time"
            )
        return ""
