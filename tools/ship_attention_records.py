"""Make the records that ship with the attention kernels; `make shipped` runs this.

`tools/shipped_records.json` says what is swept. A sweep goes on from what ships; what it leaves is
packed into the package, with timings rounded to five digits and without who measured them.
Sweeping needs the GPU that the records are for; `--dry-run` prints the commands on any machine.
`--pack STORE FOLDER` only packs what a folder has, as for the sets in `records/`.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dejavu_cache.model.record import Measurement, Record

ROOT = Path(__file__).resolve().parent.parent
PLAN = ROOT / "tools" / "shipped_records.json"


def commands(plan: dict[str, Any]) -> list[list[str]]:
    """Return the arguments of `dejavu-cache`, in the order in which they are run."""
    store = ["--store", (ROOT / plan["store"]).as_uri()]
    sweeps = [
        ["sweep", plan["suite"], *_option_arguments({**plan["options"], **sweep}), *store]
        for sweep in plan["sweeps"]
    ]
    return [*sweeps, ["gc", "--yes", *store]]


def _option_arguments(options: dict[str, str]) -> list[str]:
    return [f"--option={name}={value}" for name, value in options.items()]


def unpack_records(package: Path, folder: Path) -> None:
    """Put the records of a package into a folder that a sweep can write."""
    from dejavu_cache.stores import FileStore

    with FileStore(folder) as store:
        for record_set in FileStore(package, read_only=True).record_sets():
            store.put(record_set.context, record_set.records)


def pack_records(folder: Path, package: Path) -> None:
    """Replace the records of a package by those of a folder, packed."""
    from dejavu_cache.stores import FileStore
    from dejavu_cache.stores.file_layout import Page

    package.mkdir(parents=True, exist_ok=True)
    for kernel in filter(Path.is_dir, package.iterdir()):
        shutil.rmtree(kernel)
    for record_set in FileStore(folder, read_only=True).record_sets():
        page = Page(record_set.context, "")
        page.merge(map(_shorten_record, record_set.records))
        head, *cuts = page.text.split("\n{")
        names = ["head", *(record.scenario.digest for record in page.records())]
        ends = ["\n{"] * len(cuts) + [""]
        path = FileStore(package).path(record_set.context)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f"{path.name}.gz").open("wb") as file:
            for name, cut, end in zip(names, [head, *cuts], ends, strict=True):
                file.write(_pack_member(name, cut + end))


def _pack_member(name: str, text: str) -> bytes:
    member = io.BytesIO()
    with gzip.GzipFile(name, "wb", fileobj=member, mtime=0) as file:
        file.write(text.encode())
    return member.getvalue()


def _shorten_record(record: Record) -> Record:
    """Return a record without digits that say nothing."""
    winner = record.winner
    if winner:
        winner = winner.model_copy(update={"at": winner.at.replace(microsecond=0)})
    measurements = tuple(map(_shorten_measurement, record.measurements))
    return record.model_copy(update={"winner": winner, "measurements": measurements})


def _shorten_measurement(measurement: Measurement) -> Measurement:
    times = {name: getattr(measurement, name) for name in ("median", "p20", "p80")}
    rounded = {name: time and float(f"{time:.5g}") for name, time in times.items()}
    at = measurement.at.replace(microsecond=0)
    return measurement.model_copy(update={**rounded, "at": at, "by": ""})


def main() -> int:
    """Run the commands until one fails, or print them; return the exit status."""
    dry_run = "--dry-run" in sys.argv[1:]
    sys.path.insert(0, str(ROOT))
    if sys.argv[1:2] == ["--pack"]:
        pack_records(*map(Path, sys.argv[2:4]))
        return 0
    plan = json.loads(PLAN.read_text(encoding="utf-8"))
    paths = [str(ROOT), str(ROOT / "client"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment["DEJAVU_CACHE_SHIPPED"] = "0"  # the folder has what ships, and is what counts
    package, folder = ROOT / plan["records"], ROOT / plan["store"]
    if not dry_run:
        unpack_records(package, folder)
    for arguments in commands(plan):
        print("dejavu-cache", shlex.join(arguments), flush=True)
        if dry_run:
            continue
        command = [sys.executable, "-m", "dejavu_client", *arguments]
        status = subprocess.run(command, env=environment, check=False).returncode
        if status:
            return status
    if not dry_run:
        pack_records(folder, package)
    return 0


if __name__ == "__main__":
    sys.exit(main())
