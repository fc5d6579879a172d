"""The worker process of a prewarming: it imports the kernels and compiles them.

It sees no GPU and uses no driver. The parent replaces it if the compiler takes it down.

Messages between a prewarming and its worker processes.

Build the host modules that Triton would run a C compiler for at a kernel's first launch.

A stub of NVIDIA's driver library for linking on machines without a driver.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from filelock import FileLock

from ..errors import DejavuError, PrewarmError
from ..model.record import RecordedLaunch, RecordSet
from ..model.scenario import Config, Context, Device, FrozenModel
from ..stores.manifest import PrewarmedKernel
from ..system.worker_process import ParentConnection
from ..triton_internals.compilation import recreate_compilation, target_of_arch
from ..triton_internals.hooks import (
    build_driver_module,
    build_host_modules_with,
    build_launcher,
    hash_callees_first,
    set_cache_manager,
    set_target,
    store_binaries_in,
)

__all__ = [
    "AllowedDifferences",
    "BuildPlan",
    "CompileJob",
    "CompileResult",
    "HostModuleBuilder",
    "PrewarmRequest",
    "PrewarmSpec",
    "main",
    "make_stub_driver",
]


class AllowedDifferences(FrozenModel):
    """Differences between the tuning machines and the builder that the user accepts.

    Attributes:
        triton: another version of Triton: its records are copied, and nothing is compiled for them.
        wheel: another build of the same version: its launches are compiled with the builder's.
    """

    triton: bool = False
    wheel: bool = False


class PrewarmSpec(FrozenModel):
    """The user's options for a prewarming.

    Attributes:
        modules: names of the kernels' modules; a package stands for all modules in it.
        store: URL of the store with the records.
        devices: names of devices, as records have them.
        allowed: differences from the tuning machines that are accepted.
        fallbacks: whether to compile the configs that stand in for winners (defaults, and the
            choices of decision trees) too.
        host_modules: whether to build the modules that Triton would run a C compiler for.
        binaries: the folder to write to.
    """

    modules: tuple[str, ...]
    store: str
    devices: tuple[str, ...]
    allowed: AllowedDifferences = AllowedDifferences()
    fallbacks: bool = True
    host_modules: bool = True
    binaries: str = ""


class CompileJob(FrozenModel):
    """One binary to compile.

    Attributes:
        needed: whether it is a winner's. A default that does not compile only deserves a note.
    """

    kernel: str
    arch: str
    launch: RecordedLaunch
    config: Config | None = None
    needed: bool = True

    def __str__(self) -> str:
        """Return the kernel, the architecture and the config for a message."""
        return f"{self.kernel} for {self.arch}{f' ({self.config})' if self.config else ''}"


class PrewarmRequest(FrozenModel):
    """A request to a worker: to run a job, or to make the plan if there is no job."""

    job: CompileJob | None = None


class BuildPlan(FrozenModel):
    """The content of a prewarmed folder.

    Attributes:
        jobs: the binaries to compile.
        contexts: the contexts whose records are copied.
        adopted: records of equal code under other keys, which are written under the present one.
        devices: the devices that the folder is for.
        codegen: the code generator by the device's name.
        kernels: the kernels in the folder.
        notes: remarks for the user, one sentence each.
        wheel: build of Triton.
        triton: version of Triton.
        host_key: Triton's key of the platform.
        files: the kernels' Python files as they were imported: modification time in nanoseconds and
            size in bytes.
    """

    jobs: tuple[CompileJob, ...]
    contexts: tuple[Context, ...]
    adopted: tuple[RecordSet, ...] = ()
    devices: tuple[Device, ...]
    codegen: dict[str, str]
    kernels: tuple[PrewarmedKernel, ...]
    notes: tuple[str, ...]
    wheel: str
    triton: str
    host_key: str
    files: dict[str, tuple[int, int]]


class CompileResult(FrozenModel):
    """The result of a job.

    Attributes:
        error: the error; empty if there was none.
        fatal: whether all other jobs would fail too, for instance because the disk is full.
        notes: remarks for the user.
        binary: Triton's key of the binary. Configs that only differ in values that are not compiled
            in share one.
        keys: the folders of Triton's cache that the binary needs.
        fresh: number of kernels that were compiled and not found in the cache.
    """

    error: str = ""
    fatal: bool = False
    notes: tuple[str, ...] = ()
    binary: str = ""
    keys: tuple[str, ...] = ()
    fresh: int = 0


class HostModuleBuilder:
    """Builds host modules with Triton's own drivers, without loading them.

    Args:
        tools: the folder that `make_stub_driver` filled.
    """

    def __init__(self, tools: Path) -> None:
        """Let Triton build host modules with the stub tools from now on."""
        os.environ["CC"] = str(tools / "cc")
        self._driver_module_lock = FileLock(tools / "cuda-utils.lock")
        build_host_modules_with(str(tools))

    def build(self, compiled: Any, target: Any) -> str:
        """Build the modules that launch one kernel.

        Args:
            compiled: Triton's compiled kernel.
            target: Triton's target of the kernel.

        Returns:
            The reason why the modules are left out, or an empty string.

        Raises:
            Exception: any error of Triton or of the C compiler.
        """
        if target.backend == "cuda":
            with self._driver_module_lock:  # shared by all kernels: one process builds it
                build_driver_module("cuda")
            build_launcher("cuda", compiled)
            return ""
        try:
            build_driver_module("hip")
            build_launcher("hip", compiled)
        except (AttributeError, FileNotFoundError, RuntimeError) as error:
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


FATAL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG)
"""Errors of the file system that every other job would meet too."""


class CompileWorker:
    """Runs the jobs of one process.

    Args:
        spec: the options of the prewarming.

    Raises:
        PrewarmError: a module cannot be imported.
    """

    def __init__(self, spec: PrewarmSpec) -> None:
        from ..triton_internals.cache_managers import relocatable_cache
        from .kernel_discovery import DiscoveredKernels

        self._spec = spec
        hash_callees_first()
        set_target(target_of_arch("sm_90"))  # modules may ask for a target when they are imported
        self.kernels = DiscoveredKernels.of(spec.modules)
        store_binaries_in(spec.binaries)
        self._cache = relocatable_cache()
        set_cache_manager(self._cache)
        self._host = (
            HostModuleBuilder(Path(spec.binaries).with_name("tools")) if spec.host_modules else None
        )

    def plan(self) -> BuildPlan:
        """Return the plan of the whole prewarming."""
        from .plan import all_records, own_records, plan

        with own_records(self._spec.store) as own:
            return plan(self._spec, self.kernels, all_records(own), own)

    def compile(self, job: CompileJob) -> CompileResult:
        """Compile a binary and build the modules that launch it; errors are part of the result."""
        try:
            return self._compile(job)
        except OSError as error:
            message = f"{type(error).__name__}: {error}"
            return CompileResult(error=message, fatal=error.errno in FATAL_ERRORS)
        except Exception as error:  # compilers raise errors of many kinds
            return CompileResult(error=f"{type(error).__name__}: {error}"[:2000])

    def _compile(self, job: CompileJob) -> CompileResult:
        import triton

        from .kernel_discovery import launch_values

        target = target_of_arch(job.arch)
        set_target(target)
        self._cache.touched = {}
        kernel = self.kernels.by_name[job.kernel]
        values = launch_values(job.config, kernel.configs(target.backend))
        compilation = recreate_compilation(kernel.function, job.launch, values, target)
        compiled = triton.compile(compilation.source, target=target, options=compilation.options)
        if compiled.hash != compilation.key:
            raise PrewarmError(f"Triton gave {job} the key {compiled.hash}, not {compilation.key}")
        fresh = sum(self._cache.touched.values())  # without the modules that are built next
        note = self._host.build(compiled, target) if self._host else ""
        return CompileResult(
            binary=compiled.hash,
            keys=tuple(self._cache.touched),
            fresh=fresh,
            notes=(note,) if note else (),
        )


def main(parent: ParentConnection) -> int:
    """Read a spec, then answer requests until the parent closes the connection."""
    try:
        spec = parent.requests.readline()
        if not spec:  # the parent has ended before it said what is wanted
            return 0
        worker = CompileWorker(PrewarmSpec.model_validate_json(spec))
        for line in parent.requests:
            job = PrewarmRequest.model_validate_json(line).job
            answer = worker.plan() if job is None else worker.compile(job)
            parent.send("answer", answer=answer.model_dump(mode="json"))
    except DejavuError as error:
        parent.send("refused", message=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(ParentConnection.take_standard_streams()))
