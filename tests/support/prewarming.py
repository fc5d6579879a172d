"""Helpers of the prewarming tests."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import triton

from dejavu_cache.model.record import Record, RecordedLaunch, RecordSet
from dejavu_cache.model.scenario import Environment
from dejavu_cache.stores import FileStore
from support.processes import PROGRAMS, dejavu, environment

__all__ = ["DEVICES", "HERE", "committed", "prewarm", "restamped"]

HERE = PROGRAMS / "prewarm"
DEVICES: tuple[str, ...] = ("NVIDIA H200", "NVIDIA B200", "AMD Instinct MI300X")
if triton.__version__ < "3.5":  # it brings no linker for AMD's GPUs
    DEVICES = DEVICES[:2]


@cache
def committed() -> list[RecordSet]:
    """What `make_records.py` wrote; what it writes with another Triton, where that is installed."""
    if triton.__version__ == "3.6.0":
        lines = (HERE / "records.jsonl").read_text(encoding="utf-8").splitlines()
    else:
        with tempfile.NamedTemporaryFile() as file:
            script = [sys.executable, str(HERE / "make_records.py"), file.name, *DEVICES]
            subprocess.run(script, env=environment(TRITON_INTERPRET=""), check=True, timeout=120)
            lines = Path(file.name).read_text(encoding="utf-8").splitlines()
    return [RecordSet.model_validate_json(line) for line in lines]


def restamped(whole: RecordSet, *, triton: str = "", wheel: str = "") -> RecordSet:
    """Records as the build of Triton that is installed would have made them, or another."""
    from dejavu_cache.prewarm.plan import builder_toolchain
    from dejavu_cache.triton_internals import compilation as launches

    device = whole.context.environment.device
    here = builder_toolchain(device)
    made = Environment(
        device=device, triton=triton or here.triton, codegen=here.codegen, variables=here.variables
    )
    stamp = wheel or launches.wheel()
    return RecordSet(
        context=whole.context.model_copy(update={"environment": made}),
        records=tuple(_stamped(record, stamp) for record in whole.records),
    )


def _stamped(record: Record, wheel: str) -> Record:
    noted = tuple(
        RecordedLaunch.model_validate({**each.model_dump(), "wheel": wheel})
        for each in record.launches or ()
    )
    return record.model_copy(update={"launches": noted})


def prewarm(
    records: FileStore, out: Path, *words: object, devices: tuple[str, ...] = DEVICES, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs the command; `words` are modules and options."""
    named = [word for device in devices for word in ("--device", device)]
    command = ("prewarm", *(words or ("products",)), "--from", records.url, "--out", out, *named)
    own = {"PYTHONPATH": str(HERE), "XDG_CACHE_HOME": str(records.root.with_name("user"))}
    return dejavu(*command, **{**own, **env})
