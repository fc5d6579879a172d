"""Faults of a deployment and its clients, one after the other, at random."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .deployment import Deployment, Replica, SmallDisk
from .proxy import Behaviour, FaultyProxy
from .supervisor import Supervisor

WITHOUT_DATABASE = 3
"""Exit code of a server whose database does not answer when it starts."""

PAUSES = (2.0, 8.0)
"""Seconds between two faults."""


class FaultInjector:
    """Makes faults until it is told to stop, and leaves everything whole.

    Attributes:
        events: the seconds since the start, and the name, of each fault.
        unclean: what did not end as it should.
    """

    def __init__(
        self, deployment: Deployment, disk: SmallDisk, proxy: FaultyProxy, clients: Supervisor
    ) -> None:
        """Prepare; `start` begins."""
        self.events: list[tuple[float, str]] = []
        self.unclean: list[str] = []
        self._deployment, self._disk, self._proxy = deployment, disk, proxy
        self._clients = clients
        self._started = time.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Begin."""
        self._started = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """End after the fault that is under way."""
        self._stopping.set()
        self._thread.join()
        self._deployment.ensure_postgres()
        self._revive_replicas()

    def _run(self) -> None:
        faults: list[Callable[[], str]] = [
            self._kill_replica,
            self._restart_replica,
            self._kill_client,
            self._kill_client,
            self._disturb_network,
            self._disturb_network,
        ]
        if self._disk.can_be_full:
            faults.append(self._fill_disk)
        if self._deployment.has_postgres:
            faults.append(self._kill_postgres)
        while not self._stopping.wait(random.uniform(*PAUSES)):
            at = time.monotonic() - self._started
            self.events.append((round(at, 1), random.choice(faults)()))
            self._revive_replicas()

    def _kill_replica(self) -> str:
        # The first one is never killed: its memory is watched.
        replica = random.choice(self._deployment.replicas[1:])
        self._end_replica(replica, signal.SIGKILL)
        self._wait(0.0, 4.0)
        replica.start()
        return "replica killed"

    def _restart_replica(self) -> str:
        replica = random.choice(self._deployment.replicas[1:])
        self._end_replica(replica, signal.SIGTERM)
        replica.start()
        return "replica restarted"

    def _end_replica(self, replica: Replica, number: signal.Signals) -> None:
        code = replica.stop(number)
        if code not in (0, -number, WITHOUT_DATABASE):
            self.unclean.append(f"a replica ended with {code}")

    def _revive_replicas(self) -> None:
        """Start again, as an orchestrator would, what ended because it found no database."""
        for replica in self._deployment.replicas:
            code = replica.process.poll()
            if code is None:
                continue
            if code != WITHOUT_DATABASE:
                self.unclean.append(f"a replica ended with {code}")
            replica.start()

    def _kill_client(self) -> str:
        return f"{self._clients.kill_one()} killed"

    def _disturb_network(self) -> str:
        behaviours: tuple[Behaviour, ...] = ("slow", "hang", "cut")
        self._proxy.behaviour = random.choice(behaviours)
        name = f"network: {self._proxy.behaviour}"
        self._wait(2.0, 8.0)
        self._proxy.behaviour = "pass"
        return name

    def _fill_disk(self) -> str:
        with self._full_disk():
            self._wait(2.0, 6.0)
        return "disk full"

    @contextmanager
    def _full_disk(self) -> Iterator[None]:
        self._disk.fill()
        try:
            yield
        finally:
            self._disk.clear()
            self._deployment.ensure_postgres()  # it may have given up without room for its log

    def _kill_postgres(self) -> str:
        self._deployment.kill_postgres()
        self._wait(0.0, 3.0)
        self._deployment.ensure_postgres()
        return "Postgres killed"

    def _wait(self, least: float, most: float) -> None:
        time.sleep(random.uniform(least, most))
