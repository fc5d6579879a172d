"""Postgres moves to another machine, and may only be read meanwhile."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from dejavu_service.app import create_app
from dejavu_service.settings import ServerSettings
from dejavu_service.storage import contexts, database
from dejavu_service.storage.contexts import LockedContext
from sqlalchemy import Connection, make_url
from support.service import RECORDS, body, client_of, record, record_set, scenario


def set_read_only(url: str, value: str) -> None:
    """Decide whether sessions that begin from now on may only read."""
    with psycopg.connect(url, autocommit=True) as connection:
        name = make_url(url).database
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {value}")


@pytest.fixture
def client(postgres_url: str) -> Iterator[httpx.Client]:
    """Ask an app whose sessions may only read, although new ones may write."""
    settings = ServerSettings(database=postgres_url)
    with client_of(create_app(settings)) as opened:
        yield opened


def post(client: httpx.Client, m: int) -> httpx.Response:
    return client.post("/v1/main/records", json=body(record_set(record(m))))


def test_a_write_to_a_standby_is_tried_again_elsewhere(
    client: httpx.Client, postgres_url: str
) -> None:
    set_read_only(postgres_url, "on")
    refused = post(client, 1)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["detail"] == "the database may only be read now: try again"
    assert client.get(RECORDS).status_code == 404
    assert client.get("/readyz").status_code == 200
    set_read_only(postgres_url, "off")  # the connections that are left still may only read
    assert [post(client, 1).status_code for _ in range(3)][1:] == [200, 200]
    assert client.get(f"{RECORDS}/{scenario(1).digest}").status_code == 200


def test_a_session_that_was_ended_while_it_was_idle_is_tried_again(
    client: httpx.Client, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the server's machine sleeps in the middle of a transaction."""
    lock = contexts.lock

    def sleep(connection: Connection, *arguments: Any) -> LockedContext | None:
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 10")
        time.sleep(0.2)
        return lock(connection, *arguments)

    with monkeypatch.context() as slow:
        slow.setattr(contexts, "lock", sleep)
        assert post(client, 1).status_code == 503
    assert post(client, 1).status_code == 200


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_postgres_that_hangs_is_left(
    client: httpx.Client, postgres: Any, monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    """Its machine answers, so that no timeout of a socket ends the wait."""
    pid, lock = postgres.get_pid(), contexts.lock

    def signal_all(number: int) -> None:
        for each in (pid, *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            os.kill(int(each), number)

    def hang(*arguments: Any) -> LockedContext | None:
        signal_all(signal.SIGSTOP)
        return lock(*arguments)

    assert post(client, 1).status_code == 200
    try:
        with monkeypatch.context() as hanging:
            hanging.setattr(database._Bounded, "silence", (1.0, 1.0))
            if is_begun:
                hanging.setattr(contexts, "lock", hang)
            else:
                signal_all(signal.SIGSTOP)
            refused = post(client, 2)
    finally:
        signal_all(signal.SIGCONT)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert post(client, 2).status_code == 200


@pytest.fixture
def owner(postgres_url: str) -> Iterator[psycopg.Connection]:
    """Connect as the owner of the tables, all of which the role `visitor` may use meanwhile."""
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute("CREATE ROLE visitor LOGIN")
        for kind in ("TABLES", "SEQUENCES"):
            owner.execute(f"GRANT ALL ON ALL {kind} IN SCHEMA public TO visitor")
        yield owner
        owner.execute("DROP OWNED BY visitor")
        owner.execute("DROP ROLE visitor")


def test_a_role_without_rights_to_a_table_is_said_to_lack_them(
    postgres_url: str, owner: psycopg.Connection
) -> None:
    """As where another role owns the tables that an upgrade has made."""
    visiting = make_url(postgres_url).set(username="visitor")
    url = visiting.render_as_string(hide_password=False)
    with client_of(create_app(ServerSettings(database=url))) as client:
        assert post(client, 1).status_code == 200
        owner.execute("REVOKE ALL ON parts FROM visitor")
        refused = post(client, 2)
    assert refused.status_code == 503
    assert "rights of the server's role" in refused.json()["detail"]
