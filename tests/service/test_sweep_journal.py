"""A sweep keeps measurements until the server has them, and names those it refused."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.spool import Spool
from support.processes import environment
from support.service import running_server
from support.sweeping import Sweeps


@pytest.fixture
def sweeps(tmp_path: Path) -> Sweeps:
    return Sweeps(tmp_path)


def token(url: str, role: str) -> str:
    made = subprocess.run(
        [sys.executable, "-m", "dejavu_service", "token", "create", "--role", role, "--name", role],
        env=environment(DEJAVU_SERVER_DATABASE=url), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return made.stdout.split()[-1]


def patient(url: str, folder: Path) -> RemoteStore:
    """Return a client of the server's store that waits long enough for a busy machine."""
    return RemoteStore(ProtocolClient(url), wait=30, spool=Spool(url, folder / "spool"))


def journals(sweeps: Sweeps) -> list[Path]:
    """Return the folders of journals that have records."""
    folder = sweeps.folder / "cache" / "dejavu-cache" / "sweeps"
    return sorted({folder / path.relative_to(folder).parts[0] for path in folder.rglob("*.json")})


def test_a_server_that_goes_away_costs_nothing(sqlite_url: str, sweeps: Sweeps) -> None:
    with running_server(sqlite_url, sweeps.folder / "server.log") as server:
        process = sweeps.start("--store", server.base, BENCH_SECONDS="0.1")
        sweeps.wait_for(6)
        server.kill()
        out, err = process.communicate(timeout=240)
        (journal,) = journals(sweeps)
        assert process.returncode == 1, out + err
        assert f"{journal} waits for the next sweep" in err
        server.start()
        assert "0 configs measured" in sweeps.run("--store", server.base)
        with patient(server.base, sweeps.folder) as store:
            assert sweeps.recorded_in(store) == sweeps.whole()
    assert Counter(sweeps.measurements_taken).most_common(1)[0][1] == 1
    assert journals(sweeps) == []


def test_a_server_that_was_never_there_is_not_called_the_place_of_the_records(
    sweeps: Sweeps,
) -> None:
    nowhere = ("--store", "http://127.0.0.1:9", "--option", "cases=2")
    out = sweeps.run(*nowhere, code=1)
    assert "records are in http://127.0.0.1:9" not in out
    assert f"{journals(sweeps)[0]} waits for the next sweep" in out
    assert "0 configs measured" in sweeps.run(*nowhere, code=1)
    assert len(sweeps.measurements_taken) == 8
    (journal,) = journals(sweeps)
    assert sweeps.json(*nowhere, code=1)["kept"] == [str(journal)]


def test_what_a_token_may_not_write_waits_for_one_that_may(sqlite_url: str, sweeps: Sweeps) -> None:
    read, write = token(sqlite_url, "read"), token(sqlite_url, "write")
    with running_server(sqlite_url, sweeps.folder / "server.log") as server:
        into = ("--store", server.base, "--option", "cases=2")
        out = sweeps.run(*into, code=1, DEJAVU_CACHE_TOKEN=read)
        assert "refused with 403" in out
        assert f"{journals(sweeps)[0]} waits for the next sweep" in out
        assert "0 configs measured" in sweeps.run(*into, DEJAVU_CACHE_TOKEN=write)
        assert journals(sweeps) == []
        sweeps.run(*into, DEJAVU_CACHE_TOKEN=read)
    assert len(sweeps.measurements_taken) == 8


def test_a_folder_before_a_server_does_not_stand_in_for_it(sqlite_url: str, sweeps: Sweeps) -> None:
    with running_server(sqlite_url, sweeps.folder / "server.log") as server:
        both = ("--store", f"{sweeps.store},{server.base}", "--option", "cases=2")
        server.kill()
        assert "waits for the next sweep" in sweeps.run(*both, code=1)
        assert sweeps.recorded_times == sweeps.whole(2)
        server.start()
        assert "0 configs measured" in sweeps.run(*both)
        with patient(server.base, sweeps.folder) as store:
            assert sweeps.recorded_in(store) == sweeps.whole(2)
