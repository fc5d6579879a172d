"""A server process under the floods that its weakest clients can send."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import httpx
import pytest
from dejavu_service.storage.database import Database
from sqlalchemy import text
from support import service
from support.sweeping import wait_until

MakeToken = Callable[..., dict[str, str]]
JSON = {"Content-Type": "application/json"}
LINES = {"Content-Type": "application/x-ndjson"}
_Result = TypeVar("_Result")
_numbers = itertools.count()


@pytest.fixture(scope="module")
def flooded_url(migrated_database: Callable[[str], AbstractContextManager[str]]) -> Iterator[str]:
    with migrated_database("sqlite") as url:
        yield url


@pytest.fixture(scope="module")
def bearer(flooded_url: str) -> MakeToken:
    return partial(_headers_of, flooded_url)


@pytest.fixture(scope="module")
def server(
    flooded_url: str, bearer: MakeToken, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[service.Running]:
    bearer("admin")
    log = tmp_path_factory.mktemp("floods") / "log"
    with service.running_server(flooded_url, log, {"DEJAVU_SERVER_OPEN_READ": "true"}) as started:
        yield started


def _headers_of(url: str, role: str, *namespaces: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {service.make_token(url, role, *namespaces)}"}


def _peak_mib(server: service.Running) -> float:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def _while_alive(server: service.Running, attack: Callable[[], _Result]) -> _Result:
    """Run an attack in a thread and ask for `/livez` until it ends."""
    with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=server.base, timeout=240) as client:
        attacking = pool.submit(attack)
        while not attacking.done():
            assert client.get("/livez").status_code == 200
            time.sleep(0.02)
    return attacking.result()


def _count_lines(server: service.Running) -> int:
    """Count the log's lines once those of all earlier requests are written."""
    mark = f"/v1/mark-{next(_numbers)}/"
    httpx.get(f"{server.base}{mark}")
    wait_until(lambda: mark in server.log.read_text())
    return len(server.log.read_text().splitlines())


def _next_lines(server: service.Running, before: int, count: int) -> list[str]:
    """Wait for lines of the log."""
    wait_until(lambda: len(server.log.read_text().splitlines()) >= before + count)
    return server.log.read_text().splitlines()[before:]


