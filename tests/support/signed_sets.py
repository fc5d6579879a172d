"""A set whose publisher may do anything, its readers, and a server of its files."""

from __future__ import annotations

import functools
import http.server
import random
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dejavu_client import static_sets
from dejavu_client.static_sets import StaticStore, make_key, publish
from dejavu_client.static_sets.signed_index import read_private_key, sign_index
from dejavu_client.static_sets.sources import Files

from dejavu_cache.errors import StoreError
from dejavu_cache.model.record import RecordSet

from .records import context, record

SETS = [
    RecordSet(context=context(kernel=f"pkg.{name}"), records=tuple(map(record, (16, 32))))
    for name in ("add", "sub")
]
KNOWN = {(signed.context, entry) for signed in SETS for entry in signed.records}


class Publisher:
    """A set in a folder, whose publisher may do anything, and readers of it."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder, self.copies = root, root / "set", root / "copies"
        self.index = self.folder / static_sets.INDEX
        make_key(root / "mine.pem")
        make_key(root / "other.pem")
        self.key = self.publish(SETS)

    def publish(self, sets: list[RecordSet]) -> str:
        return publish(sets, self.folder, self.root / "mine.pem")

    def open(self, url: str = "", wait: float = 2) -> StaticStore:
        source = Files(url or self.folder.as_uri(), wait)
        return StaticStore(source, self.key, folder=self.copies)

    def change(self, old: bytes, new: bytes, pattern: str = static_sets.INDEX) -> None:
        for path in self.folder.glob(pattern):
            path.write_bytes(path.read_bytes().replace(old, new))

    def sign_changed(self, old: bytes, new: bytes, key: str = "mine.pem") -> None:
        text = self.index.read_bytes().partition(b"\n")[2].replace(old, new)
        self.index.write_bytes(sign_index(text, read_private_key(self.root / key)))


def read_all(store: StaticStore) -> set[tuple[object, object]]:
    """Return the contexts and records of a store."""
    return {(of.context, entry) for of in store.record_sets() for entry in of.records}


def draw_sets(publisher: Publisher, count: int) -> Counter[str]:
    """Change sets as a seed draws; count those refused, signed all the same, and believed."""
    draw, outcomes = random.Random(7), Counter(refused=0, signed=0, believed=0)
    publisher.publish(SETS[:1])
    earlier = publisher.index.read_bytes()
    publisher.publish(SETS)
    files = {path: path.read_bytes() for path in sorted(publisher.folder.glob("[!.]*"))}
    for _ in range(count):
        path = draw.choice(list(files))
        content = bytearray(files[path])
        start = draw.randrange(len(content))
        shutil.rmtree(publisher.copies, ignore_errors=True)
        way = draw.choice(("flip", "cut", "grow", "oversize", "exchange", "sign", "replay"))
        if way == "sign":
            publisher.sign_changed(b"", b"", "other.pem")
            path, content = publisher.index, bytearray(publisher.index.read_bytes())
        elif way == "replay":
            publisher.open().entries(fresh=True)
            path, content = publisher.index, bytearray(earlier)
        elif way == "exchange":
            content[:] = files[draw.choice(list(files))]
        elif way == "oversize":
            content += bytes(draw.randint(1, 2**16))
        else:
            end = {"flip": start + 1, "cut": len(content), "grow": start}[way]
            content[start:end] = b"" if way == "cut" else draw.randbytes(draw.randint(1, 40))
        path.write_bytes(content)
        try:
            records = read_all(publisher.open())
            is_signed = records == KNOWN and (way == "replay" or bytes(content) == files[path])
            outcomes["signed" if is_signed else "believed"] += 1
        except StoreError:
            outcomes["refused"] += 1
        path.write_bytes(files[path])
    return outcomes


@contextmanager
def serve_folder(folder: Path, gate: threading.Event | None = None) -> Iterator[str]:
    """Serve a folder's files over HTTP, and yield its URL; a gate holds back all but the index."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.headers["Accept-Encoding"] == "gzip"  # the only one that is read
            if gate and self.path.endswith(".json"):
                gate.wait(60)
            super().do_GET()

    handler = functools.partial(Handler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
