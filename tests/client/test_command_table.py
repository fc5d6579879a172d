"""Every command against a missing store, a typo, a dead server, a read token and a full disk."""

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from dejavu_client.cli.main import main
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import RemoteStore
from support.command_line import full_disk, list_commands
from support.records import MOMENT, config, context, measurement, record
from support.service import free_port, make_token, running_server

from dejavu_cache.model.record import Pin, RecordSet
from dejavu_cache.model.scenario import Scenario, canonical_json
from dejavu_cache.stores import FileStore

OK, NO, USAGE, UNUSABLE, REFUSED = 0, 1, 2, 3, 4


class Row(NamedTuple):
    """A command line, and its exit code in each situation; None where it has no such input."""

    line: str
    missing: int | None = None
    typo: int | None = None
    dead: int | None = None
    read: int | None = None
    full: int | None = None


SOURCE, TARGET = "--store {store}", "--store {target}"
READS = {"missing": UNUSABLE, "dead": UNUSABLE, "read": OK}

TABLE = {
    "ls": Row(f"{SOURCE}", **READS),
    "show": Row(f"{{kernel}} {SOURCE}", **READS, typo=NO),
    "explain": Row(f"{{kernel}} --where M=16 {SOURCE}", **READS, typo=NO),
    "watch": Row(f"{{kernel}} {SOURCE}", missing=UNUSABLE, dead=UNUSABLE),  # else it never ends
    "diff": Row("{store} {folder}", UNUSABLE, None, UNUSABLE, NO),  # a server dates pins itself
    "export": Row(f"{{out}} --kernel {{kernel}} {SOURCE}", **READS, typo=NO, full=UNUSABLE),
    "import": Row(f"{{lines}} {TARGET}", missing=OK, dead=UNUSABLE, read=REFUSED, full=UNUSABLE),
    "gc": Row(f"{{kernel}} --all --yes {SOURCE}", UNUSABLE, NO, UNUSABLE, REFUSED),
    "rename": Row(f"{{kernel}} pkg.x --yes {SOURCE}", UNUSABLE, NO, UNUSABLE, REFUSED, UNUSABLE),
    "sync": Row("--kernel {kernel} --store {local},{remote}", OK, NO, UNUSABLE, REFUSED),
    "promote": Row("--to prod --kernel {kernel} --store {remote}", None, NO, UNUSABLE, REFUSED),
    "log": Row("--kernel {kernel} --store {remote}", None, NO, UNUSABLE, REFUSED),
    "quarantine add": Row("--token x --store {remote}", dead=UNUSABLE, read=REFUSED),
    "quarantine list": Row("--store {remote}", dead=UNUSABLE, read=REFUSED),
    "quarantine undo": Row(f"{'0' * 16} --store {{remote}}", dead=UNUSABLE, read=REFUSED),
    "pin": Row(f"{{kernel}} --config BLOCK=64 {SOURCE}", UNUSABLE, NO, UNUSABLE, REFUSED, UNUSABLE),
    "use": Row(f"{{remote}} --key {43 * 'A'}", dead=UNUSABLE),
    "run": Row("-- {program}", missing=USAGE),
    "verify": Row("-- {program}", missing=USAGE),
    "sweep": Row("no_such_suite --store {folder}", typo=USAGE),
    "pages": Row(f"--out {{out}} {SOURCE}", **READS, full=UNUSABLE),
    "prewarm": Row(
        "no_such_module --device X --out {new} --store {store}", UNUSABLE, None, UNUSABLE
    ),
    "doctor": Row(f"{SOURCE}", missing=NO, dead=NO, read=OK),
    "heuristics": Row(f"{{kernel}} {SOURCE}", UNUSABLE, NO, UNUSABLE, NO),
    "serve": Row("--database {database}", dead=UNUSABLE, full=UNUSABLE),
    "db upgrade": Row("--database {database}", dead=UNUSABLE, full=UNUSABLE),
    "db prune": Row("--unused-days 9 --database {database}", missing=UNUSABLE, dead=UNUSABLE),
    "token create": Row("--name x --database {database}", dead=UNUSABLE, full=UNUSABLE),
    "token list": Row("--database {database}", missing=UNUSABLE, dead=UNUSABLE),
    "token revoke": Row("x --database {database}", missing=UNUSABLE, dead=UNUSABLE),
}
MODES = {
    "sync --push-only": Row("--store {local},{remote}", UNUSABLE, None, UNUSABLE, REFUSED),
    "sync --pull-only": Row("--store {fresh},{remote}", OK, None, UNUSABLE, OK, UNUSABLE),
    "show --misses": Row("{kernel} --store {remote}", None, NO, UNUSABLE, OK),
    "quarantine list --writers": Row("--store {remote}", dead=UNUSABLE, read=REFUSED),
    "pin --remove": TABLE["pin"]._replace(line=f"{{kernel}} {SOURCE}"),
    "import {local}": Row("--store {target}", UNUSABLE, None, UNUSABLE, REFUSED, UNUSABLE),
    "diff {absent}": Row("{store}", missing=UNUSABLE),
}
"""Rows of options that make another command of one."""
SITUATIONS = ("missing", "typo", "dead", "read", "full")
CELLS = [
    pytest.param(command, situation, id=f"{command}-{situation}")
    for command, row in {**TABLE, **MODES}.items()
    for situation in SITUATIONS
    if getattr(row, situation) is not None
]


