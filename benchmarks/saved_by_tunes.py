"""Compare what tunes were expected to save a program with what they would have saved it.

    python benchmarks/saved_by_tunes.py FOLDER [RECORDS...]     # on a machine with a GPU

A program launches drawn batches of attention, for models that no record knows, beside a server that
has the records of some folders. What it missed is tuned then, by the server's worklist. Batches get
the kernel that `auto` launches where `hopper` does not suit. Writes FOLDER/saved-by-tunes.json.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from prediction import Save, summarize_saves
from reports import describe_run, write_report
from server_benchmark.databases import prepare
from server_benchmark.processes import run_server

from dejavu_cache.attention.api import IMPLEMENTATIONS, choose
from dejavu_cache.attention.kernels import hopper
from dejavu_cache.attention.sweep_suite import Lengths, Model, batch_of

BATCHES, SEED = 24, 20
MODELS = (Model(40, 8, 128), Model(64, 8, 128), Model(28, 4, 128), Model(16, 2, 128))
PAGES = (16, 32, 64, 128)
TOKENS = (1 << 13, 1 << 17)
"""The most new tokens and the most earlier ones of a batch."""

LAUNCHES = (300, 3000)
SUITE = "dejavu_cache.attention"


def draw_batches() -> Iterator[tuple[Lengths, Model, int, int]]:
    """Yield batches, each with its model, tokens of a page, and number of launches."""
    drawn = random.Random(SEED)
    for number in range(BATCHES):
        count = 1 << drawn.randrange(8)
        most_new, most_past = (most // count for most in TOKENS)
        new = [drawn.randint(most_new // 2, most_new) if number % 3 == 0 else 1] * count
        past = [0 if number % 6 == 0 else drawn.randint(most_past // 4, most_past)] * count
        launches = round(LAUNCHES[0] * (LAUNCHES[1] / LAUNCHES[0]) ** drawn.random())
        yield Lengths("", new, past), drawn.choice(MODELS), drawn.choice(PAGES), launches


def program() -> None:
    """Launch the batches."""
    hopper.suits = lambda batch: False
    for composition, model, page, launches in draw_batches():
        batch = batch_of(composition, model, page, torch.bfloat16)
        attend = IMPLEMENTATIONS[choose(batch)]
        for _ in range(launches):
            attend(batch)
        torch.cuda.synchronize()


def dejavu(*arguments: str) -> str:
    """Run a command, and return what it prints; its status may say that something is left to do."""
    command = [sys.executable, "-m", "dejavu_client", *arguments]
    return subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True).stdout


def tune_what_is_missed(records: list[str]) -> list[dict[str, Any]]:
    """Run the program and then the sweep; return what the sweep says of each tune."""
    with tempfile.TemporaryDirectory() as name:
        database = f"sqlite:///{name}/server.sqlite3"
        _, os.environ["DEJAVU_CACHE_TOKEN"] = prepare(database)
        with run_server(database) as server:
            return _tune(Path(name, "own"), f"http://127.0.0.1:{server.port}", records)


def _tune(own: Path, url: str, records: list[str]) -> list[dict[str, Any]]:
    for folder in records:
        dejavu("import", folder, "--store", url)
    tiers = f"{own.as_uri()},{url}"
    settings = {"DEJAVU_CACHE_URL": tiers, "DEJAVU_CACHE_MODE": "reuse", "DEJAVU_CACHE_WAIT": "5"}
    command = [sys.executable, __file__, "program"]
    subprocess.run(command, check=True, env={**os.environ, **settings})
    sweep = ("sweep", SUITE, "--from-misses", "--tune-loss", "0.01", "--option", "batches=chunked")
    report = json.loads(dejavu(*sweep, "--store", url, "--json"))
    return [outcome for outcome in report["outcomes"] if outcome["status"] == "tuned"]


def compare(worths: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how near expectations are to what was measured, and in which order."""
    known = [worth for worth in worths if {"saves", "saved"} <= worth.keys()]
    saves = [Save(worth["saves"], worth["at_least"], worth["saved"]) for worth in known]
    expected, _, measured = (round(sum(column), 3) for column in zip(*saves, strict=True))
    return {
        "tunes": len(worths),
        **summarize_saves(saves),
        "expected, all, s": expected,
        "measured, all, s": measured,
    }


def main() -> None:
    for name in [name for name in os.environ if name.startswith("DEJAVU_")]:
        del os.environ[name]  # the benchmark has its own
    outcomes = tune_what_is_missed(sys.argv[2:])
    report: dict[str, Any] = {
        **describe_run(),
        **compare([outcome["worth"] for outcome in outcomes if "worth" in outcome]),
    }
    print(json.dumps(report, indent=1))
    names = ("kernel", "scenario", "seconds", "worth")
    report["each"] = [{name: outcome.get(name) for name in names} for outcome in outcomes]
    write_report(Path(sys.argv[1]), "saved-by-tunes.json", report)


if __name__ == "__main__":
    program() if sys.argv[1:] == ["program"] else main()
