"""One artefact of every kind, ways of changing them, and a process that reads them."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import select
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from dejavu_client.http.sender import Spool
from security.test_prewarmed_folders import manifest_of

from dejavu_cache.model.decision_tree import Leaf, Regret, Tree
from dejavu_cache.model.record import RecordSet
from dejavu_cache.model.scenario import canonical_json
from dejavu_cache.stores import FileStore
from dejavu_cache.testing import _context, _measurement, _record

from .processes import PROGRAMS, environment

__all__ = [
    "HOSTILE_FILES",
    "KINDS",
    "Change",
    "HostileDataReader",
    "change",
    "write_honest_artefacts",
]

LONGEST_READ = 120.0
"""Seconds after which a reader hangs; honest artefacts take less than one."""

Change = tuple[int, str, int, int]
"""Which file is changed, in which way, at which place, and with what."""

KINDS = ["value", "bytes", "cut", "file", "plant", "inside"]


class Bomb:
    """What unpickling this runs is a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/dejavu-attack",)


CODE = b"import os; os.system('touch /tmp/dejavu-attack')\n"
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
    "__import__('os').system('touch /tmp/dejavu-attack')",
    "../../../../etc/passwd",
    "/etc/passwd",
    "json:" + "[" * 3_000,
    'json:{"jit": "os:system"}',
    "\x00",
    "\U0001f4a9" * 300,
    10**400,
    -1,
    1e308,
    True,
    None,
    [],
    {},
    {"__reduce__": ["os.system"]},
]
PLANTED = [
    "sitecustomize.py",
    "__init__.py",
    "conftest.py",
    "torch.py",
    "records.pkl",
    "cuda_utils.so",
    "dejavu_cache.pth",
    "prewarmed.json",
    "pyvenv.cfg",
]


def write_honest_artefacts(folder: Path) -> None:
    """Write one artefact of every kind as the library writes it."""
    store, record_set = (
        FileStore(folder / "shared"),
        RecordSet(context=_context(), records=(_record(1),)),
    )
    store.put(_context(), [_record(1), _record(2)])
    moment = datetime(2026, 1, 1, tzinfo=timezone.utc)
    config = _measurement(16).config
    regret = Regret(mean=0.0, max=0.0, scenarios=3, folds=3)
    store.put_tree(
        Tree(
            context=_context(), configs=(config,), root=Leaf(ranking=(0,)), bound=0.0,
            regret=regret, at=moment,
        )
    )  # fmt: skip
    line = canonical_json(record_set) + "\n"
    for name in ("export.jsonl", "answer"):
        (folder / name).write_text(line)
    packed = gzip.compress(line.encode(), mtime=0)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n"
    (folder / "raw-answer").write_bytes(head.encode() + packed)
    Spool("https://server", folder / "spool").write(canonical_json(record_set).encode())
    (folder / "dejavu.toml").write_text('[[kernel]]\nmatch = "fla.*"\nmode = "reuse"\n')
    (folder / "report").mkdir()
    (folder / "report" / "1.jsonl").write_text('{"what": "hit", "about": "kernel"}\n')
    prewarmed = folder / "prewarmed"
    shutil.copytree(folder / "shared", prewarmed / "records")
    shutil.rmtree(prewarmed / "records" / ".locks")
    (prewarmed / "binaries" / "k").mkdir(parents=True)
    (prewarmed / "binaries" / "k" / "k.so").write_bytes(b"\x7fELF")
    (prewarmed / "prewarmed.json").write_text(manifest_of(prewarmed).text)


class HostileDataReader:
    """The process that reads the cases."""

    def __init__(self, honest: Path, work: Path) -> None:
        self.honest, self.work, self.count = honest, work, 0
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "read_hostile_data.py")],
            env=environment(DEJAVU_CACHE_SHIPPED="0", XDG_CACHE_HOME=str(work / "cache")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        self.read(self.new_case())

    def new_case(self) -> Path:
        """Return a folder with honest artefacts."""
        self.count += 1
        folder = self.work / str(self.count)
        shutil.copytree(self.honest, folder)
        (folder / "own").mkdir()
        return folder

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=240)
        self.process.stdout.close()

    def read(self, folder: Path) -> list[str]:
        """Return what the audit hook saw while a case was read."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{folder}\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], LONGEST_READ)[0]:
            self.process.kill()
            raise TimeoutError(f"a reader hangs in {folder}")
        answer: list[str] = json.loads(self.process.stdout.readline())
        shutil.rmtree(folder, ignore_errors=True)  # a sender may still spool into it
        return answer


def mutate(value: Any, hostile: Any, at: int) -> Any:
    """Return a JSON value with one of its nodes replaced."""
    nodes: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, child in list(items):
            nodes.append((node, key))
            if isinstance(child, (dict, list)):
                visit(child)

    if not isinstance(value, (dict, list)):
        return hostile
    visit(value)
    if not nodes:
        return hostile
    parent, key = nodes[at % len(nodes)]
    if at % 5 == 4 and isinstance(parent, dict) and isinstance(hostile, str):
        parent[hostile] = parent.pop(key)
    else:
        parent[key] = hostile
    return value


def change(folder: Path, changes: Iterable[Change]) -> None:
    """Change artefacts; each change follows from its numbers alone."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    folders = sorted(path for path in folder.rglob("*") if path.is_dir())
    for which, kind, at, byte in changes:
        path = files[which % len(files)]
        content = path.read_bytes()
        if kind == "value":
            lines = content.splitlines() if path.suffix == ".jsonl" else [content]
            try:
                values = [json.loads(line) for line in lines if line]
            except (ValueError, RecursionError):
                continue
            hostile = HOSTILE_VALUES[byte % len(HOSTILE_VALUES)]
            texts = [json.dumps(mutate(value, hostile, at)) for value in values]
            path.write_text("\n".join(texts) + "\n")
        elif kind == "bytes" and content:
            at %= len(content)
            path.write_bytes(content[:at] + bytes([byte]) + content[at + 1 :])
        elif kind == "cut":
            path.write_bytes(content[: at % (len(content) + 1)])
        elif kind == "file":
            path.write_bytes(list(HOSTILE_FILES.values())[byte % len(HOSTILE_FILES)])
        elif kind == "inside":
            with suppress(zlib.error, EOFError, OSError, IndexError):
                change_inside(path, content, at, byte)  # unless an earlier change broke the packing
        elif kind == "plant":
            planted = folders[which % len(folders)] / PLANTED[byte % len(PLANTED)]
            planted.write_bytes(CODE)


def change_inside(path: Path, content: bytes, at: int, byte: int) -> None:
    """Change a byte of what an answer has packed, and pack it again so that it is read whole."""
    if path.name == "raw-answer":
        head, _, body = content.partition(b"\r\n\r\n")
        plain = bytearray(gzip.decompress(body))
        plain[at % max(len(plain), 1)] = byte
        packed = gzip.compress(bytes(plain))
        length = b"Content-Length: %d" % len(packed)
        lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
        path.write_bytes(b"\r\n".join([*lines, length, b"", packed]))
