"""Bad input: a 4xx that says what to change, and nothing written."""

import json
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from dejavu_service.app import create_app
from dejavu_service.errors import InvalidJsonError, InvalidValueError
from dejavu_service.problems import respond_to
from dejavu_service.services.requests import validate_json
from dejavu_service.settings import ServerSettings
from dejavu_service.storage import contexts
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from support.service import (
    RECORDS,
    body,
    client_of,
    context,
    lease_wish,
    post,
    record,
    record_set,
    scenario,
)

from dejavu_cache.model.record import FORMAT, RecordSet

GOOD = json.dumps(body(record_set()))
DEEP = b'{"context":' * 5000


def replace(old: str, new: str, status: int = 422) -> tuple[bytes, int]:
    """Return a good body in which something else stands, and the status of its answer."""
    assert old in GOOD
    return GOOD.replace(old, new).encode(), status


BODIES: dict[str, tuple[bytes, int]] = {
    "nothing": (b"", 422),
    "no JSON": (b"{", 400),
    "two values": (b"{} {}", 400),
    "a list": (b"[]", 422),
    "null": (b"null", 422),
    "deep": (DEEP, 400),
    "NaN": replace('"median": 0.1,', '"median": NaN,', 400),
    "Infinity": replace('"median": 0.1,', '"median": Infinity,', 400),
    "1e999": replace('"median": 0.1,', '"median": 1e999,'),
    "a huge integer": replace("4096", "9" * 400),
    "an endless integer": replace("4096", "9" * 5000, 400),
    "a negative median": replace('"median": 0.1,', '"median": -1,'),
    "a text for a number": replace('"median": 0.1,', '"median": "fast",'),
    "a number as a text": replace('"median": 0.1,', '"median": "0.1",'),
    "a yes for a number": replace('"units": 132', '"units": true'),
    "an unknown field": replace('"median": 0.1,', '"median": 0.1, "speed": 1,'),
    "a missing field": replace('"triton": "3.6.0"', '"codegen": "x"'),
    "NUL": replace("ann@h200-1", "ann\\u0000", 400),
    "half a surrogate": replace("ann@h200-1", "\\ud800", 400),
    "no UTF-8": (GOOD.encode().replace(b"ann@h200-1", b"\xff\xfe"), 400),
    "a control character": replace("shop.kernels.matmul", "a\\u0001b"),
    "the year 1": replace("2026-01-02T03:04:05Z", "0001-01-01T00:00:00+14:00"),
    "the year 9999": replace("2026-01-02T03:04:05Z", "9999-12-31T23:59:59-14:00"),
    "no date": replace("2026-01-02T03:04:05Z", "yesterday"),
    "no offset": replace("2026-01-02T03:04:05Z", "2026-01-02T03:04:05"),
    "a newer format": replace('"format": 2', f'"format": {FORMAT + 1}'),
    "format 0": replace('"format": 2', '"format": 0'),
    "one config twice": replace('"BLOCK_M": 32', '"BLOCK_M": 16'),
    "too many bytes": (b" " * 100_001, 413),
}


@pytest.fixture
def client(shared_client: httpx.Client) -> httpx.Client:
    """Nothing that is sent here is ever written."""
    return shared_client


def _check_problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    said: dict[str, Any] = answer.json()
    assert said["status"] == status
    assert said["detail"]
    return said


@pytest.mark.parametrize("name", BODIES)
def test_a_malformed_body_is_refused_and_nothing_is_written(
    client: httpx.Client, name: str
) -> None:
    sent, status = BODIES[name]
    answer = client.post(
        "/v1/main/records", content=sent, headers={"Content-Type": "application/json"}
    )
    _check_problem(answer, status)
    assert client.get("/v1/main/contexts").json()["contexts"] == []


def test_an_error_names_the_field(client: httpx.Client) -> None:
    sent = json.loads(GOOD)
    sent["records"][0]["measurements"][0]["speed"] = 1
    said = _check_problem(client.post("/v1/main/records", json=sent), 422)
    assert said["errors"][0]["loc"] == ["records", 0, "measurements", 0, "speed"]
    assert "speed" in said["detail"]


