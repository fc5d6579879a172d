"""Client processes, started again and again, and the ways in which they end."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from .client import EXIT_CODES

LIFETIMES = (5.0, 40.0)
"""Seconds that a client lives, at the least and at the most."""

GRACE = 120.0
"""Seconds after which a client that should have ended counts as hanging; the machine is busy."""


class _Client:
    def __init__(self, role: str, process: subprocess.Popen[bytes], expected: int, ends: float):
        self.role, self.process, self.expected, self.ends = role, process, expected, ends
        self.killed = False


class Supervisor:
    """Keeps a number of writers and of launching programs running until it is told to stop.

    Attributes:
        exits: how many processes ended, by role and way.
        wrong_exits: each process that ended with another exit code than its own, or did not end.
    """

    def __init__(self, folder: Path, url: str, disk: Path, writers: int, launchers: int) -> None:
        """Prepare; `start` starts the processes."""
        self.exits: Counter[str] = Counter()
        self.wrong_exits: list[str] = []
        self._folder, self._url, self._disk = folder, url, disk
        self._roles = ["writer"] * writers + ["launcher"] * launchers
        self._clients: list[_Client] = []
        self._numbers = itertools.count(1)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Start the processes."""
        self._thread.start()

    def start_steady(self, role: str, seconds: float) -> subprocess.Popen[bytes]:
        """Start a process that lives as long as the test and is never killed."""
        return self._start(role, seconds, "return").process

    def kill_one(self) -> str:
        """Kill any client."""
        with self._lock:
            running = [client for client in self._clients if client.process.poll() is None]
            client = random.choice(running)
            client.killed = True
            client.process.kill()
        return client.role

    def stop(self, seconds: float) -> None:
        """Start no more processes, and wait for all that run."""
        self._stopping.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._stopping.is_set() or self._clients:
            with self._lock:
                for client in list(self._clients):
                    self._look_after(client)
                missing = list(self._roles)
                for client in self._clients:
                    missing.remove(client.role)
                for role in [] if self._stopping.is_set() else missing:
                    way = random.choice(list(EXIT_CODES)) if role == "writer" else "return"
                    self._clients.append(self._start(role, random.uniform(*LIFETIMES), way))
            time.sleep(0.3)

    def _look_after(self, client: _Client) -> None:
        code = client.process.poll()
        if code is None and time.monotonic() < client.ends + GRACE:
            return
        self._clients.remove(client)
        if code is None:
            client.process.kill()
            self.wrong_exits.append(f"{client.role} did not end")
        elif client.killed:
            self.exits[f"{client.role} killed"] += 1
        elif code == client.expected:
            self.exits[f"{client.role} ended with {code}"] += 1
        else:
            self.wrong_exits.append(f"{client.role} ended with {code}, not {client.expected}")

    def _start(self, role: str, seconds: float, way: str) -> _Client:
        number = next(self._numbers)
        name = f"{role}{number}"
        if role == "launcher":
            # Every third one starts with an empty folder, the others with what is there already.
            local = self._disk / f"local{number % 3 or number}"
            environ = {"DEJAVU_CACHE_URL": f"{local.as_uri()},{self._url}", "TRITON_INTERPRET": "1"}
            arguments = ["soak_test.launcher", self._folder, name, seconds]
        else:
            environ = {}
            arguments = ["soak_test.client", role, self._url, self._folder, name]
            arguments += [number * 1_000_000, seconds, way]
        with (self._folder / f"{role}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *map(str, arguments)],
                cwd=Path(__file__).parent.parent,
                env={**os.environ, "DEJAVU_CACHE_SHIPPED": "0", **environ},
                stdout=log,
                stderr=log,
            )
        return _Client(role, process, EXIT_CODES[way], time.monotonic() + seconds)
