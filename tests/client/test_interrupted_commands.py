"""A command that ends in the middle says what is done."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from dejavu_client.http.errors import UnreachableError
from dejavu_client.http.protocol_client import ProtocolClient
from support.command_line import run_cli
from support.records import context, record
from support.service import Running, running_server

from dejavu_cache.errors import ExitCode, NewerFormatError, StoreError
from dejavu_cache.model.record import RecordSet
from dejavu_cache.stores import FileStore

CONTEXTS = [context(kernel=f"pkg.{name}") for name in "abc"]
CTRL_C, AWAY = KeyboardInterrupt(), UnreachableError("it is away")
LOCKED, NEWER = StoreError("it is locked"), NewerFormatError("here", 99, 2)
INTERRUPTED, PARTIAL, UNUSABLE = ExitCode.INTERRUPTED, ExitCode.PARTIAL, ExitCode.UNUSABLE


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running_server(f"sqlite:///{tmp_path / 'server.sqlite3'}", tmp_path / "log") as running:
        yield running


@pytest.fixture
def local(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path / "local")
    for home in CONTEXTS:
        store.put(home, [record(1)])
    return store


def fail_second(
    monkeypatch: pytest.MonkeyPatch, owner: type, method: str, error: BaseException
) -> None:
    """Have the second call of a method of a client or of a folder raise an error."""
    call, numbers = getattr(owner, method), count(1)

    def call_or_fail(*arguments: Any, **options: Any) -> Any:
        if next(numbers) == 2:
            raise error
        return call(*arguments, **options)

    monkeypatch.setattr(owner, method, call_or_fail)


@pytest.mark.parametrize(
    ("command", "method", "error", "code", "out", "err"),
    [
        ("gc --all --yes --store {server}", "delete", CTRL_C, INTERRUPTED,
         "pkg.a (source 00000000) on NVIDIA H200: 1 record deleted", "note: interrupted"),
        ("promote --kernel pkg.* --to other --store {server}", "promote", CTRL_C, INTERRUPTED,
         "1 record of pkg.a promoted from main to other", "note: interrupted"),
        ("sync --push-only --store {local},{server}?namespace=new", "send_json", CTRL_C,
         INTERRUPTED, "", "note: only 1 new, 0 known in"),
        ("import {local} --store {server}?namespace=new", "send_json", AWAY, PARTIAL,
         "1 new, 0 known in", "1 of pkg.c on NVIDIA H200, not tried"),
    ],
)  # fmt: skip
def test_a_change_of_a_server_says_how_far_it_came(
    command: str, method: str, error: BaseException, code: int, out: str, err: str,
    server: Running, local: FileStore, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for home in CONTEXTS:
        ProtocolClient(server.base).send(RecordSet(context=home, records=(record(1),)))
    fail_second(monkeypatch, ProtocolClient, method, error)
    seen = run_cli(*command.format(server=server.base, local=local.root).split())
    assert seen.returncode == code, seen
    assert seen.stdout.startswith(out)
    assert len(seen.stdout.splitlines()) == bool(out)
    assert err in seen.stderr


@pytest.mark.parametrize(
    ("command", "method", "error", "code", "said", "kernels"),
    [
        ("gc --days 0 --yes --store {local}", "delete", LOCKED, UNUSABLE, "pkg.a (source",
         ["pkg.b", "pkg.c"]),
        ("rename pkg.* moved.* --yes --store {local}", "delete", LOCKED, UNUSABLE, "file://",
         ["moved.a", "moved.b", "pkg.b", "pkg.c"]),
        ("import {local} --into {new}", "put", NEWER, PARTIAL, "2 new, 0 known",
         ["pkg.a", "pkg.b", "pkg.c", "pkg.a", "pkg.c"]),
    ],
)  # fmt: skip
def test_a_change_of_a_folder_that_fails_in_the_middle_says_how_far_it_came(
    command: str, method: str, error: StoreError, code: int, said: str, kernels: list[str],
    local: FileStore, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    new = local.root.with_name("new")
    fail_second(monkeypatch, FileStore, method, error)
    seen = run_cli(*command.format(local=local.root, new=new).split())
    assert seen.returncode == code, seen
    assert len(seen.stdout.splitlines()) == 1
    assert seen.stdout.startswith(said)
    assert str(error) in seen.stderr
    stores = (FileStore(local.root), FileStore(new))
    assert [home.kernel.name for store in stores for home in store.contexts()] == kernels