@given(st.text(alphabet='\\u0"\x00', max_size=12))
def test_an_escaped_nul_is_told_from_escaped_backslashes(value: str) -> None:
    with pytest.raises(InvalidJsonError if "\x00" in value else InvalidValueError):
        validate_json(json.dumps({"value": value}).encode(), RecordSet)


def test_few_errors_are_listed_and_the_others_are_not_kept() -> None:
    text = b'{"records": [{"scenario": {}, "measurements": [' + b"0," * 400 + b"0]}]}"
    with pytest.raises(InvalidValueError) as raised:
        validate_json(text, RecordSet)
    assert raised.value.__context__ is None
    assert len(raised.value.errors) == 20
    assert raised.value.count >= 400


def test_a_body_that_is_not_plain_json_or_is_too_long_is_refused(client: httpx.Client) -> None:
    plain = {"Content-Type": "application/json"}
    for headers, status in (
        ({}, 415), ({"Content-Type": "text/plain"}, 415),
        (plain | {"Content-Encoding": "br"}, 415), (plain | {"Content-Length": f"{10**12}"}, 413),
    ):  # fmt: skip
        _check_problem(client.post("/v1/main/records", content=GOOD, headers=headers), status)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../etc/passwd", "/v1/%2e%2e/contexts", "/v1/..%2f..%2fetc/contexts",
        "/v1/.hidden/contexts", "/v1/a%00b/contexts", "/v1/main/contexts/..%2f..%2fpasswd/records",
        "/v1/main/contexts/ABC/records", f"/v1/main/contexts/{context().digest}/records/{'0' * 23}",
        f"/v1/{'n' * 65}/contexts", "/pages/..%2f..%2fetc", "/v2/main/contexts", "//etc/passwd",
        "/v1/main/contexts%0d%0aX: y",
    ],
)  # fmt: skip
def test_tricks_with_paths_find_nothing(client: httpx.Client, path: str) -> None:
    target = httpx.URL("http://localhost", raw_path=path.encode())
    _check_problem(client.get(target), 404)


def test_queries_of_impossible_values_and_methods_that_a_path_lacks_are_refused(
    client: httpx.Client,
) -> None:
    for query in ("kernel=%00", "kernel=", "limit=0", "limit=x", f"limit={10**20 - 1}", "after=x"):
        _check_problem(client.get(f"/v1/main/contexts?{query}"), 422)
    _check_problem(client.patch("/v1/main/records"), 405)


def test_a_lease_of_an_impossible_length_is_refused(client: httpx.Client) -> None:
    for ttl in (0, -1, 1e300, "x", "5", True, None, 10**23 - 1):
        _check_problem(client.post("/v1/main/leases", json={**lease_wish(), "ttl": ttl}), 422)


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (psycopg.errors.DeadlockDetected("deadlock detected"), "busy with others"),
        (psycopg.errors.LockNotAvailable("canceling statement"), "busy with others"),
        (sqlite3.OperationalError("database is locked"), "busy with others"),
        (psycopg.errors.DiskFull("could not extend file"), "has no room left on its disk"),
        (sqlite3.OperationalError("disk I/O error"), "does not answer"),
        (psycopg.OperationalError("connection refused"), "does not answer"),
    ],
)
def test_a_503_says_whether_the_database_is_away_or_busy(cause: Exception, said: str) -> None:
    for error in (cause, OperationalError("SELECT 1", {}, cause)):
        answer = respond_to(error)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert said in json.loads(bytes(answer.body))["detail"]


def test_a_full_disk_is_said_to_be_full_and_serves_reads(sqlite_url: str) -> None:
    app = create_app(ServerSettings(database=sqlite_url))
    engine = app.state.server.database.engine
    event.listen(engine, "connect", lambda opened, _: opened.execute("PRAGMA max_page_count = 1"))
    with client_of(app) as client:
        many = record_set(*(record(m) for m in range(500)))
        refused = client.post("/v1/main/records", json=body(many))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["detail"] == "the database has no room left on its disk: try again"
        assert client.get("/v1/main/contexts").json()["contexts"] == []