def test_the_table_has_a_row_for_every_command() -> None:
    assert set(list_commands()) == set(TABLE)


class Service(NamedTuple):
    """A server with records, and tokens for it."""

    url: str
    tokens: dict[str, str]


def fill(store: Any) -> None:
    """Give a store two sources of one kernel, with a pinned and a free scenario."""
    timings = (measurement(32, 1.0), measurement(64, 2.0))
    pin = Pin(config=config(64), at=MOMENT, by="me")
    store.put(context(source="f" * 32), [record(16, *timings)], now=True)
    store.put(context(), [record(16, *timings), record(32, *timings)], now=True)
    store.put(context(), [record(16).model_copy(update={"pin": pin, "measurements": ()})])


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a server with the records and a miss."""
    folder = tmp_path_factory.mktemp("service")
    url = f"sqlite:///{folder / 'server.sqlite3'}"
    with running_server(url, folder / "log") as server:
        secrets = {role: make_token(url, role) for role in ("read", "admin")}
        client = ProtocolClient(server.base, token=secrets["admin"])
        store = RemoteStore(client, wait=30.0)
        with store:
            fill(store)
            store.miss(context(), Scenario(args={"M": 1, "N": 1}, dtypes={}))
            assert store.sender.flush(240)
        yield Service(server.base, secrets)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fill(FileStore(tmp_path / "folder"))
    return tmp_path / "folder"


def arguments_of(situation: str, folder: Path, service: Service) -> dict[str, object]:
    """Return what the placeholders of a command line stand for in a situation."""
    root = folder.parent
    (root / "out").write_text("before")
    lines = root / "lines.jsonl"
    records = tuple(FileStore(folder).records(context()))
    lines.write_text(canonical_json(RecordSet(context=context(), records=records)) + "\n")
    dead = f"http://127.0.0.1:{free_port()}"
    absent, new = root / "absent", root / "new"
    remote = dead if situation == "dead" else service.url
    local = absent if situation == "missing" else folder
    store = {"missing": absent, "dead": dead, "read": service.url}.get(situation, folder)
    database = {
        "missing": f"sqlite:///{absent}",
        "dead": f"postgresql://127.0.0.1:{free_port()}/x",
        "full": f"sqlite:///{new}",
    }
    return {
        "folder": folder,
        "store": store,
        "local": local,
        "remote": remote,
        "target": {"dead": dead, "read": service.url}.get(situation, new),
        "fresh": new,
        "kernel": "pkg.kernels.ad" if situation == "typo" else "pkg.kernels.add",
        "out": root / "out",
        "new": new,
        "lines": lines,
        "program": absent,
        "absent": absent,
        "database": database.get(situation, ""),
    }


def files(root: Path) -> dict[str, bytes]:
    """Return the content of all files that are not empty, as locks are."""
    contents = {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
    return {name: content for name, content in contents.items() if content}


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["dejavu-cache", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(("command", "situation"), CELLS)
def test_a_command_says_what_happened(
    command: str, situation: str, folder: Path, service: Service, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    row = {**TABLE, **MODES}[command]
    expected = getattr(row, situation)
    values = arguments_of(situation, folder, service)
    token = service.tokens["read" if situation == "read" else "admin"]
    monkeypatch.setenv("DEJAVU_CACHE_URL", "")
    monkeypatch.setenv("DEJAVU_CACHE_TOKEN", token)
    line = f"{command} {row.line}".format(**values).split()
    before = files(folder.parent)

    with full_disk() if situation == "full" else nullcontext():
        code = run(monkeypatch, *line)

    printed = capsys.readouterr()
    assert code == expected, printed
    if code == OK:
        assert "error:" not in printed.err
        return
    if command == "diff" and situation == "read":
        assert "only in" not in printed.out
        return
    assert files(folder.parent) == before
    if command == "doctor":  # its findings are its output
        assert "wrong" in printed.out
        return
    assert "error: " in printed.err
    assert "Traceback" not in printed.err
    named = {
        "missing": ["absent"],
        "typo": ["pkg.kernels.ad", "no_such_suite"],
        "dead": [str(values["remote"]).partition("//")[2], "127.0.0.1", "no_such"],
        "read": ["403", "no_such", "pkg.kernels.add"],
        "full": ["cannot be", "disk", "too large", "full"],
    }[situation]
    assert any(name in printed.err for name in named), printed.err
