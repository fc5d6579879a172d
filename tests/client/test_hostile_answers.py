"""Commands believe no answer that does not follow the protocol, and show no terminal's codes."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.bad_server import serve_answer
from support.command_line import run_cli
from support.records import MOMENT, config, context, record

from dejavu_cache.model.record import Failure, Measurement
from dejavu_cache.stores import FileStore

CODES = "\x1b[31mred\x1b]0;title\x07\rerror: none\nfake\x9b2J\u202e"


NEGATIVE = {"id": "x", "contexts": -1, "records": -5, "measurements": -7, "winners": 0}
ROWS = ("misses", "entries", "writers", "quarantines")
EMPTY_ROWS: dict[str, Any] = {name: [{}] for name in ROWS}


@pytest.mark.parametrize("answer", [{}, NEGATIVE, EMPTY_ROWS])
@pytest.mark.parametrize(
    "command",
    [
        "show --misses", "log", "quarantine list --writers", "quarantine list", "quarantine undo x",
        "quarantine add --host h", "quarantine add --host h --yes", "promote --to x",
    ],
)  # fmt: skip
def test_an_answer_that_lacks_what_was_asked_for_is_an_error(
    command: str, answer: dict[str, Any]
) -> None:
    with serve_answer("200 OK", json.dumps(answer).encode()) as server:
        seen = run_cli(*command.split(), "--store", server.url)
    assert (seen.returncode, seen.stdout) == (3, ""), seen
    assert f"{server.url} does not follow the protocol" in seen.stderr


def test_a_log_without_end_is_left() -> None:
    with serve_answer("200 OK", b'{"entries": [], "next": 5}') as server:
        assert run_cli("log", "--store", server.url).returncode == 3


@pytest.mark.parametrize("columns", [0, 80])
def test_an_error_of_a_server_is_one_line_without_codes(columns: int) -> None:
    with serve_answer("400 Bad Request", json.dumps({"detail": CODES}).encode()) as server:
        seen = run_cli("ls", "--store", server.url, columns=columns)
    assert seen.returncode == 4
    assert len(seen.stderr.splitlines()) == 1
    assert is_plain(seen.stderr)


@pytest.mark.parametrize("columns", [0, 80])
@pytest.mark.parametrize("command", ["show add", "explain add", "ls", "show add --json"])
def test_a_record_s_texts_show_no_codes(command: str, columns: int, tmp_path: Path) -> None:
    failed = Measurement(
        config=config(32), failure=Failure(kind="compile_error", reason=CODES), at=MOMENT, by=CODES
    )
    store = FileStore(tmp_path)
    store.put(context(), [record(32), record(64, failed)])
    seen = run_cli(*command.split(), "--store", tmp_path, columns=columns)
    assert seen.returncode == 0, seen
    assert is_plain(seen.stdout)
    if "--json" in command:
        json.loads(seen.stdout)


def is_plain(text: str) -> bool:
    controls = {char for char in text if char < " "} - {"\n", "\t"}
    return not controls and not {*text} & {"\x7f", "\x9b", "\u202e"}