FLOODS: dict[str, tuple[bytes, tuple[int, ...]]] = {
    "wrong misses": (b'{"misses":[' + b"0," * 2**21 + b"0]}", (413,)),
    "few wrong misses": (b'{"misses":[' + b"0," * 9000 + b"0]}", (422,)),
    "unknown fields": (
        b'{"misses":[{' + b",".join(b'"%d":0' % n for n in range(99_000)) + b"}]}",
        (422,),
    ),
    "empty lists": (b'{"x":[' + b"[]," * 2**20 + b'[]],"misses":[]}', (413,)),
    "lists of lists": (b'{"misses":[[' + b"[]," * 2**20 + b"[]]]}", (413,)),
    "depth": (b'{"misses":[' + b"[" * 2**16 + b"]" * 2**16 + b"]}", (400,)),
    "no body at all": (b"", (422,)),
    "one long text": (b'{"misses":["' + b"\\n" * 2**20 + b'"]}', (422,)),
    "backslashes": (b'{"misses":["' + b"\\" * 3 * 2**20 + b'u0001 \\\\u0000"]}', (400, 422)),
    "too long a body": (b" " * (9 * 2**20), (413,)),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_read_token_cannot_fill_the_memory(
    server: service.Running, bearer: MakeToken, name: str
) -> None:
    sent, statuses = FLOODS[name]
    headers = {**bearer("read", "pr-1"), **JSON}

    def post(namespace: str) -> httpx.Response:
        url = f"{server.base}/v1/{namespace}/misses"
        return httpx.post(url, content=sent, headers=headers, timeout=240)

    assert _while_alive(server, lambda: post("main")).status_code == 403
    answer = _while_alive(server, lambda: post("pr-1"))
    assert answer.status_code in statuses, answer.text[:300]
    assert len(answer.content) < 20_000
    assert _peak_mib(server) < 300


@pytest.mark.parametrize("path", ["leases/import", "records/import", "misses/import", "import"])
def test_the_end_of_a_path_gives_no_room(server: service.Running, path: str) -> None:
    def put() -> bytes:
        with service.begin_post(server, f"/v1/main/{path}", 900_000_000) as opened:
            answer = opened.recv(300)
            with suppress(OSError):
                for _ in range(100):
                    opened.sendall(b" " * 2**20)
        return answer

    answer = _while_alive(server, put)
    assert answer[9:12] in (b"403", b"404", b"405"), answer
    assert _peak_mib(server) < 300


def test_many_bodies_at_once_share_the_memory(server: service.Running, bearer: MakeToken) -> None:
    mine = bearer("read")
    opened = [service.begin_post(server, "/v1/main/misses", 4_000_000, mine) for _ in range(30)]
    for connection in opened:
        connection.settimeout(1)
        with suppress(OSError):  # the server answered already, or reads no more
            connection.sendall(b" " * 3_900_000)
    assert httpx.get(f"{server.base}/livez").status_code == 200
    time.sleep(0.3)
    refused = 0
    for connection in opened:
        with suppress(OSError):
            refused += b" 503 " in connection.recv(100)
        connection.close()
    assert refused > 10
    assert _peak_mib(server) < 300
    sent = {"misses": [service.miss(1)]}
    assert httpx.post(f"{server.base}/v1/main/misses", json=sent, headers=mine).status_code == 200


def test_imports_that_drip_keep_no_other_writer_waiting(
    server: service.Running, bearer: MakeToken
) -> None:
    """As of many jobs behind a slow network, or of an admin of pull requests alone."""
    admin = bearer("admin", "pr-*") | LINES
    paths = [f"/v1/pr-{number // 2}/import" for number in range(8)]
    opened = [service.begin_post(server, path, 100_000, admin, b" ") for path in paths]
    time.sleep(0.5)
    sent, mine = service.body(service.record_set()), bearer("write", "main")
    answer = httpx.post(f"{server.base}/v1/main/records", json=sent, headers=mine, timeout=240)
    assert answer.status_code == 200, answer.text
    mine = bearer("admin", "main") | LINES
    imported = httpx.post(f"{server.base}/v1/main/import", headers=mine, timeout=240)
    assert imported.status_code == 200, imported.text
    for connection in opened:
        connection.close()


def test_who_hangs_up_leaves_one_line(server: service.Running, bearer: MakeToken) -> None:
    before = _count_lines(server)
    admin = bearer("admin")
    for path in ("import", "records", "misses"):
        with service.begin_post(server, f"/v1/main/{path}", 100_000, admin, b"[["):
            time.sleep(0.1)
    lines = [json.loads(line) for line in _next_lines(server, before, 3)]
    assert [line["status"] for line in lines] == [499] * 3
    assert all("traceback" not in line for line in lines)


def test_no_header_forges_the_log(server: service.Running) -> None:
    before = _count_lines(server)
    httpx.post(
        f"{server.base}/v1/main/records%0d%0a%7B%22forged%22:1%7D%1b[2J{'x' * 5000}",
        headers={"X-Forwarded-For": "6.6.6.6", "X-Request-Id": '"}\t{"forged": 1}'},
    )
    (line,) = _next_lines(server, before, 1)
    logged = json.loads(line)
    assert logged["client"] == "127.0.0.1"
    assert len(line) < 2000
    assert "forged" not in logged["request"]
    assert "\x1b" not in line


def test_a_locked_context_leaves_room_for_others(postgres_url: str, tmp_path: Path) -> None:
    bearer = partial(_headers_of, postgres_url)
    writer, reader = bearer("write", "main"), bearer("read", "other")
    with (
        service.running_server(postgres_url, tmp_path / "log") as server,
        httpx.Client(base_url=server.base, timeout=240) as client,
    ):

        def post(m: int) -> int:
            sent = service.body(service.record_set(service.record(m)))
            return client.post("/v1/main/records", json=sent, headers=writer).status_code

        assert post(1) == 200
        database = Database(postgres_url)
        with ThreadPoolExecutor(48) as pool, database.engine.connect() as locking:
            locking.execute(text("SELECT id FROM contexts WHERE namespace = 'main' FOR UPDATE"))
            statuses = pool.map(post, range(2, 50))
            time.sleep(1)
            for path in ("/v1/other/contexts", "/readyz", "/livez"):
                answer = client.get(path, headers=reader, timeout=10)
                assert answer.status_code == 200, path
            locking.rollback()
        database.close()
        assert list(statuses) == [200] * 48
