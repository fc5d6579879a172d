"""The worker process of a prewarming: it imports the kernels and compiles them.

It sees no GPU and uses no driver. The parent replaces it if the compiler takes it down.
"""

from __future__ import annotations

import errno
import sys
from pathlib import Path

from ..errors import DejavuError, PrewarmError
from ..system.worker_connection import ParentConnection
from ..triton_internals.compilation import recreate_compilation, target_of_arch
from ..triton_internals.hooks import (
    hash_callees_first,
    set_target,
    store_binaries_in,
    wrap_cache_manager,
)
from .messages import BuildPlan, CompileJob, CompileResult, PrewarmRequest, PrewarmSpec

__all__ = ["main"]

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
        from .host_modules import HostModuleBuilder
        from .kernel_discovery import DiscoveredKernels

        self._spec = spec
        hash_callees_first()
        set_target(target_of_arch("sm_90"))  # modules may ask for a target when they are imported
        self.kernels = DiscoveredKernels.of(spec.modules)
        store_binaries_in(spec.binaries)
        self._cache = relocatable_cache()
        wrap_cache_manager(lambda _: self._cache)
        self._host = (
            HostModuleBuilder(Path(spec.binaries).with_name("tools")) if spec.host_modules else None
        )

    def plan(self) -> BuildPlan:
        """Return the plan of the whole prewarming."""
        from .plan import plan
        from .record_source import all_records, own_records

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