def test_a_damaged_file_is_named_and_the_log_says_nothing_of_its_records(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ServerSettings(database=sqlite_url, without_tokens=True)
    with client_of(create_app(settings)) as client:
        for m in range(0, 600, 100):
            post(client, *(record(m + i) for i in range(100)))
    path = sqlite_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'records'"
        ((page,),) = connection.execute(query)
    with open(path, "r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(random.Random(0).randbytes(4096))
    with client_of(create_app(settings)) as client:
        answers = [client.get(at) for at in ("/readyz", RECORDS, f"{RECORDS}/{scenario().digest}")]
        answers.append(client.post("/v1/main/records", json=body(record_set(record(7777)))))
        for answer in answers:
            assert answer.status_code == 503, answer.text
            assert answer.headers["retry-after"] == "60"
            assert "restore the backup" in answer.json()["detail"]
        assert "dejavu_database_up 0.0" in client.get("/metrics").text
        assert client.get("/livez").status_code == 200
    assert "the database is damaged" in caplog.text
    assert "7777" not in caplog.text


def remove(file: Path) -> None:
    """Tidy up."""
    file.rename(file.with_name("moved"))


def put_a_copy_there(file: Path) -> None:
    """Restore a backup while the server runs."""
    content = file.read_bytes()
    file.rename(file.with_name("moved"))
    file.write_bytes(content)


def remove_latest_writes(file: Path) -> None:
    """Restore a backup into the same file."""
    Path(f"{file}-wal").unlink()


def mount_a_folder(file: Path) -> None:
    """Mount another volume."""
    file.parent.rename(file.parent.with_name("other"))
    file.parent.mkdir()


@pytest.mark.parametrize("change", [remove, put_a_copy_there, remove_latest_writes, mount_a_folder])
def test_nothing_is_confirmed_that_goes_to_a_file_which_is_not_there(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    monkeypatch.setattr("dejavu_service.server.TOKEN_SECONDS", 3600.0)
    file = tmp_path / "volume" / "server.sqlite3"
    file.parent.mkdir()
    shutil.copy(sqlite_url.removeprefix("sqlite:///"), file)
    with client_of(create_app(ServerSettings(database=f"sqlite:///{file}"))) as client:
        ask = partial(client.post, "/v1/main/records", json=body(record_set()))
        look = partial(client.get, RECORDS)
        assert (ask().status_code, look().status_code) == (200, 200)
        change(file)
        for refused in (ask(), look()):
            assert refused.status_code == 503
            assert "moved, replaced or deleted" in refused.json()["detail"]
        assert client.get("/readyz").status_code == 503
        assert "dejavu_database_up 0.0" in client.get("/metrics").text
        moved = file.with_name("moved")
        if moved.exists():
            moved.replace(file)
            assert ask().status_code == 200
            assert client.get("/readyz").status_code == 200


def test_an_import_without_room_for_temporary_files_is_said_to_lack_it(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "no folder"))
    with client_of(create_app(ServerSettings(database=sqlite_url))) as client:
        lines, headers = b" \n" * 3_000_000, {"Content-Type": "application/x-ndjson"}
        refused = client.post("/v1/main/import", content=lines, headers=headers)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        assert "temporary files" in refused.json()["detail"]


def test_what_nobody_foresaw_names_the_request(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(contexts, "select_with_records", lambda *_: 1 / 0)
    with client_of(create_app(ServerSettings(database=url))) as client:
        answer = client.get("/v1/main/contexts", headers={"X-Request-Id": "abc-1"})
    assert "abc-1" in _check_problem(answer, 500)["detail"]
    assert answer.headers["x-request-id"] == "abc-1"
    assert [
        vars(entry)["fields"]["request"] for entry in caplog.records if entry.levelname == "ERROR"
    ] == ["abc-1"]


def test_a_request_id_is_echoed_or_made(client: httpx.Client) -> None:
    for sent, is_echoed in (("mine", True), ("", False), ("a b", False), ("x" * 65, False)):
        answered = client.get("/livez", headers={"X-Request-Id": sent}).headers["x-request-id"]
        assert answered
        assert (answered == sent) == is_echoed
