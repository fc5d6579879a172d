"""No reader runs, imports, loads or writes anything because of what a stranger wrote."""

import json
import os
import pickle
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from dejavu_client.cli.commands.transfer import import_records
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.sender import Spool
from dejavu_client.http.transport import Transport
from security.test_prewarmed_folders import manifest_of
from support.processes import ROOT, in_own_process
from support.remote_stores import deliver

from dejavu_cache.errors import DejavuError
from dejavu_cache.model.record import RecordSet
from dejavu_cache.model.scenario import canonical_json
from dejavu_cache.policy import Policy
from dejavu_cache.runtime.run_files import read_events
from dejavu_cache.stores import FileStore, MemoryStore, Store, TieredStore, open_store
from dejavu_cache.stores.manifest import find_differences, read_manifest
from dejavu_cache.testing import _context, _record


class Bomb:
    """What unpickling this runs is a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


CODE = b"import os; os.system('true')\n"
HOSTILE_FILES = {
    "code": CODE,
    "pickle": pickle.dumps(Bomb()),
    "module": b"\x7fELF" + bytes(60),
    "nested": b"[" * 100_000,
    "nested objects": b'{"a":' * 100_000,
    "huge number": b"9" * 10_000,
    "infinite": b'{"format": 1e999, "schema_version": NaN}',
    "surrogate": b'{"format": 1, "context": "\\ud800"}',
    "not text": b"\xff\xfe\x00",
    "empty": b"",
    "list": b"[]\n",
    "null": b"null\n",
    "newer": b'{"format": 99, "schema_version": 99}\n',
}
HOSTILE_VALUES = [
    "__import__('os').system('true')", "../../../../etc/passwd", "/etc/passwd",
    "json:" + "[" * 3_000, 'json:{"jit": "os:system"}', "\x00", "\U0001f4a9" * 300,
    10**400, -1, 1e308, True, None, [], {}, {"__reduce__": ["os.system"]},
]  # fmt: skip
PLANTED = [
    "sitecustomize.py", "__init__.py", "conftest.py", "torch.py", "records.pkl", "cuda_utils.so",
    "dejavu_cache.pth", "prewarmed.json", "pyvenv.cfg",
]  # fmt: skip
FORBIDDEN = (
    "code.__new__", "ctypes.", "marshal.load", "os.exec", "os.fork", "os.posix_spawn", "os.putenv",
    "os.spawn", "os.system", "pickle.find_class", "pty.spawn", "subprocess.Popen",
    "sys.addaudithook",
)  # fmt: skip
"""Audit events that data must never cause."""
CHANGES = ("os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
TRUSTED_CODE = (sys.prefix, sys.base_prefix, str(ROOT), "<frozen")
IMPORT_SYSTEM = "<frozen importlib._bootstrap_external>"


class Watch:
    """What readers of a folder do that data must not cause, and errors not of the library's own."""

    def __init__(self) -> None:
        self.folder = ""
        self.seen: list[str] = []

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """Note an event, if a folder is watched."""
        if self.folder and self._is_attack(event, args):
            self.seen.append(f"{event} {args!r:.200}")

    def _is_attack(self, event: str, args: tuple[Any, ...]) -> bool:
        if event == "exec":
            return not getattr(args[0], "co_filename", "").startswith(TRUSTED_CODE)
        if event in ("import", "compile"):
            return args[1] is not None and not str(args[1]).startswith(TRUSTED_CODE)
        if event == "open":
            return bool((args[2] or 0) & WRITING) and not self._is_own(args[0])
        if event == "marshal.loads":
            # Python's own import reads a module's compiled code so, and `exec` judges its file.
            return sys._getframe(2).f_code.co_filename != IMPORT_SYSTEM
        if event in CHANGES:
            return not all(self._is_own(arg) for arg in args if isinstance(arg, (str, bytes)))
        return event.startswith(FORBIDDEN)

    def _is_own(self, path: Any) -> bool:
        """Return whether a path may be written; names alone are relative to an open folder."""
        text = os.fsdecode(path) if not isinstance(path, int) else ""
        return "/" not in text or os.path.normpath(text).startswith((self.folder, "/dev/null"))

    def read(self, folder: Path) -> list[str]:
        """Read a case by every reader, and return what was seen."""
        self.folder, self.seen = str(folder), []
        for attempt in readers(folder):
            try:
                attempt()
            except (DejavuError, OSError):
                pass  # the right answer
            except Exception as error:
                self.seen.append(f"raised {type(error).__name__}: {error!s:.300}")
        self.folder = ""
        return self.seen


