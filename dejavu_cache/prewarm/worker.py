"""The process that imports the kernels and compiles them: it reads jobs from standard input, and answers each.

It sees no GPU and touches no driver. If the compiler takes it down, another one goes on.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from ..errors import DejavuError, PrewarmError
from ..triton_internals.compilation import recreate_compilation, target_of_arch
from ..triton_internals.hooks import set_target, store_binaries_in, wrap_cache_manager
from .messages import BuildPlan, CompileJob, CompileResult, PrewarmSpec, Refusal

__all__ = ["main"]

PLAN = "plan"
"""Asked for in the place of a job."""


class CompileWorker:
    """Compiles for one prewarming.

    Raises:
        PrewarmError: a module cannot be imported.
    """

    def __init__(self, spec: PrewarmSpec) -> None:
        from ..triton_internals.cache_managers import relocatable_cache
        from .host_modules import HostModuleBuilder
        from .kernel_discovery import DiscoveredKernels

        self._spec = spec
        set_target(target_of_arch("sm_90"))  # modules may ask what they are imported for
        self.kernels = DiscoveredKernels.of(spec.modules)
        store_binaries_in(spec.binaries)
        self._cache = relocatable_cache()
        wrap_cache_manager(lambda _: self._cache)
        self._host = (
            HostModuleBuilder(Path(spec.binaries).with_name("tools")) if spec.host_modules else None
        )

    def plan(self) -> BuildPlan:
        """What there is to do."""
        from .plan import plan
        from .record_source import all_records, own_records

        with own_records(self._spec.store) as own:
            return plan(self._spec, self.kernels, all_records(own), own)

    def build(self, job: CompileJob) -> CompileResult:
        """Makes one binary, and the modules that launch it."""
        import triton

        from .kernel_discovery import launch_values

        target = target_of_arch(job.arch)
        set_target(target)
        self._cache.touched = {}
        known = self.kernels.known[job.kernel]
        values = launch_values(job.config, known.configs(target.backend))
        made = recreate_compilation(known.function, job.launch, values, target)
        compiled = triton.compile(made.source, target=target, options=made.options)
        if compiled.hash != made.key:
            raise PrewarmError(f"Triton gave {job} the key {compiled.hash}, not {made.key}")
        kernels = dict(self._cache.touched)
        note = self._host.build(compiled, target) if self._host else ""
        return CompileResult(
            binary=compiled.hash,
            keys=tuple(self._cache.touched),
            fresh=sum(kernels.values()),
            notes=(note,) if note else (),
        )


def _answered(ask: Callable[[], CompileResult]) -> CompileResult:
    try:
        return ask()
    except OSError as error:
        fatal = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG)
        return CompileResult(error=f"{type(error).__name__}: {error}", fatal=fatal)
    except Exception as error:  # whatever a compiler may say
        return CompileResult(error=f"{type(error).__name__}: {error}"[:2000])


def main(lines: IO[str], out: IO[str]) -> int:
    """Reads a spec, then `plan` or jobs, and answers each with a line."""

    def answer(message: Any) -> None:
        out.write(message.model_dump_json() + "\n")
        out.flush()

    try:
        worker = CompileWorker(PrewarmSpec.model_validate_json(lines.readline()))
        for line in lines:
            if line.strip() == PLAN:
                answer(worker.plan())
            else:
                job = CompileJob.model_validate_json(line)
                answer(_answered(lambda job=job: worker.build(job)))  # type: ignore[misc]
    except DejavuError as error:
        answer(Refusal(message=str(error)))
        return 1
    return 0


if __name__ == "__main__":
    # What modules print when they are imported must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.exit(main(sys.stdin, answers))
