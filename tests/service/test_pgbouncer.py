"""Replicas behind PgBouncer, which gives every transaction another session."""

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psycopg
import pytest
from dejavu_service.app import create_app
from dejavu_service.settings import ServerSettings
from dejavu_service.storage import schema
from dejavu_service.storage.database import Database
from sqlalchemy import make_url, text
from support import service

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


@pytest.fixture
def pooled_url(empty_postgres: str) -> Iterator[str]:
    """Return the URL of an empty database by a PgBouncer with few sessions."""
    if PGBOUNCER is None:
        pytest.skip("pgbouncer is not installed")
    url, port = make_url(empty_postgres), service.free_port()
    socket_folder = str(url.query["host"])
    # PgBouncer does not run as root, and as another user needs folders that it may read.
    as_nobody = ["--user", "nobody"] if getpass.getuser() == "root" else []
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        for path in [folder, socket_folder] if as_nobody else []:
            os.chmod(path, 0o755)
        users, settings = Path(folder, "users.txt"), Path(folder, "pgbouncer.ini")
        users.write_text(f'"{url.username}" ""\n')
        settings.write_text(
            f"[databases]\n{url.database} = host={socket_folder} user={url.username}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = any\nauth_file = {users}\n"
            "pool_mode = transaction\ndefault_pool_size = 3\n"
        )
        command = [PGBOUNCER, "--quiet", *as_nobody, str(settings)]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 240
        while not listens(port):
            assert process.poll() is None, "PgBouncer ended"
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield f"postgresql://{url.username}@127.0.0.1:{port}/{url.database}"
        process.terminate()
        process.wait(240)


def listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


def exchange(client: httpx.Client, number: int) -> list[int]:
    """Use every kind of statement, and return the answers' statuses."""
    namespace, statuses = f"pr-{number}", []
    for m in range(8):
        sent = service.body(service.record_set(service.record(m)))
        answers = [
            client.post("/v1/main/records", json=sent),
            client.post(f"/v1/{namespace}/records", json=sent),
            client.get(service.RECORDS),
            client.get(f"{service.RECORDS}/{service.scenario(m).digest}"),
            client.post("/v1/main/leases", json=service.lease_wish(1000 * number + m)),
            client.post(f"/v1/{namespace}/promote", json={"to": "main"}),
        ]
        statuses += [answer.status_code for answer in answers]
    return statuses


def test_replicas_need_no_session_of_their_own(pooled_url: str) -> None:
    database = Database(pooled_url)
    schema.upgrade(database)
    schema.require_current(database)
    settings = ServerSettings(database=pooled_url, without_tokens=True)
    with (
        service.client_of(create_app(settings)) as first,
        service.client_of(create_app(settings)) as second,
        ThreadPoolExecutor() as pool,
    ):
        statuses = list(pool.map(exchange, [first, second] * 2, range(4)))
        assert [status for answered in statuses for status in answered if status != 200] == []
        assert first.get("/readyz").status_code == second.get("/readyz").status_code == 200
    with database.read() as connection:
        assert connection.execute(text("SHOW statement_timeout")).scalar() == "40s"
    database.close()
    with psycopg.connect(pooled_url, autocommit=True) as other:
        row = other.execute("SHOW statement_timeout").fetchone()
        assert row == ("0",), "a session that is given back has no settings of ours"
