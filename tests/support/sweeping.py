"""A suite whose every measurement is logged, and sweeps of it in real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dejavu_cache.stores import FileStore, Store
from support.checkout import PROGRAMS, environment
from support.fork_server import Child, start_command


class Sweeps:
    """Sweeps of one suite into one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.log = folder / "log"
        self.log.touch()
        self.suite = folder / "cases.py"
        shutil.copy(PROGRAMS / "logged_suite.py", self.suite)

    def copy(self, folder: Path) -> Sweeps:
        """Goes on from here in another folder."""
        copied = Sweeps(folder)
        shutil.copytree(self.store, copied.store)
        shutil.copy(self.log, copied.log)
        return copied

    def environment(self, **env: str) -> dict[str, str]:
        cache = str(self.folder / "cache")
        return environment(TRITON_INTERPRET="1", LOG=str(self.log), XDG_CACHE_HOME=cache, **env)

    def start(self, *arguments: str, suite: str = "", **env: str) -> Child:
        """Start a sweep; it and its workers are forked."""
        return start_command(
            *self._arguments(suite, arguments),
            interpret="1", folder=self.folder / "printed", env=self.environment(**env),
        )  # fmt: skip

    def start_family(self, *arguments: str, suite: str = "", **env: str) -> subprocess.Popen[str]:
        """Start a sweep whose workers are its children, as a user would."""
        return subprocess.Popen(
            [sys.executable, "-m", "dejavu_client", *self._arguments(suite, arguments)],
            env=self.environment(**env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _arguments(self, suite: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
        store = () if "--store" in arguments else ("--store", str(self.store))
        return ("sweep", str(self.suite) + suite, *store, *arguments)

    def run(self, *arguments: str, code: int = 0, suite: str = "", **env: str) -> str:
        """Sweeps to the end; standard output and error together."""
        process = self.start(*arguments, suite=suite, **env)
        out, err = process.communicate(timeout=240)
        assert process.returncode == code, out + err
        return out + err

    def json(self, *arguments: str, code: int = 0, **env: str) -> dict[str, Any]:
        process = self.start("--json", *arguments, **env)
        out, err = process.communicate(timeout=240)
        assert process.returncode == code, out + err
        return json.loads(out)  # type: ignore[no-any-return]

    def wait_for(self, measurements: int) -> None:
        wait_until(lambda: len(self.measurements_taken) >= measurements)

    @property
    def measurements_taken(self) -> list[str]:
        """List every measurement taken, as size and block, in order."""
        return self.log.read_text().splitlines()

    @property
    def recorded_times(self) -> dict[int, dict[int, str]]:
        """By size and block: what the folder has, a time or a failure, and which one won."""
        return self.recorded_in(FileStore(self.store))

    def recorded_in(self, store: Store) -> dict[int, dict[int, str]]:
        """Return the outcomes in another store, as `recorded_times` does."""
        return {
            int(record.scenario.args["n"] or 0): {
                int(measurement.config.params["BLOCK"] or 0): (
                    measurement.failure.kind if measurement.failure else f"{measurement.median}"
                )
                + (", wins" if record.winner and record.winner.config == measurement.config else "")
                for measurement in record.measurements
            }
            for context in store.contexts()
            for record in store.records(context)
        }

    def whole(self, cases: int = 8) -> dict[int, dict[int, str]]:
        """Return what one undisturbed sweep records."""
        return {
            100 + n: {16: "16.0, wins", 32: "32.0", 64: "64.0", 128: "128.0"} for n in range(cases)
        }


def wait_until(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 240
    while not happened():
        assert time.monotonic() < until, "it does not happen"
        time.sleep(0.005)


def kill_tree(process: subprocess.Popen[str]) -> None:
    """Kill a process and all that it started."""
    import psutil

    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for member in family:
        with suppress(ProcessLookupError):  # a worker ends by itself when its sweep is killed
            os.kill(member.pid, signal.SIGKILL)
    process.communicate()
