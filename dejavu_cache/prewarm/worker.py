"""The worker process of a prewarming: it imports the kernels, plans, and compiles them.

It sees no GPU and uses no driver. The parent replaces it if the compiler takes it down.
"""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from filelock import FileLock

from ..errors import PrewarmError
from ..stores.manifest import BINARIES
from ..system.workers import ParentConnection, serve
from ..triton_internals.compilation import recreate_compilation, target_of
from ..triton_internals.hooks import (
    build_binaries_in,
    build_host_modules_with,
    hash_callees_first,
    host_module_builders,
    set_target,
)
from .build import BuildPlan, CompileJob, CompileResult, PrewarmRequest, PrewarmSpec
from .discovered_kernels import DiscoveredKernels, launch_values
from .plan import plan


class CompileWorker:
    """Runs the jobs of one process.

    Raises:
        SettingsError: a module cannot be imported.
        PrewarmError: there is no C compiler.
    """

    def __init__(self, spec: PrewarmSpec, parent: ParentConnection) -> None:
        """Import the kernels, and have Triton store what it compiles in the folder, if one."""
        self.ready: dict[str, Any] = {}
        self._spec = spec
        if spec.folder:
            hash_callees_first()
        set_target(target_of("sm_90"))  # modules may ask for a target when they are imported
        self._kernels = DiscoveredKernels.of(spec.modules, spec.recorded)
        if spec.folder:
            self._build_in(Path(spec.folder))

    def _build_in(self, folder: Path) -> None:
        """Have Triton build what another machine can run, in a folder."""
        (folder / BINARIES).mkdir(parents=True, exist_ok=True)
        build_binaries_in(str(folder / BINARIES))
        self._tools = folder / "tools"
        _make_tools(self._tools)
        os.environ["CC"] = str(self._tools / "cc")
        build_host_modules_with(str(self._tools))

    def run(self, request: PrewarmRequest) -> BuildPlan | CompileResult:
        """Plan the prewarming, or run a job; errors of a job are part of its result."""
        if request.job is None:
            return plan(self._spec, self._kernels)
        try:
            return self._compile(request.job)
        except Exception as error:  # compilers raise errors of many kinds
            return CompileResult(error=f"{type(error).__name__}: {error}"[:2000])

    def close(self) -> None:
        """Do nothing: what was compiled is in the folder."""

    def _compile(self, job: CompileJob) -> CompileResult:
        import triton

        target = target_of(job.arch)
        set_target(target)
        kernel = self._kernels.by_name[job.kernel]
        values = launch_values(job.config, kernel.configs(target.backend))
        compilation = recreate_compilation(kernel.function, job.launch, values, target)
        compiled = triton.compile(compilation.source, target=target, options=compilation.options)
        if compiled.hash != compilation.key:
            raise PrewarmError(f"Triton gave {job} the key {compiled.hash}, not {compilation.key}")
        note = self._build_host_modules(compiled, target) if self._spec.folder else ""
        return CompileResult(binary=compiled.hash, note=note)

    def _build_host_modules(self, compiled: Any, target: Any) -> str:
        """Build the modules that launch a kernel with Triton's own driver, without loading them.

        Returns:
            The reason why the modules are left out, or an empty string.
        """
        try:
            build_driver_module, build_launcher = host_module_builders(target.backend)
            with FileLock(self._tools / "driver.lock"):  # shared by all kernels
                build_driver_module()
            build_launcher(compiled.src, compiled.metadata)
        except (AttributeError, FileNotFoundError, RuntimeError) as error:
            if target.backend == "cuda":
                raise
            return (
                f"{target.arch}: the modules that launch kernels are left out, since the library "
                f"they find the driver by is not here ({str(error)[:120]}): install torch for ROCm "
                "on the builder, or have gcc at run time"
            )
        return ""


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


def _make_tools(folder: Path) -> None:
    """Make a folder with an empty `libcuda.so.1` and a script `cc` that compiles reproducibly.

    Host modules are linked against the driver's library, which a builder does not have. The linker
    does not need its content, so an empty library of its name is enough.

    Raises:
        PrewarmError: there is no C compiler, or it does not work.
    """
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or "gcc"
    folder.mkdir(parents=True, exist_ok=True)
    script, library = folder / "cc", folder / "libcuda.so.1"
    headers = f"-I{sysconfig.get_path('include', 'posix_prefix')}"
    options = f"-shared -fPIC -Wl,-soname,{library.name} -include Python.h -x c {os.devnull} -o"
    with FileLock(folder / "tools.lock"):
        if script.exists():
            return
        words = [*compiler.split(), headers, *options.split(), str(library)]
        try:
            subprocess.run(words, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            why = getattr(error, "stderr", "") or str(error)
            raise PrewarmError(
                f"the C compiler {compiler} cannot build what launches kernels: install gcc and "
                f"Python's headers here, and the program does without: {why.strip()[-500:]}"
            ) from None
        script.write_text(_COMPILER.format(compiler=compiler), encoding="utf-8")
        script.chmod(0o755)


def main() -> None:
    """Serve the parent."""
    serve(CompileWorker, PrewarmSpec, PrewarmRequest)
