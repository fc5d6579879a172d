"""Kernels, records and processes for the tests."""

from __future__ import annotations

import importlib.util
import linecache
import os
import subprocess
import sys
import textwrap
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

from dejavu_cache.model.buckets import Pow2
from dejavu_cache.model.record import Measurement, Record
from dejavu_cache.model.scenario import (
    Config,
    Context,
    Device,
    Environment,
    Kernel,
    Problem,
    Scenario,
)

ROOT = Path(__file__).parent.parent
MOMENT = datetime(2026, 1, 1, tzinfo=timezone.utc)

ADD = """
    import triton
    import triton.language as tl
    from dejavu_cache import Pow2, cached_autotune

    SHIFT = tl.constexpr(1)

    @triton.jit
    def shift(x):
        return x + SHIFT

    CONFIGS = [triton.Config({"BLOCK": block}, num_warps=4) for block in (16, 32, 64)]

    @cached_autotune(configs=CONFIGS, key=["n"])
    @triton.jit
    def add(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y_ptr + at, shift(tl.load(x_ptr + at, mask=at < n)), mask=at < n)
"""
"""A module with one kernel that calls a helper, which reads a constexpr global."""


def load(path: Path, source: str = ADD, name: str = "kernels") -> ModuleType:
    """Writes a module of kernels and imports it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source))
    return load_file(path, name)


def load_file(path: Path, name: str = "kernels") -> ModuleType:
    """Imports a file, as new, under a module's name."""
    linecache.checkcache(str(path))  # else it answers with the text of an earlier file of this path
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def launch(kernel: Any, n: int = 100, dtype: str = "float32", **kwargs: Any) -> Any:
    """Runs an `add` kernel on poisoned outputs and checks what it wrote."""
    import torch
    import triton

    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.arange(n, device=device).to(getattr(torch, dtype))
    y = torch.full_like(x, float("nan"))
    kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n, **kwargs)
    assert torch.equal(y, x + 1)
    return y


def run_python(
    code: str, *argv: str, check: bool = True, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter that finds this checkout."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *argv],
        env=environment(**env),
        capture_output=True,
        text=True,
        check=check,
        timeout=240,
    )


def dejavu(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs the command as a user would."""
    command = [sys.executable, "-m", "dejavu_client", *map(str, arguments)]
    return subprocess.run(
        command, env=environment(**env), capture_output=True, text=True, timeout=60, check=False
    )


def environment(**more: str) -> dict[str, str]:
    """This process's environment with the checkout's packages on the path."""
    more_path = more.pop("PYTHONPATH", "")
    ours = map(str, (ROOT, ROOT / "client", ROOT / "service", ROOT / "tests"))
    path = [*ours, more_path, os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTHONDONTWRITEBYTECODE": "1",  # a file that is edited twice in a second would be read from its bytecode
        **more,
    }


def context(**changes: Any) -> Context:
    """A context on an H200; the keywords change the kernel's name, its source, the device or Triton's version."""
    device = Device(
        name=changes.get("device", "NVIDIA H200"), arch="sm_90", units=132, memory_gib=140
    )
    return Context(
        kernel=Kernel(
            name=changes.get("kernel", "pkg.kernels.add"), source=changes.get("source", "0" * 32)
        ),
        environment=Environment(
            device=device, triton=changes.get("triton", "3.6.0"), codegen="ptxas 12.9.86"
        ),
        problem=Problem(keys=("M", "N"), buckets={"M": Pow2()}, method="events-cold"),
    )


def config(block: int = 64, **options: Any) -> Config:
    """A config with one meta-parameter."""
    return Config(params={"BLOCK": block}, options={"num_warps": 4, **options})


def measurement(block: int = 64, median: float = 1.0, at: datetime = MOMENT) -> Measurement:
    """A timing with narrow quantiles."""
    return Measurement(
        config=config(block),
        median=median,
        p20=median * 0.99,
        p80=median * 1.001,
        at=at,
        by="me@here",
    )


def record(m: int = 32, *measurements: Measurement, **fields: Any) -> Record:
    """A record of the scenario M=m."""
    scenario = Scenario(args={"M": m, "N": 64}, dtypes={"x_ptr": "float16"})
    return Record(scenario=scenario, measurements=measurements or (measurement(),), **fields)
