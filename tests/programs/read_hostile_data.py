"""Read what a stranger wrote, by every reader of the library, and report what an attack would do.

Each line of the standard input is a folder, in which the artefacts lie under the names below. The
answer is a line of JSON: what the audit hook saw that no reader may do, and exceptions that are not
the library's own.
"""

from __future__ import annotations

import http.server
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dejavu_client.cli.commands.transfer import import_records
from dejavu_client.http.circuit import ServerCalls
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.sender import Sender, Spool

from dejavu_cache.errors import DejavuError
from dejavu_cache.model.scenario import Context, Scenario
from dejavu_cache.policy import Policy
from dejavu_cache.runtime.run_files import read_events
from dejavu_cache.stores import FileStore, MemoryStore, Store, TieredStore, open_store
from dejavu_cache.stores.manifest import find_differences, read_manifest
from dejavu_cache.testing import _context, _record

CONTEXT: Context = _context()
SCENARIO: Scenario = _record(1).scenario

FORBIDDEN = (
    "code.__new__",
    "ctypes.",
    "marshal.load",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.putenv",
    "os.spawn",
    "os.system",
    "pickle.find_class",
    "pty.spawn",
    "subprocess.Popen",
    "sys.addaudithook",
)
CHANGES = ("os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

TRUSTED_CODE = tuple({sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]), "<frozen"})

IMPORT_SYSTEM = "<frozen importlib._bootstrap_external>"

seen: list[str] = []
own_folders: list[str] = []
watching = threading.Event()


def audit(event: str, args: tuple[Any, ...]) -> None:
    """Note an event that data must never cause."""
    if not watching.is_set():
        return
    code_file = {"import": 1, "compile": 1}.get(event)
    if event == "exec":
        is_attack = not getattr(args[0], "co_filename", "").startswith(TRUSTED_CODE)
    elif code_file is not None:
        is_attack = args[code_file] is not None and not str(args[code_file]).startswith(
            TRUSTED_CODE
        )
    elif event == "open":
        is_attack = bool((args[2] or 0) & WRITING) and not is_own(args[0])
    elif event == "marshal.loads":
        # Python's own import reads a module's compiled code so, and `exec` then judges its file.
        is_attack = sys._getframe(1).f_code.co_filename != IMPORT_SYSTEM
    elif event in CHANGES:
        is_attack = not all(is_own(arg) for arg in args if isinstance(arg, (str, bytes)))
    else:
        is_attack = event.startswith(FORBIDDEN)
    if is_attack:
        seen.append(f"{event} {args!r:.200}")


def is_own(path: Any) -> bool:
    """Return whether a path is in a folder that readers may write to.

    Names without a folder are relative to an open folder; the test compares those outside.
    """
    text = os.fsdecode(path) if not isinstance(path, int) else ""
    return "/" not in text or os.path.normpath(text).startswith(tuple(own_folders))


def read_store(store: Store) -> None:
    """Use every way of reading a store."""
    attempts: list[Callable[[], object]] = [
        lambda: store.get(CONTEXT, SCENARIO),
        lambda: list(store.records(CONTEXT)),
        lambda: list(store.contexts()),
        lambda: [found.tree.rank({"n": 7, "x": "float16"}) for found in store.trees()],
        lambda: [list(store.records(context)) for context in store.contexts()],
        store.close,
    ]
    for attempt in attempts:
        ignore_own_errors(attempt)


def ignore_own_errors(attempt: Callable[[], object]) -> None:
    """Call a function; errors of the library and of the file system are its right answer."""
    try:
        attempt()
    except (DejavuError, OSError):
        pass
    except Exception as error:
        seen.append(f"raised {type(error).__name__}: {error!s:.300}")


class HostileServer(http.server.ThreadingHTTPServer):
    """A server that answers every request with the same bytes."""

    answer = b""
    kind = "application/json"
    raw = b""
    """Bytes that are sent instead of an answer's head and body, if there are any."""


class Handler(http.server.BaseHTTPRequestHandler):
    """Answer with the server's bytes."""

    server: HostileServer

    def answer(self) -> None:
        """Send the answer, and close the connection after bytes that may be no answer."""
        if self.server.raw:
            self.wfile.write(self.server.raw)
            self.close_connection = True
            return
        self.send_response(200)
        self.send_header("Content-Type", self.server.kind)
        self.send_header("ETag", '"x"')
        self.send_header("Content-Length", str(len(self.server.answer)))
        self.end_headers()
        self.wfile.write(self.server.answer)

    do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815 - names of http.server

    def log_message(self, *args: object) -> None:
        """Say nothing."""


class TakingClient(ProtocolClient):
    """Client of a server that takes everything."""

    def send_json(self, body: bytes, records: int) -> None:
        """Send nothing."""


def read_all(folder: Path, server: HostileServer) -> None:
    """Read a case by every reader."""
    shared = folder / "shared"
    for opener in (
        lambda: FileStore(shared, read_only=True),
        lambda: FileStore(shared),
        lambda: TieredStore([FileStore(shared, read_only=True), MemoryStore()]),
        lambda: open_store(f"prewarmed://{folder / 'prewarmed'}"),
        lambda: open_store(str(folder / "prewarmed")),
    ):
        ignore_own_errors(lambda opener=opener: read_store(opener()))  # type: ignore[misc]
    ignore_own_errors(lambda: Policy.read(folder / "dejavu.toml"))
    ignore_own_errors(lambda: read_events(folder / "report"))
    prewarmed = folder / "prewarmed"
    ignore_own_errors(lambda: list(find_differences(prewarmed, read_manifest(prewarmed))))
    target = str(folder / "own" / "in")
    ignore_own_errors(lambda: import_records([str(folder / "export.jsonl")], into=target))
    spool = Spool("https://server", folder / "spool")
    calls = ServerCalls(TakingClient("http://server"), wait=30)
    ignore_own_errors(Sender(calls, spool).drain)
    server.answer = (folder / "answer").read_bytes() if (folder / "answer").is_file() else b""
    raw = (folder / "raw-answer").read_bytes() if (folder / "raw-answer").is_file() else b""
    for kind, server.raw in (
        ("application/json", b""),
        ("application/x-ndjson", b""),
        ("application/json", raw),
    ):
        server.kind = kind
        url = f"http://127.0.0.1:{server.server_address[1]}"
        client = ProtocolClient(url, token="", namespace="main")
        ignore_own_errors(
            lambda client=client: read_store(  # type: ignore[misc]
                RemoteStore(client, wait=0.5, spool=Spool("x", folder / "own" / "spool"))
            )
        )


def main() -> None:
    """Warm up on the first folder, which is honest, and answer for all others."""
    logging.disable(logging.CRITICAL)
    answers, sys.stdout = sys.stdout, sys.stderr  # commands print what they did
    server = HostileServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.addaudithook(audit)
    for number, line in enumerate(sys.stdin):
        folder = Path(line.strip())
        own_folders[:] = [str(folder), "/dev/null"]
        seen.clear()
        if number:
            watching.set()
        read_all(folder, server)
        watching.clear()
        answers.write(json.dumps(seen) + "\n")
        answers.flush()
    server.shutdown()


if __name__ == "__main__":
    main()
