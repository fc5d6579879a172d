"""Messages between a prewarming and its worker processes."""

from __future__ import annotations

from ..model.record import RecordedLaunch, RecordSet
from ..model.scenario import Config, Context, Device, FrozenModel
from ..stores.manifest import PrewarmedKernel

__all__ = [
    "AllowedDifferences",
    "BuildPlan",
    "CompileJob",
    "CompileResult",
    "PrewarmRequest",
    "PrewarmSpec",
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
