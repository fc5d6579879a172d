"""What is said between a prewarming and its worker processes, a JSON document a line."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from ..model.record import RecordedLaunch
from ..model.scenario import Config, Context, Device
from ..stores.manifest import PrewarmedKernel

__all__ = [
    "AllowedDifferences",
    "BuildPlan",
    "CompileJob",
    "CompileResult",
    "PrewarmSpec",
    "Refusal",
]


class Message(BaseModel):
    model_config = ConfigDict(frozen=True)


class AllowedDifferences(Message):
    """What may differ between those who tuned and the builder."""

    triton: bool = False
    """Another Triton: its records are taken, and nothing is compiled from them."""
    wheel: bool = False
    """Another build of the same Triton: its launches are compiled with this one."""


class PrewarmSpec(Message):
    """What is asked for.

    Attributes:
        modules: the kernels' modules; a package stands for all in it.
        store: URL of where the records are.
        devices: names as records have them.
        fallbacks: whether what stands in for winners (default configs, trees' choices) is compiled too.
        host_modules: whether the modules are built that Triton would run a C compiler for.
        binaries: the folder to write to.
    """

    modules: tuple[str, ...]
    store: str
    devices: tuple[str, ...]
    allowed: AllowedDifferences = AllowedDifferences()
    fallbacks: bool = True
    host_modules: bool = True
    binaries: str = ""


class CompileJob(Message):
    """One binary to make."""

    kernel: str
    arch: str
    launch: RecordedLaunch
    config: Config | None = None
    needed: bool = True
    """Whether it is a winner's: a default that does not compile is only worth a note."""

    def __str__(self) -> str:
        return f"{self.kernel} for {self.arch}{f' ({self.config})' if self.config else ''}"


class Refusal(Message):
    """Why nothing can be made; the message has the remedy."""

    message: str


class BuildPlan(Message):
    """What is to be done."""

    jobs: tuple[CompileJob, ...]
    contexts: tuple[Context, ...]
    """The records to take along."""
    devices: tuple[Device, ...]
    codegen: dict[str, str]
    kernels: tuple[PrewarmedKernel, ...]
    notes: tuple[str, ...]
    wheel: str
    triton: str
    host_key: str
    files: dict[str, tuple[int, int]]
    """The kernels' Python files as they were imported: when they were modified, in nanoseconds, and their size."""


class CompileResult(Message):
    """How a job went."""

    error: str = ""
    fatal: bool = False
    """Whether no other job would fare better: the disk is full, there is no C compiler."""
    notes: tuple[str, ...] = ()
    binary: str = ""
    """Triton's key for it: configs that differ in what is not compiled in share one."""
    keys: tuple[str, ...] = ()
    """The folders that it needs, by Triton's names."""
    fresh: int = 0
    """Kernels that had to be compiled."""