def readers(folder: Path) -> Iterator[Callable[[], object]]:
    """Yield calls of every reader of the artefacts in a folder."""
    shared, prewarmed, answer = folder / "shared", folder / "prewarmed", folder / "answer"
    content = answer.read_bytes() if answer.is_file() and not answer.is_symlink() else b""
    transport = Transport(httpx.MockTransport(lambda _: httpx.Response(200, content=content)))
    remote = ProtocolClient("http://server", transport=transport)
    openers: list[Callable[[], Store]] = [
        lambda: FileStore(shared, read_only=True),
        lambda: FileStore(shared),
        lambda: TieredStore([FileStore(shared, read_only=True), MemoryStore()]),
        lambda: open_store(f"prewarmed://{prewarmed}"),
        lambda: open_store(str(prewarmed)),
        lambda: RemoteStore(remote, wait=0.5, spool=Spool("x", folder / "own" / "spool")),
    ]
    for opener in openers:
        try:
            store = opener()
        except DejavuError:
            continue
        yield lambda store=store: store.get(_context(), _record(1).scenario)  # type: ignore[misc]
        yield lambda store=store: [[*store.records(home)] for home in store.contexts()]  # type: ignore[misc]
        yield lambda store=store: list(store.records(_context()))  # type: ignore[misc]
        yield store.close
    yield lambda: Policy.read(folder / "dejavu.toml")
    yield lambda: read_events(folder / "report")
    yield lambda: list(find_differences(prewarmed, read_manifest(prewarmed)))
    yield lambda: import_records([str(folder / "export.jsonl")], store=str(folder / "own" / "in"))
    yield lambda: deliver(Spool("https://server", folder / "spool"), lambda *_: None)


def write_honest_artefacts(folder: Path) -> None:
    """Write one artefact of every kind as the library writes it."""
    store = FileStore(folder / "shared")
    store.put(_context(), [_record(1), _record(2)])
    line = canonical_json(RecordSet(context=_context(), records=(_record(1),))) + "\n"
    for name in ("export.jsonl", "answer"):
        (folder / name).write_text(line)
    Spool("https://server", folder / "spool").write(line.strip().encode())
    (folder / "dejavu.toml").write_text('[[kernel]]\nmatch = "fla.*"\nmode = "reuse"\n')
    (folder / "report").mkdir()
    (folder / "report" / "1.jsonl").write_text('{"what": "hit", "about": "kernel"}\n')
    prewarmed = folder / "prewarmed"
    shutil.copytree(folder / "shared", prewarmed / "records")
    shutil.rmtree(prewarmed / "records" / ".locks")
    (prewarmed / "binaries" / "k").mkdir(parents=True)
    (prewarmed / "binaries" / "k" / "k.so").write_bytes(b"\x7fELF")
    (prewarmed / "prewarmed.json").write_text(manifest_of(prewarmed).text)


def replace_all(folder: Path, kind: str) -> None:
    """Put something else in the place of every artefact."""
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        path.unlink()
        if kind == "link":
            path.symlink_to("/etc/passwd")
        elif kind == "folder":
            path.mkdir()
        elif kind == "pipe" and path.name not in ("dejavu.toml", "export.jsonl"):
            os.mkfifo(path)  # the other two are named by the user who reads them
        else:
            path.write_bytes(HOSTILE_FILES.get(kind, b""))


def change(folder: Path, chance: random.Random) -> None:
    """Change some artefacts: a byte, the end, or a value of their JSON; and plant files."""
    for path in chance.sample(sorted(path for path in folder.rglob("*") if path.is_file()), 6):
        content, at = path.read_bytes(), chance.randrange(5000)
        if (kind := chance.choice(("byte", "cut", "value", "value"))) == "byte" and content:
            at %= len(content)
            path.write_bytes(content[:at] + bytes([chance.randrange(256)]) + content[at + 1 :])
        elif kind == "cut":
            path.write_bytes(content[: at % (len(content) + 1)])
        elif path.suffix in (".json", ".jsonl", ""):
            value = json.loads(content or b"{}")
            change_value(value, chance)
            path.write_text(json.dumps(value) + "\n")
    for name in chance.sample(PLANTED, 2):
        chance.choice([path for path in folder.rglob("*") if path.is_dir()]).joinpath(
            name
        ).write_bytes(CODE)


def change_value(value: Any, chance: random.Random) -> None:
    """Replace a node of a JSON value, or its name."""
    nodes, found = [value], []
    while nodes:
        node = nodes.pop()
        items = list(node.items() if isinstance(node, dict) else enumerate(node))
        found += [(node, key) for key, _ in items]
        nodes += [child for _, child in items if isinstance(child, (dict, list))]
    parent, key = chance.choice(found)
    hostile = chance.choice(HOSTILE_VALUES)
    if isinstance(parent, dict) and isinstance(hostile, str) and chance.random() < 0.3:
        parent[hostile] = parent.pop(key)
    else:
        parent[key] = hostile


@in_own_process()
def test_nothing_runs_whatever_the_artefacts_are(tmp_path: str) -> None:
    honest, watch = Path(tmp_path, "honest"), Watch()
    write_honest_artefacts(honest)
    read = watch.read(shutil.copytree(honest, Path(tmp_path, "first")))
    assert read == []  # imports what it needs
    sys.addaudithook(watch.audit)
    cases = ["", *HOSTILE_FILES, "link", "pipe", "folder", *range(40)]
    for number, case in enumerate(cases):
        folder = shutil.copytree(honest, Path(tmp_path, str(number)))
        if isinstance(case, int):
            change(folder, random.Random(case))
        elif case:
            replace_all(folder, case)
        assert watch.read(folder) == [], case
