"""A request ends in time, however a server hangs, drips or reads, and with the program."""

import gc
import socket
import time
from collections.abc import Callable, Iterator
from itertools import count

import httpx
import pytest
from dejavu_client.http import protocol_client, transport
from dejavu_client.http.errors import NonsenseError, SilenceError, UnreachableError
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.transport import Transport
from support.bad_server import BadServer, answer, drip, drips, hang, say
from support.command_line import run_cli
from support.processes import run_python

ANSWER = answer("200 OK", b'{"writers": []}')
drip_head = drips(b"HTTP/1.1 200 OK\r\nX-Filler: ", b"a")


def drip_second_head(peer: socket.socket) -> None:
    """Answer the first request on a connection, and never finish the second answer's head."""
    peer.sendall(ANSWER)
    if peer.recv(65536):
        drip_head(peer)


SLOW = {
    "hangs": hang,
    "drips a head": drip_head,
    "drips hints": drips(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "drips a body": drip,
    "drips chunks": drips(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "drips a second head": drip_second_head,
}
Treatment = Callable[[socket.socket], None]
Serve = Callable[[Treatment], BadServer]


@pytest.fixture(autouse=True)
def _short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "WHOLE_SECONDS", 1.0)
    monkeypatch.setattr(transport, "SLOWEST_UPLOAD", 2**30)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Provide a function that starts a server with a treatment."""
    servers: list[BadServer] = []

    def start(treat: Treatment) -> BadServer:
        servers.append(BadServer(treat))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.mark.parametrize("treat", SLOW.values(), ids=SLOW)
def test_an_answer_that_does_not_come_or_drips_is_left(treat: Treatment, serve: Serve) -> None:
    server = serve(treat)
    client = ProtocolClient(server.url)
    if treat is drip_second_head:
        assert client.rows("writers") == []
    with pytest.raises(UnreachableError, match="had not answered after 1 s"):
        client.rows("writers")
    time.sleep(0.2)
    assert (server.connections, server.finished) == (1, 0), "it is not sent again"


def test_a_server_that_reads_a_little_now_and_then_is_left(serve: Serve) -> None:
    received: list[int] = []

    def read_slowly(peer: socket.socket) -> None:
        while content := peer.recv(2**18):
            received.append(len(content))
            time.sleep(0.05)

    with pytest.raises(UnreachableError, match="had not answered"):
        ProtocolClient(serve(read_slowly).url).send_json(bytes(2**25), 1)
    assert sum(received) < 2**24


@pytest.mark.parametrize("command", ["log", "promote --to x"])
def test_a_command_ends_although_its_answer_drips(
    command: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol_client, "LONG_WORK", 1.0)
    server = serve(drip_head)
    seen = run_cli(*command.split(), "--store", server.url)
    assert (seen.returncode, server.finished) == (3, 0), seen
    assert server.url in seen.stderr


def client_of(answer: Callable[[httpx.Request], object]) -> ProtocolClient:
    """Return a client of which a function answers the requests."""
    handler = httpx.MockTransport(answer)  # type: ignore[arg-type]
    return ProtocolClient("http://server", transport=Transport(handler)).waiting(0.05)


def test_who_has_no_connection_is_silent_too() -> None:
    def never_answer(request: httpx.Request) -> httpx.Response:
        request.extensions["trace"]("connection.connect_tcp.started", {})
        time.sleep(3600)
        raise AssertionError

    with pytest.raises(SilenceError):
        client_of(never_answer).rows("writers")


def test_own_work_is_not_counted() -> None:
    def work(_: httpx.Request) -> httpx.Response:
        time.sleep(0.5)
        return httpx.Response(200, json={"writers": []})

    assert client_of(work).rows("writers") == []


def test_a_list_without_end_is_left_after_the_time_for_one_answer() -> None:
    asked = count()
    client = client_of(
        lambda _: httpx.Response(200, json={"contexts": [], "next": str(next(asked))})
    )
    with pytest.raises(NonsenseError, match="without end"):
        list(client.contexts())


def test_the_set_up_of_a_connection_is_counted_apart_from_the_answer() -> None:
    progress = transport.Waiting()
    seconds = []
    for step in ("connection.connect_tcp", "connection.start_tls", "http11.receive_response_body"):
        progress.trace(f"{step}.started")
        seconds.append([progress.tick() for _ in range(3)][-1])
        progress.trace(f"{step}.complete")
        progress.tick()
    assert [round(count / transport.TICK) for count in seconds] == [3, 6, 6]


def test_a_lost_connection_is_made_again_once(serve: Serve) -> None:
    server = serve(lambda peer: None)
    with pytest.raises(UnreachableError, match="does not answer"):
        ProtocolClient(server.url).rows("writers")
    assert server.connections == 2


def test_connections_are_closed_once_they_are_no_longer_used(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, url, opened = Transport(), serve(say(ANSWER)).url, list[socket.socket]()
    monkeypatch.setattr(transport._Connections, "add", lambda _, made: opened.append(made))
    assert own.send("GET", url, server=url).status == 200
    own.interrupt()
    gc.collect()
    assert [made.fileno() for made in opened] == [-1], "also what was made meanwhile"


def test_a_name_that_is_never_looked_up_holds_no_program() -> None:
    """Threads of other pools would be waited for."""
    code = """
        import socket, time
        socket.getaddrinfo = lambda *_, **__: time.sleep(3600)
        from dejavu_client.http.errors import UnreachableError
        from dejavu_client.http.protocol_client import ProtocolClient

        try:
            ProtocolClient("http://name.example").waiting(0.05).release("lease")
        except UnreachableError as error:
            print(error)
    """
    assert "did not answer within 0.05 s" in run_python(code).stdout
