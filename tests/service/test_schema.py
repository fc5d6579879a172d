"""Migrations and the schema's version."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import httpx
import pytest
from dejavu_service.app import create_app
from dejavu_service.errors import SchemaError
from dejavu_service.settings import ServerSettings
from dejavu_service.storage import schema
from dejavu_service.storage.database import Database
from sqlalchemy import inspect, text
from support.service import body, client_of, command, context, record_set


@pytest.fixture
def empty(empty_url: str) -> Any:
    opened = Database(empty_url)
    yield opened
    opened.close()


def test_the_migrations_make_what_the_tables_say(empty: Database) -> None:
    assert schema.state(empty) is schema.SchemaState.EMPTY
    schema.upgrade(empty)
    assert schema.state(empty) is schema.SchemaState.CURRENT
    schema.check_drift(empty)
    schema.upgrade(empty)


def test_down_to_nothing_and_up_again(empty: Database) -> None:
    schema.upgrade(empty)
    schema.downgrade(empty, "base")
    with empty.read() as connection:
        assert set(inspect(connection).get_table_names()) <= {"alembic_version", "sqlite_sequence"}
    schema.upgrade(empty)
    schema.check_drift(empty)


def test_records_survive_down_and_up(database: Database, client: httpx.Client, url: str) -> None:
    client.post("/v1/main/records", json=body(record_set()))
    before = client.get(f"/v1/main/contexts/{context().digest}/records")
    schema.downgrade(database, "0001")
    assert schema.state(database) is schema.SchemaState.STALE
    schema.upgrade(database)
    with client_of(create_app(ServerSettings(database=url))) as again:
        after = again.get(f"/v1/main/contexts/{context().digest}/records")
    assert (after.content, after.headers["etag"]) == (before.content, before.headers["etag"])


def test_ten_upgrade_at_once(empty_url: str) -> None:
    environ = {**os.environ, "DEJAVU_SERVER_DATABASE": empty_url}
    racing = [
        subprocess.Popen(
            command("db", "upgrade"), env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for _ in range(10)
    ]
    said = [(process.communicate()[0], process.returncode) for process in racing]
    assert [code for _, code in said] == [0] * 10, said
    opened = Database(empty_url)
    schema.check_drift(opened)
    opened.close()


def test_sqlite_upgrades_itself_and_postgres_asks(empty: Database) -> None:
    if empty.is_sqlite:
        schema.require_current(empty)
        assert schema.state(empty) is schema.SchemaState.CURRENT
        return
    with pytest.raises(SchemaError, match="dejavu-cache db upgrade --database postgresql"):
        schema.require_current(empty)
    assert schema.state(empty) is schema.SchemaState.EMPTY


def test_a_newer_schema_is_refused(database: Database, client: httpx.Client) -> None:
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for attempt in (schema.require_current, schema.upgrade):
        with pytest.raises(SchemaError, match="newer version"):
            attempt(database)
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert "newer" in answer.json()["detail"]


def test_a_stale_schema_is_not_ready(database: Database, client: httpx.Client) -> None:
    assert client.get("/readyz").json() == {"status": "ok"}
    schema.downgrade(database, "0001")
    assert "db upgrade" in client.get("/readyz").json()["detail"]
