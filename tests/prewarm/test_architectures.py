"""What is compiled for one architecture does not depend on which others are asked for."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest
from support.prewarming import HERE

from dejavu_cache.errors import PrewarmError
from dejavu_cache.model.record import RecordedLaunch
from dejavu_cache.prewarm.build import CompileJob, Compiler, PrewarmSpec, compile_all
from dejavu_cache.triton_internals.compilation import wheel

ARCHITECTURES = ("sm_90", "sm_80")


def spec_of(folder: Path) -> PrewarmSpec:
    return PrewarmSpec(
        modules=("widening",),
        store=folder.as_uri(),
        devices=(),
        folder=str(folder),
    )


def jobs_for(*architectures: str) -> list[CompileJob]:
    launch = RecordedLaunch(
        wheel=wheel(),
        signature={"x_ptr": "*fp8e5", "y_ptr": "*bf16", "BLOCK": "constexpr"},
        constants={"BLOCK": 256},
        attrs={"x_ptr": '[["tt.divisibility", 16]]', "y_ptr": '[["tt.divisibility", 16]]'},
        options={},
    )
    return [CompileJob(kernel="widening.widen", arch=arch, launch=launch) for arch in architectures]


def binaries(folder: Path, *architectures: str) -> dict[str, bytes]:
    """Compiles one kernel for them, and returns what became of it by its key in Triton's cache."""
    spec, jobs = spec_of(folder), jobs_for(*architectures)
    with closing(Compiler(spec)) as process:
        built = compile_all([process], jobs, ())
    assert [result.error for result in built.values()] == [""] * len(jobs)
    return {path.parent.name: path.read_bytes() for path in folder.rglob("*.cubin")}


def test_together_they_give_what_each_gives_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    alone = [binaries(tmp_path / arch, arch) for arch in ARCHITECTURES]
    together = binaries(tmp_path / "together", *ARCHITECTURES)
    assert len(together) == 2
    assert together == {key: binary for built in alone for key, binary in built.items()}


def test_a_process_that_cannot_be_started_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a folder without the binaries that it should have made."""
    monkeypatch.syspath_prepend(str(HERE))
    spec, jobs = spec_of(tmp_path), jobs_for(*ARCHITECTURES)
    with closing(Compiler(spec)) as process:
        monkeypatch.setattr(sys, "executable", "/nonexistent/python")
        with pytest.raises(PrewarmError, match="no process can be started"):
            compile_all([process], jobs, ())
