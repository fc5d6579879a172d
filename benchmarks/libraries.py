"""Import public libraries under `install()`, and on a GPU launch their autotuned kernels.

    python benchmarks/libraries.py [--only NAME]… [--jobs N] [--seconds S] [--out FOLDER]

For each library of `library_launches.LIBRARIES` that can be imported, a process of its own calls
`dejavu_cache.install()`, imports its modules and counts their autotuners. With a GPU, it also
launches some of them; a second process does the same under `dejavu-cache run` and must benchmark
nothing; a third has no dejavu-cache, and is given the same configs through Triton's own `cache`, so
that its results must have the same bits, or else agree within `TOLERANCE`. Prints JSON; `--out`
writes libraries.json and libraries.md. Nothing is installed or downloaded.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from library_launches import LIBRARIES, Library
from reports import describe_run, write_report

TOLERANCE = {"rtol": 2e-2, "atol": 2e-2}
"""How far results may differ that have other bits, relatively and absolutely."""

TUNE_CONFIGS = "8"
"""Configs of a scenario that the first process measures."""

TIME_SHARES = {"first": 0.6, "second": 0.7, "triton": 0.9}
"""Shares of the time left after which a process begins no further operation."""


def start_child(library: Library, role: str, folder: Path, deadline: float) -> dict[str, Any]:
    """Run `library_process.py` in a process of its own, and return what it wrote."""
    answer = folder / f"{role}.json"
    seconds = max(1.0, deadline - time.monotonic())
    program = str(Path(__file__).with_name("library_process.py"))
    words = [program, library.distribution, role, str(folder), str(seconds * TIME_SHARES[role])]
    command = [sys.executable, "-W", "ignore", *words]
    if role == "second":
        command = [sys.executable, "-m", "dejavu_client", "run", "--", *command]
    root = Path(__file__).resolve().parent.parent
    policy = folder / "policy.toml"
    policy.write_text(f'[[kernel]]\nmatch = "*"\ntune_configs = {TUNE_CONFIGS}\n')
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(root), str(root / "client"), os.environ.get("PYTHONPATH", "")]
        ),
        "DEJAVU_CACHE_URL": (folder / "store").as_uri(),
        "DEJAVU_CACHE_POLICY": str(policy),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "XDG_CACHE_HOME": str(folder),
    }
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            cwd=folder,
        )
    except subprocess.TimeoutExpired:
        return {"imported": False, "why not": f"not done after {seconds:.0f} s"}
    if not answer.exists():
        return {"imported": False, "why not": f"exit {done.returncode}: {done.stderr[-500:]}"}
    content: dict[str, Any] = json.loads(answer.read_text())
    return content


def compare(folder: Path) -> dict[str, Any]:
    """Return how the results of the processes with the cache agree with those without."""
    import torch

    first, second, triton = (
        torch.load(folder / f"{role}.pt") for role in ("first", "second", "triton")
    )
    names = set(first) & set(second) & set(triton)
    apart = {}
    agrees = True
    for name in sorted(names):
        for role, tensor in (("first", first[name]), ("second", second[name])):
            expected = triton[name]
            if not torch.equal(tensor, expected):
                apart[f"{name}, {role}"] = float((tensor.double() - expected.double()).abs().max())
            agrees &= torch.allclose(tensor, expected, equal_nan=True, **TOLERANCE)
    equal = ("within the tolerance" if apart else "bit by bit") if agrees else "no"
    return {
        "equal": equal if names else "",
        "greatest differences": apart,
        "not in every process": sorted((set(first) | set(second) | set(triton)) - names),
    }


def find_wrong_measurements(folder: Path) -> dict[str, Any]:
    """Return what the first process recorded: measurements, and those found wrong."""
    from dejavu_cache.stores import open_store

    if not (folder / "store").exists():
        return {"measurements": 0, "found wrong": []}
    with open_store((folder / "store").as_uri()) as store:
        recorded = [
            (records.context.kernel.name, record.scenario, measurement)
            for records in store.record_sets()
            for record in records.records
            for measurement in record.measurements
        ]
    wrong = [
        {
            "kernel": kernel,
            "scenario": str(scenario),
            "config": str(measurement.config),
            "evidence": measurement.failure.reason if measurement.failure else "",
        }
        for kernel, scenario, measurement in recorded
        if measurement.is_wrong
    ]
    return {"measurements": len(recorded), "found wrong": wrong}


def measure(library: Library, deadline: float) -> dict[str, Any]:
    """Return the row of one library; an error becomes part of it."""
    row: dict[str, Any] = {"distribution": library.distribution, "version": None}
    try:
        row["version"] = importlib.metadata.version(library.distribution)
    except importlib.metadata.PackageNotFoundError:
        return {**row, "imported": False, "why not": "not installed"}
    row |= {"modules": library.modules, "without __init__ of": library.without_init}
    with tempfile.TemporaryDirectory() as name:
        try:
            fill_row(row, library, Path(name), deadline)
        except Exception as error:
            row |= {"imported": False, "why not": f"{type(error).__name__}: {error}"}
    return row


def fill_row(row: dict[str, Any], library: Library, folder: Path, deadline: float) -> None:
    """Run the three processes, and note what they tell."""
    row |= start_child(library, "first", folder, deadline)
    row |= find_wrong_measurements(folder)
    if "error" in row.get("launch", {"error": ""}):
        return
    row["launch"] = {"first": row["launch"]}
    for role in ("second", "triton"):
        child = start_child(library, role, folder, deadline)
        row["launch"][role] = child.get("launch", child)
        if "error" in row["launch"][role] or not child["imported"]:
            return
    row["launch"] |= compare(folder)


def as_table(report: dict[str, Any]) -> str:
    """Return the rows as Markdown."""
    versions = report["versions"]
    lines = [
        "# Public libraries under `install()`",
        "",
        f"Measured on {report['date']}: Python {versions['python']}, PyTorch {versions['torch']}, "
        f"Triton {versions['triton']}, {report['device']}. Kernels are autotuners that the "
        "imported modules define; `benchmarks/libraries.py` lists the modules and makes this "
        "table.",
        "",
        "| library | version | autotuners | replaced | own class | left to Triton | not stored |"
        " kernels | found wrong | not checked | benchmarked | second process | equal to Triton's |"
        " remark |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    for row in report["libraries"]:
        lines.append("| " + " | ".join(map(str, _cells(row))) + " |")
    wrong = [entry for row in report["libraries"] for entry in row.get("found wrong", ())]
    kernels = count_kernels(report["libraries"])
    if kernels:
        lines += [
            "",
            f"{kernels} autotuned kernels were launched, with {TUNE_CONFIGS} configs each; the "
            f"results of {len(wrong)} prospective winners were found wrong.",
            *(
                f"- {entry['kernel']} ({entry['config']}): {entry['evidence']}"
                for entry in wrong[:10]
            ),
        ]
    return "\n".join(lines) + "\n"


def count_kernels(rows: list[dict[str, Any]]) -> int:
    """Return how many autotuned kernels the first processes launched."""
    return sum(row.get("launch", {}).get("first", {}).get("kernels", 0) for row in rows)


def _cells(row: dict[str, Any]) -> list[Any]:
    name = [row["distribution"], row["version"] or ""]
    if not row["imported"]:
        return [*name, *[""] * 11, f"not imported: {row['why not'].replace('|', '/')}"]
    own = sum(row["of the library's own class"].values())
    launch = row.get("launch", {})
    counts = [launch.get(role, {}).get("benchmarked", "") for role in ("first", "second")]
    skipped = row["without __init__ of"]
    remarks = [f"without the `__init__` of `{skipped[0]}`"] if skipped else []
    for role in ("first", "second", "triton"):
        by_triton = launch.get(role, {}).get("tuned by Triton", [])
        remarks += [f"{role} process: Triton tuned {len(by_triton)}"] if by_triton else []
    remarks += ["its launch failed"] if '"error"' in json.dumps(launch) else []
    first = launch.get("first", {})
    for outcome in ("failed", "no time left"):
        remarks += [f"{outcome}: {', '.join(first[outcome])}"] if first.get(outcome) else []
    by_itself = own - row["taken over at a launch"]
    remarks += [f"{by_itself} of its own class not taken over"] if launch and by_itself else []
    left = len(row["left to Triton"])
    counted = [row["autotuners"], row["replaced"], own, left, len(row["not stored"])]
    if first:
        counted += [first.get("kernels", ""), len(row["found wrong"]), len(row["not checked"])]
    else:
        counted += [""] * 3
    counted += counts
    return [*name, *counted, launch.get("equal", ""), "; ".join(remarks)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    chosen = [
        entry for entry in LIBRARIES if not options.only or entry.distribution in options.only
    ]
    deadline = time.monotonic() + options.seconds
    rows: list[dict[str, Any]] = []
    report = {
        **describe_run(),
        "tolerance": TOLERANCE,
        "kernels": 0,
        "found wrong": 0,
        "libraries": rows,
    }
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda library: measure(library, deadline), chosen):
            rows.append(row)
            report["kernels"] = count_kernels(rows)
            report["found wrong"] = sum(len(row.get("found wrong", ())) for row in rows)
            write(options.out, report)
    print(json.dumps(report, indent=1))


def write(folder: Path | None, report: dict[str, Any]) -> None:
    """Write the report and its table, if a folder was named."""
    if folder:
        write_report(folder, "libraries.json", report)
        (folder / "libraries.md").write_text(as_table(report))


if __name__ == "__main__":
    main()
