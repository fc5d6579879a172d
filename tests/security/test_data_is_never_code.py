"""No reader runs, imports, loads or writes anything because of what a stranger wrote."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from dejavu_client.http.spool import Spool
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from security.test_prewarmed_folders import manifest_of
from support.processes import PROGRAMS, environment

from dejavu_cache.model.decision_tree import Leaf, Regret, Tree
from dejavu_cache.model.foreign_result import ForeignResult, ForeignTiming
from dejavu_cache.model.record import RecordSet
from dejavu_cache.model.scenario import canonical_json
from dejavu_cache.prewarm.bundle.archive import create
from dejavu_cache.prewarm.bundle.oci_image import write_layout
from dejavu_cache.stores import FileStore
from dejavu_cache.stores.snapshot import freeze
from dejavu_cache.testing import _context, _measurement, _record


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
    "json:" + "[" * 50_000,
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


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write one artefact of every kind as the library writes it."""
    folder = tmp_path_factory.mktemp("honest")
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
    timing = ForeignTiming(config=config)
    store.put_imported([ForeignResult(origin="fla", function="add", key=("1",), timings=(timing,))])
    freeze(store, folder / "frozen")
    line = canonical_json(record_set) + "\n"
    for name in ("export.jsonl", "journal/host-1-abc.jsonl", "answer"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(line)
    Spool("https://server", folder / "spool").add(record_set)
    (folder / "dejavu.toml").write_text('[[kernel]]\nmatch = "fla.*"\nmode = "reuse"\n')
    (folder / "report").mkdir()
    (folder / "report" / "1.jsonl").write_text('{"what": "hit", "about": "kernel"}\n')
    (folder / "foreign").mkdir()
    for name in ("add.json", "E=8,N=7168,device_name=NVIDIA_H200.json", "add.autotune.json"):
        (folder / "foreign" / name).write_text('{"1": {"BLOCK_SIZE_M": 16, "num_warps": 4}}')
    prewarmed = folder / "prewarmed"
    shutil.copytree(folder / "shared", prewarmed / "records")
    shutil.rmtree(prewarmed / "records" / ".locks")
    (prewarmed / "binaries" / "k").mkdir(parents=True)
    (prewarmed / "binaries" / "k" / "k.so").write_bytes(b"\x7fELF")
    (prewarmed / "prewarmed.json").write_text(manifest_of(prewarmed).text)
    create(prewarmed, folder / "bundle.tar.zst")
    write_layout(prewarmed, folder / "image")
    return folder


class Reader:
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

    def read(self, folder: Path) -> list[str]:
        """Return what the audit hook saw while a case was read."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{folder}\n")
        self.process.stdin.flush()
        answer: list[str] = json.loads(self.process.stdout.readline())
        shutil.rmtree(folder, ignore_errors=True)  # a sender may still spool into it
        return answer


@pytest.fixture(scope="module")
def reader(honest: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    made = Reader(honest, tmp_path_factory.mktemp("cases"))
    yield made
    assert made.process.stdin is not None
    assert made.process.stdout is not None
    made.process.stdin.close()
    made.process.wait(timeout=60)
    made.process.stdout.close()


def test_honest_artefacts_are_read(reader: Reader) -> None:
    assert reader.read(reader.new_case()) == []


@pytest.mark.parametrize("kind", [*HOSTILE_FILES, "link", "pipe", "folder"])
def test_every_artefact_replaced(reader: Reader, kind: str) -> None:
    folder = reader.new_case()
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        path.unlink()
        if kind == "link":
            path.symlink_to("/etc/passwd")
        elif (
            kind == "pipe"
            and path.parts[-2] not in ("foreign", "journal")
            and (path.name not in ("dejavu.toml", "export.jsonl") and "frozen" not in path.parts)
        ):
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.write_bytes(HOSTILE_FILES.get(kind, b""))
    assert reader.read(folder) == []


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


CHANGES = st.tuples(
    st.integers(0, 200),
    st.sampled_from(["value", "bytes", "cut", "file", "plant"]),
    st.integers(0, 5000),
    st.integers(0, 255),
)


@settings(
    max_examples=int(os.environ.get("DEJAVU_FUZZ_EXAMPLES", "30")),
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(changes=st.lists(CHANGES, min_size=1, max_size=12))
@example(changes=[(0, "plant", 0, 0), (1, "plant", 1, 1)])
def test_artefacts_changed_in_any_way(
    reader: Reader, changes: list[tuple[int, str, int, int]]
) -> None:
    folder = reader.new_case()
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
        elif kind == "plant":
            planted = folders[which % len(folders)] / PLANTED[byte % len(PLANTED)]
            planted.write_bytes(CODE)
    assert reader.read(folder) == []
    assert not Path("/tmp/dejavu-attack").exists()
