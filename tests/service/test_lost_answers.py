"""Commands whose answer gets lost say nothing that is not so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dejavu_client.http.protocol_client import ProtocolClient
from support.command_line import run_cli
from support.lossy_proxy import lossy_proxy
from support.service import Running, record, record_set, running_server

HOST = "h200-1"
"""The host of the records' measurements."""


@pytest.fixture
def server(sqlite_url: str, tmp_path: Path) -> Iterator[Running]:
    with running_server(sqlite_url, tmp_path / "log") as started:
        ProtocolClient(started.base).send(record_set(record(1), record(2)))
        yield started


def quarantines(server: Running) -> list[tuple[int, bool]]:
    """Return the quarantines by how many parts they hide and whether they are undone."""
    listed = ProtocolClient(server.base).list_quarantines()
    return [(item["parts"], item["undone"] is not None) for item in listed]


def test_a_quarantine_whose_answer_gets_lost_is_not_said_to_be_empty(server: Running) -> None:
    """It is made once, and the error says that it may be made."""
    command = ("quarantine", "add", "--host", HOST, "--yes", "--store")
    with lossy_proxy(server.base, "POST", "/quarantines") as proxy:
        seen = run_cli(*command, proxy)
    assert (seen.returncode, seen.stdout) == (3, ""), seen
    assert "may have done what was asked" in seen.stderr
    assert quarantines(server) == [(6, False)]


def test_an_undo_whose_answer_gets_lost_is_not_said_to_be_impossible(server: Running) -> None:
    """It is done once, and the error says that it may be done."""
    identity = ProtocolClient(server.base).quarantine({"host": HOST})["id"]
    with lossy_proxy(server.base, "DELETE", "/quarantines") as proxy:
        seen = run_cli("quarantine", "undo", identity, "--store", proxy)
    assert (seen.returncode, seen.stdout) == (3, ""), seen
    assert "may have done what was asked" in seen.stderr
    assert quarantines(server) == [(0, True)]


def test_a_deletion_whose_answer_gets_lost_is_not_said_to_be_none(server: Running) -> None:
    """A second request would be answered that there was nothing to delete."""
    with lossy_proxy(server.base, "DELETE", "/records") as proxy:
        seen = run_cli("gc", "--all", "--yes", "--store", proxy)
    assert (seen.returncode, seen.stdout) == (3, ""), seen
    assert "may have done what was asked" in seen.stderr
    assert run_cli("gc", "--all", "--store", server.base).stdout == "0 records would be deleted\n"


@pytest.mark.parametrize("command", ["promote --to other", "quarantine add --host h200-1"])
def test_what_may_be_asked_twice_is(command: str, server: Running) -> None:
    """A lost answer to a promotion, or to a question, costs nobody anything."""
    path = "/promote" if "promote" in command else "/quarantines"
    with lossy_proxy(server.base, "POST", path) as proxy:
        seen = run_cli(*command.split(), "--store", proxy)
    assert (seen.returncode, seen.stderr) == (0, ""), seen
    assert "2 records" in seen.stdout
