"""One soak test of one kind of database."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from .deployment import Deployment, SmallDisk
from .faults import FaultInjector
from .invariants import Checker
from .proxy import FaultyProxy
from .report import broken_promises
from .sampling import Sampler, is_flat
from .supervisor import Supervisor
from .workload import read_ledgers

DISK_MEGABYTES = 1024
CHECK_EVERY = 20.0
SAMPLE_EVERY = 5.0
DELETE_EVERY = 5.0
WRITERS, LAUNCHERS = 3, 1
REPLICAS = {"sqlite": 2, "postgres": 3}


def run_session(kind: str, seconds: float) -> dict[str, Any]:
    """Run writers, readers, launching programs and faults for a time; return what happened."""
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir="/tmp"))
    disk = SmallDisk(folder / "disk", DISK_MEGABYTES)
    deployment = Deployment(kind, folder, disk, REPLICAS[kind])
    try:
        result = _run(kind, seconds, folder, disk, deployment)
    finally:
        deployment.close()
        disk.close()
    if not broken_promises(result):  # else the logs stay
        shutil.rmtree(folder)
    return result


def _run(
    kind: str, seconds: float, folder: Path, disk: SmallDisk, deployment: Deployment
) -> dict[str, Any]:
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")  # the clients' spools
    proxy = FaultyProxy([replica.port for replica in deployment.replicas])
    clients = Supervisor(folder, proxy.url, disk.folder, WRITERS, LAUNCHERS)
    steady = {
        f"steady {role}": clients.start_steady(role, seconds)
        for role in ("writer", "reader", "launcher")
    }
    pids = {name: process.pid for name, process in steady.items()}
    sampler = Sampler({"server": deployment.replicas[0].process.pid, **pids})
    checker = Checker(folder, proxy.url, deployment)
    faults = FaultInjector(deployment, disk, proxy, clients)
    clients.start()
    faults.start()
    progress = _watch(seconds, checker, sampler)
    faults.stop()
    proxy.behaviour = "pass"
    deployment.ensure_postgres()
    deployment.wait_until_ready(120)
    clients.stop(300)
    steady_exits = {name: process.wait(300) for name, process in steady.items()}
    waiting, set_aside = checker.drain(300)
    checker.check()
    stored = checker.check_content()
    events = read_ledgers(folder)
    return {
        "kind": kind,
        "seconds": seconds,
        "disk_could_be_full": disk.can_be_full,
        "faults": dict(sorted(Counter(name for _, name in faults.events).items())),
        "acknowledged": len(set(events["spooled"]) | set(events["confirmed"])),
        "stored": stored,
        "deleted": len(set(events["deleted"])),
        "reads_checked": len(events["read"]),
        "launches": len(events["launched"]),
        "checks": sum(acknowledged > 0 for _, acknowledged, _ in progress),
        "exits": dict(sorted(clients.exits.items())),
        "lost": sorted(set(events["lost"])),
        "risen": sorted(set(events["risen"])),
        "wrong_winners": events["wrong"],
        "failed": events["failed"],
        "wrong_exits": [
            *clients.wrong_exits,
            *faults.unclean,
            *(f"{name} ended with {code}" for name, code in steady_exits.items() if code),
        ],
        "waiting": waiting,
        "set_aside": set_aside,
        "flat": {name: is_flat(samples) for name, samples in sampler.samples.items()},
        "peak_megabytes": {
            name: max(sample.megabytes for sample in samples)
            for name, samples in sampler.samples.items()
        },
        "samples": dict(sampler.samples),
        "progress": progress,
        "events": faults.events,
    }


def _watch(seconds: float, checker: Checker, sampler: Sampler) -> list[tuple[float, int, int]]:
    """Check and sample for a time; return seconds, acknowledged and stored records."""
    started = time.monotonic()
    progress: list[tuple[float, int, int]] = []
    due = dict.fromkeys(("check", "sample", "delete"), 0.0)
    while (at := time.monotonic() - started) < seconds:
        if at >= due["sample"]:
            due["sample"] = at + SAMPLE_EVERY
            sampler.sample(at)
        if at >= due["delete"]:
            due["delete"] = at + DELETE_EVERY * random.uniform(0.5, 1.5)
            checker.delete_some()
        if at >= due["check"]:
            due["check"] = at + CHECK_EVERY
            counts = checker.check()
            if counts is not None:
                progress.append((round(at, 1), *counts))
        time.sleep(0.2)
    return progress
