"""A command that ends in the middle says what is done."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from dejavu_client.http.protocol_client import ProtocolClient
from support.command_line import run_cli
from support.lossy_proxy import hanging_proxy
from support.processes import environment
from support.records import context, record
from support.service import Running, running_server

from dejavu_cache.errors import ExitCode
from dejavu_cache.model.record import RecordSet
from dejavu_cache.stores import FileStore


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    """Yield a server with a record of each of three kernels."""
    database = f"sqlite:///{tmp_path / 'server.sqlite3'}"
    with running_server(database, tmp_path / "log") as running:
        client = ProtocolClient(running.base)
        for name in ("a.x", "b.x", "c.x"):
            client.send(RecordSet(context=context(kernel=name), records=(record(1),)))
        yield running


def interrupt(reached: threading.Event, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command and press Ctrl-C once its server has been reached."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dejavu_client", *arguments],
        env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert reached.wait(240)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


@pytest.mark.parametrize(
    ("command", "method", "path", "done"),
    [
        ("gc --all --yes --store", "DELETE", "/records",
         "a.x (source 00000000) on NVIDIA H200: 1 record deleted"),
        ("promote --kernel *.x --to other --store", "POST", "/promote",
         "1 record of a.x promoted from main to other"),
    ],
)  # fmt: skip
def test_a_change_of_a_server_says_how_far_it_came(
    command: str, method: str, path: str, done: str, server: Running
) -> None:
    """What was changed before Ctrl-C is printed."""
    reached = threading.Event()
    with hanging_proxy(server.base, method, path, 2, reached) as proxy:
        ended = interrupt(reached, *command.split(), proxy)
    assert ended.returncode == ExitCode.INTERRUPTED, ended
    assert ended.stdout.splitlines() == [done]
    assert ended.stderr.splitlines() == ["note: interrupted"]


def test_a_copy_says_how_far_it_came(server: Running, tmp_path: Path) -> None:
    """What was acknowledged before Ctrl-C is counted."""
    local = FileStore(tmp_path / "local")
    for name in ("d.x", "e.x"):
        local.put(context(kernel=name), [record(1)])
    reached = threading.Event()
    with hanging_proxy(server.base, "POST", "/records", 2, reached) as proxy:
        ended = interrupt(reached, "sync", "--push-only", "--store", f"{local.root},{proxy}")
    assert ended.returncode == ExitCode.INTERRUPTED, ended
    assert "note: only 1 new, 0 known in" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("command", "done"),
    [
        ("gc --days 0 --yes", "pkg.a (source"),
        ("rename pkg.* moved.* --yes", "file://"),
    ],
)
def test_a_change_of_a_folder_that_fails_in_the_middle_says_how_far_it_came(
    command: str, done: str, tmp_path: Path
) -> None:
    store = FileStore(tmp_path)
    contexts = [context(kernel=f"pkg.{name}") for name in "abc"]
    for kernel_context in contexts:
        store.put(kernel_context, [record(1)])
    lock = tmp_path / ".locks" / f"{contexts[1].digest}.lock"
    lock.unlink(missing_ok=True)
    lock.mkdir()
    seen = run_cli(*command.split(), "--store", tmp_path)
    assert seen.returncode == ExitCode.UNUSABLE, seen
    assert len(seen.stdout.splitlines()) == 1
    assert seen.stdout.startswith(done)
    assert not list(FileStore(tmp_path).contexts("pkg.a"))
    assert len(list(FileStore(tmp_path).contexts("pkg.c"))) == 1
