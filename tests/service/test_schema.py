"""Migrations and the schema's version."""

from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from dejavu_service.app import create_app
from dejavu_service.errors import SchemaError
from dejavu_service.settings import ServerSettings
from dejavu_service.storage import schema
from dejavu_service.storage.database import Database
from dejavu_service.storage.tables import metadata
from sqlalchemy import inspect, make_url, text
from support import service
from support.fork_server import COMMAND, light_nursery
from support.processes import environment


@pytest.fixture
def empty(empty_url: str) -> Any:
    opened = Database(empty_url)
    yield opened
    opened.close()


def state(database: Database) -> schema.SchemaState:
    with database.read() as connection:
        return schema.state(connection)


def drift(database: Database) -> Any:
    """Return how the tables that a database has differ from those that the code describes."""
    with database.read() as connection:
        return compare_metadata(MigrationContext.configure(connection), metadata)


def test_the_migrations_make_what_the_tables_say(empty: Database) -> None:
    assert state(empty) is schema.SchemaState.OUTDATED
    schema.upgrade(empty)
    assert state(empty) is schema.SchemaState.USABLE
    assert drift(empty) == []
    schema.upgrade(empty)


@pytest.mark.usefixtures("next_version")
def test_records_survive_an_upgrade(database: Database, client: httpx.Client) -> None:
    service.post(client, *map(service.record, range(3)))
    before = client.get(service.RECORDS)
    assert state(database) is schema.SchemaState.OUTDATED
    assert "db upgrade" in client.get("/readyz").json()["detail"]
    schema.upgrade(database)
    assert state(database) is schema.SchemaState.USABLE
    assert client.get("/readyz").json() == {"status": "ok"}
    after = client.get(service.RECORDS)
    assert (after.content, after.headers["etag"]) == (before.content, before.headers["etag"])


def test_several_upgrade_at_once(empty_url: str, tmp_path: Path) -> None:
    task: Any = {"folder": tmp_path, "env": environment(DEJAVU_SERVER_DATABASE=empty_url)}
    racing = [light_nursery().start_code(COMMAND, "db", "upgrade", **task) for _ in range(4)]
    assert [process.wait(240) for process in racing] == [0] * 4
    opened = Database(empty_url)
    assert drift(opened) == []
    opened.close()


def test_sqlite_upgrades_itself_and_postgres_asks(empty: Database) -> None:
    if empty.is_sqlite:
        schema.require_current(empty)
        assert state(empty) is schema.SchemaState.USABLE
        return
    with pytest.raises(SchemaError, match="dejavu-cache db upgrade --database 'postgresql:"):
        schema.require_current(empty)
    assert state(empty) is schema.SchemaState.OUTDATED


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_of_another_encoding_keeps_what_it_can(postgres: Any, encoding: str) -> None:
    name = f"encoded_{encoding.lower()}"
    with psycopg.connect(postgres.get_uri(), autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0"
            " LC_COLLATE 'C' LC_CTYPE 'C'".encode()
        )
    url = make_url(postgres.get_uri()).set(database=name).render_as_string(hide_password=False)
    opened = Database(url)
    schema.upgrade(opened)
    opened.close()
    with service.client_of(create_app(ServerSettings(database=url))) as client:
        for kernel, status in (
            ("shop.möbius", 200),
            ("shop.☃", 422 if "LATIN" in encoding else 200),
        ):
            sent = service.record_set(of=service.context(kernel))
            assert client.post("/v1/main/records", json=service.body(sent)).status_code == status
            found = client.get(f"{service.home(service.context(kernel))}/records")
            assert found.status_code == (200 if status == 200 else 404)
    with psycopg.connect(postgres.get_uri(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def test_a_newer_schema_is_refused(database: Database, client: httpx.Client) -> None:
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '2.1'"))
    for attempt in (schema.require_current, schema.upgrade):
        with pytest.raises(SchemaError, match="newer version"):
            attempt(database)
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert "newer" in answer.json()["detail"]


def test_a_newer_schema_that_only_adds_is_served(database: Database, client: httpx.Client) -> None:
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '1.99'"))
    for attempt in (schema.require_current, schema.upgrade):
        attempt(database)
    assert state(database) is schema.SchemaState.USABLE
    assert client.get("/readyz").status_code == 200
    service.post(client)


def describe(database: Database) -> dict[str, tuple[dict[str, tuple[str, bool]], set[str]]]:
    """Return each table's columns, with type and nullability, and its constraints."""
    with database.read() as connection:
        inspector = inspect(connection)
        described = {}
        for table in inspector.get_table_names():
            columns = inspector.get_columns(table)
            bounds = [
                *inspector.get_unique_constraints(table),
                *inspector.get_foreign_keys(table),
                *inspector.get_check_constraints(table),
                *(index for index in inspector.get_indexes(table) if index["unique"]),
            ]
            described[table] = (
                {column["name"]: (str(column["type"]), column["nullable"]) for column in columns},
                {repr(sorted((key, str(of)) for key, of in bound.items())) for bound in bounds},
            )
        return described


@pytest.mark.usefixtures("next_version")
def test_a_migration_that_older_code_can_live_with_only_adds(empty: Database) -> None:
    series = ""
    newest_first = ScriptDirectory(str(schema.migrations_folder())).walk_revisions()
    for script in [*newest_first][::-1]:
        before = describe(empty)
        schema.upgrade(empty, script.revision)
        earlier, series = series, script.revision.partition(".")[0]
        for table, (columns, bounds) in before.items() if series == earlier else ():
            columns_after, bounds_after = describe(empty)[table]
            assert columns.items() <= columns_after.items()
            assert all(
                nullable for name, (_, nullable) in columns_after.items() if name not in columns
            )
            assert bounds_after <= bounds
