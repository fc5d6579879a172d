"""Servers that hang, drip, reset, redirect or lie.

A launch waits once, within its bound, and then not at all.
"""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from email.utils import formatdate
from pathlib import Path

import pytest
from dejavu_client.http.errors import RemoteError, UnreachableError
from dejavu_client.http.protocol_client import ProtocolClient, split_server_url
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.sender import Spool
from support.bad_server import BadServer, answer, drip, hang, say, serve_answer
from support.kernels import launch, load
from support.records import context, record

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.record import FORMAT, RecordSet
from dejavu_cache.model.scenario import Context
from dejavu_cache.stores import FileStore, TieredStore

WAIT = 0.25


def a_record_set(of: Context | None = None) -> bytes:
    records = RecordSet(context=of or context(), records=(record(1),))
    return records.model_dump_json(exclude_none=True).encode()


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


OTHER = a_record_set(context(kernel="other.kernel"))
NEWER = a_record_set().replace(b'"format":%d' % FORMAT, b'"format":99')
IMPOSSIBLE = a_record_set().replace(b'"median":1.0', b'"median":-1.0')
BAD: dict[str, Callable[[socket.socket], None]] = {
    "hangs": hang,
    "drips": drip,
    "resets": reset,
    "closes": lambda peer: None,
    "is no HTTP": say(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "fails": say(answer("500 Oops", b"Traceback")),
    "is away behind a proxy": say(answer("503 Unavailable", b"{}")),
    "is no JSON": say(answer("200 OK", b"<html>")),
    "is deep": say(answer("200 OK", b"[" * 200_000)),
    "is no object": say(answer("200 OK", b"[]")),
    "is no record set": say(answer("200 OK", b'{"records": 1}')),
    "is of another context": say(answer("200 OK", OTHER)),
    "is of a newer format": say(answer("200 OK", NEWER)),
    "has a timing that cannot be": say(answer("200 OK", IMPOSSIBLE)),
    "leads elsewhere": say(answer("302 Found", b"", "Location: http://127.0.0.1:1/")),
    "refuses": say(answer("403 No", b'{"detail": "not you"}')),
}


@pytest.fixture(params=BAD)
def server(request: pytest.FixtureRequest) -> Iterator[BadServer]:
    with closing(BadServer(BAD[request.param])) as bad:
        yield bad


@pytest.fixture
def store(server: BadServer, tmp_path: Path) -> Iterator[RemoteStore]:
    store = RemoteStore(ProtocolClient(server.url), wait=WAIT, spool=Spool("x", tmp_path / "spool"))
    yield store
    store.close()


def test_no_bad_server_is_believed_to_have_taken_records(store: RemoteStore) -> None:
    """Whoever hands over the only copy learns that it must be kept."""
    with pytest.raises(RemoteError):
        store.put(context(), [record(1), record(2)], now=True)
    assert len(store.spool) == 0


@pytest.mark.parametrize("lease", ["../../pins?x=\r\nEvil: 1", {"a": 1}, 7, "", "0" * 31])
def test_what_is_no_lease_becomes_no_part_of_a_request(lease: object) -> None:
    body = json.dumps({"lease": lease, "expires_in": 3}).encode()
    with (
        serve_answer("200 OK", body) as server,
        pytest.raises(RemoteError, match="does not follow the protocol"),
    ):
        ProtocolClient(server.url).lease(context(), record(1).scenario, "me", 30.0)


def test_reading_raises_in_time_and_then_at_once(store: RemoteStore, server: BadServer) -> None:
    """Reads give up long before a slow server does; an open circuit does not ask the server."""
    with pytest.raises(RemoteError):
        store.get(context(), record(1).scenario)
    if server.slow:
        assert server.finished == 0
    opened = not store.calls.closed
    for _ in range(100):
        with pytest.raises(RemoteError):
            store.get(context(), record(1).scenario)
    if opened:
        assert server.connections <= 2, "the first read, and once more should it be repeated"


PAST = f"Retry-After: {formatdate(1e9, usegmt=True)}"


@pytest.mark.parametrize(
    "said",
    [
        ["429 Too Many"], ["429 Too Many", "Retry-After: 0"], ["429 Too Many", PAST],
        ["503 Busy", "Retry-After: 0"], ["503 Busy", PAST],
    ],
    ids=", ".join,
)  # fmt: skip
def test_a_busy_server_that_asks_for_no_pause_is_left_alone_all_the_same(
    said: list[str], tmp_path: Path
) -> None:
    """As of a proxy's own default, or by a clock that is wrong."""
    status, *headers = said
    with serve_answer(status, b"{}", *headers) as server:
        store = RemoteStore(ProtocolClient(server.url), wait=WAIT, spool=Spool("x", tmp_path))
        with store.lease(context(), record(1).scenario, wait=3.0):
            pass
        store.close()
        assert 2 <= server.connections <= 8


def test_a_launch_goes_on_with_one_warning(
    store: RemoteStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, server: BadServer
) -> None:
    kernel = load(tmp_path / "kernels.py").add
    kernel._options["store"] = TieredStore([FileStore(tmp_path / "records"), store])
    for n in (100, 200, 100):
        launch(kernel, n)
    assert kernel.benchmarked == 6
    about_the_server = [message for message in caplog.messages if server.url in message]
    assert 1 <= len(about_the_server) <= 2, (
        "one about reading, and one about writing where that is refused"
    )


@pytest.mark.parametrize(
    "url",
    [
        "http://me:secret@host", "http://host?token=x", "http://host#x", "http://",
        "http://host:99999", "http://host:-1", "http://h/\1",
        "http://host?namespace=../main", "http://host?namespace=", "http://host?namespace=a/b",
    ],
)  # fmt: skip
def test_a_senseless_url_is_refused(url: str) -> None:
    with pytest.raises(SettingsError):
        split_server_url(url, "main")


@pytest.mark.parametrize("host", ["h..x", "ho st", "h" * 70])
def test_a_host_that_no_server_can_have_does_not_answer(host: str) -> None:
    base, _ = split_server_url(f"http://{host}", "main")
    with pytest.raises(UnreachableError, match="does not answer"):
        ProtocolClient(base).release("lease")


def test_a_server_may_stand_below_a_path() -> None:
    assert split_server_url("https://host:1/base/", "main") == ("https://host:1/base", "main")
