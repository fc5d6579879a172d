"""Helpers of the prewarming tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

import triton
from support import dejavu

from dejavu_cache.records import Environment, Launch, Record, RecordSet
from dejavu_cache.stores import FileStore

__all__ = ["DEVICES", "HERE", "committed", "prewarm", "restamped"]

HERE = Path(__file__).parent
DEVICES = ("NVIDIA H200", "NVIDIA B200", "AMD Instinct MI300X")
if triton.__version__ < "3.5":  # it brings no linker for AMD's GPUs
    DEVICES = DEVICES[:2]


def committed() -> list[RecordSet]:
    """What `make_records.py` wrote."""
    lines = (HERE / "records.jsonl").read_text(encoding="utf-8").splitlines()
    sets = [RecordSet.model_validate_json(line) for line in lines]
    return [each for each in sets if each.context.environment.device.name in DEVICES]


def restamped(whole: RecordSet, *, triton: str = "", wheel: str = "") -> RecordSet:
    """Records as the Triton that is installed would have made them, or another: the rest holds for any."""
    from dejavu_cache import launches
    from dejavu_cache.prewarm.plan import _here

    device = whole.context.environment.device
    here = _here(device)
    environment = Environment(
        device=device, triton=triton or here.triton, codegen=here.codegen, variables=here.variables
    )
    stamp = wheel or launches.wheel()
    return RecordSet(
        context=whole.context.model_copy(update={"environment": environment}),
        records=tuple(_stamped(record, stamp) for record in whole.records),
    )


def _stamped(record: Record, wheel: str) -> Record:
    noted = tuple(Launch.model_validate({**each.model_dump(), "wheel": wheel}) for each in record.launches or ())
    return record.model_copy(update={"launches": noted})


def prewarm(
    records: FileStore, out: Path, *words: object, devices: tuple[str, ...] = DEVICES, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs the command; `words` are modules and options."""
    named = [word for device in devices for word in ("--device", device)]
    command = ("prewarm", *(words or ("products",)), "--from", records.url, "--out", out, *named)
    own = {"PYTHONPATH": str(HERE), "XDG_CACHE_HOME": str(records.root.with_name("user"))}
    return dejavu(*command, **{**own, **env})
