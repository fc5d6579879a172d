"""A client expands no answer beyond its limit, and takes no other encoding than gzip."""

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from dejavu_client.http import transport
from dejavu_client.http.errors import NonsenseError
from dejavu_client.http.protocol_client import ProtocolClient
from support.bad_server import serve_answer

ROWS = json.dumps({"writers": []}).encode()
PACKED = gzip.compress(ROWS, mtime=0)


@contextmanager
def compressed_server(encoding: str, body: bytes) -> Iterator[str]:
    """Yield the URL of a server that sends a body with a `Content-Encoding`, if it has one."""
    headers = [f"Content-Encoding: {encoding}"] if encoding else []
    with serve_answer("200 OK", body, *headers) as server:
        yield server.url


def read_writers(url: str) -> list[dict[str, object]]:
    return ProtocolClient(url).rows("writers")


def test_a_small_answer_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "LARGEST_BODY", 2**20)
    packed = gzip.compress(bytes(2**26))
    tracemalloc.start()
    with compressed_server("gzip", packed) as url, pytest.raises(NonsenseError, match="MiB"):
        read_writers(url)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**23


@pytest.mark.parametrize("encoding", ["", "identity", "gzip", "GZIP"])
def test_a_plain_body_and_one_gzip_stream_are_read(encoding: str) -> None:
    body = PACKED if encoding.lower() == "gzip" else ROWS
    with compressed_server(encoding, body) as url:
        assert read_writers(url) == []


@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_a_body_at_the_limit_is_read_and_a_longer_one_is_not(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "LARGEST_BODY", 3 * 2**20)
    padded = ROWS.ljust(3 * 2**20)
    pack = gzip.compress if encoding else bytes
    with compressed_server(encoding, pack(padded)) as url:
        assert read_writers(url) == []
    with (
        compressed_server(encoding, pack(padded + b" ")) as url,
        pytest.raises(NonsenseError, match="MiB"),
    ):
        read_writers(url)


@pytest.mark.parametrize(
    ("encoding", "body", "reason"),
    [
        ("gzip, gzip", gzip.compress(PACKED, mtime=0), "encoding 'gzip, gzip'"),
        ("zstd", ROWS, "encoding 'zstd'"),
        ("deflate", zlib.compress(ROWS), "encoding 'deflate'"),
        ("gzip", PACKED[:-12], "not JSON"),
        ("gzip", ROWS, "damaged"),
        ("gzip", PACKED[:-8] + bytes(8), "damaged"),
        ("gzip", PACKED + b"more", "damaged"),  # of which there may be no end
    ],
    ids=["nested", "zstd", "deflate", "cut off", "plain", "checksum", "followed"],
)
def test_any_other_body_is_refused(encoding: str, body: bytes, reason: str) -> None:
    with compressed_server(encoding, body) as url, pytest.raises(NonsenseError, match=reason):
        read_writers(url)
