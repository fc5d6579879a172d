"""Helpers of the prewarming tests."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import triton

from dejavu_cache.model.record import Record, RecordedLaunch, RecordSet
from dejavu_cache.stores import FileStore
from support.processes import PROGRAMS, dejavu, environment

HERE = PROGRAMS / "prewarm"
DEVICES: tuple[str, ...] = ("NVIDIA H200", "NVIDIA B200", "AMD Instinct MI300X")


@cache
def committed_records() -> list[RecordSet]:
    """Return the committed records; with another Triton than theirs, make them anew."""
    if triton.__version__ == "3.6.0":
        lines = (HERE / "records.jsonl").read_text(encoding="utf-8").splitlines()
    else:
        with tempfile.NamedTemporaryFile() as file:
            script = [sys.executable, str(HERE / "make_records.py"), file.name, *DEVICES]
            subprocess.run(script, env=environment(TRITON_INTERPRET=""), check=True, timeout=240)
            lines = Path(file.name).read_text(encoding="utf-8").splitlines()
    return [RecordSet.model_validate_json(line) for line in lines]


def restamp(record_set: RecordSet, *, triton: str = "", wheel: str = "") -> RecordSet:
    """Return records as the installed build of Triton, or another one, would have made them."""
    from dejavu_cache.prewarm.plan import builder_environment
    from dejavu_cache.triton_internals import compilation as launches

    device = record_set.context.environment.device
    here = builder_environment(device)
    made = here.model_copy(update={"triton": triton or here.triton})
    stamp = wheel or launches.wheel()
    return RecordSet(
        context=record_set.context.model_copy(update={"environment": made}),
        records=tuple(_restamp_record(record, stamp) for record in record_set.records),
    )


def _restamp_record(record: Record, wheel: str) -> Record:
    noted = tuple(
        RecordedLaunch.model_validate({**launch.model_dump(), "wheel": wheel})
        for launch in record.launches or ()
    )
    return record.model_copy(update={"launches": noted})


def prewarm(
    records: FileStore, out: Path, *words: object, devices: tuple[str, ...] = DEVICES, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run the prewarm command; `words` are modules and options."""
    named = [word for device in devices for word in ("--device", device)]
    command = ("prewarm", *(words or ("products",)), "--store", records.url, "--out", out, *named)
    own = {"PYTHONPATH": str(HERE), "XDG_CACHE_HOME": str(records.root.with_name("user"))}
    return dejavu(*command, **{**own, **env})


def tree(folder: Path) -> dict[str, str]:
    """Return every file's digest."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def seal(folder: Path) -> None:
    """Let nobody write a folder."""
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)


def another_user(code: str = "") -> list[str]:
    """Return a prefix that runs a command as `nobody`, or nothing where he cannot run some code."""
    words = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    if os.getuid() or not shutil.which("setpriv"):
        return []
    tried = [*words, sys.executable, "-c", code]
    ran = subprocess.run(tried, env=environment(HOME="/dev/null/nobody"), check=False)
    return [] if ran.returncode else words
