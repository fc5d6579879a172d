"""Copies say what was acknowledged, and an export is complete or leaves what was there."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dejavu_client.http.protocol_client import ProtocolClient
from support.processes import dejavu, environment
from support.records import MOMENT, config, context, measurement, record
from support.service import Running, make_token, running_server

from dejavu_cache.errors import ExitCode
from dejavu_cache.model.record import Failure, Measurement, Pin, Record, RecordSet
from dejavu_cache.model.scenario import Config, canonical_json
from dejavu_cache.stores import FileStore

MAX_BODY = 20_000
"""Bytes that the servers of this module take in one request."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    url = f"sqlite:///{tmp_path / 'server.sqlite3'}"
    limits = {"DEJAVU_SERVER_MAX_BODY": str(MAX_BODY)}
    with running_server(url, tmp_path / "log", limits) as running:
        yield running


def export(folder: Path, *record_sets: tuple[Record, ...]) -> Path:
    """Write an export of contexts of the kernels k.0, k.1, …."""
    lines = [
        canonical_json(RecordSet(context=context(kernel=f"k.{number}"), records=records))
        for number, records in enumerate(record_sets)
    ]
    (folder / "export.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "export.jsonl"


def kernels_on(server: Running) -> list[str]:
    return sorted(context.kernel.name for context in ProtocolClient(server.base).contexts())


def test_records_that_a_server_took_are_counted_as_new_or_known(
    server: Running, tmp_path: Path
) -> None:
    skipped = Measurement(  # which no server stores
        config=config(256), failure=Failure(kind="skipped", reason="memory"), at=MOMENT
    )
    file = export(tmp_path, (record(16), record(32, measurement(64), skipped)), (record(16),))
    for expected in ("3 new, 0 known", "0 new, 3 known"):
        out = dejavu("import", file, "--store", server.base)
        assert (out.returncode, out.stdout) == (0, f"{expected} in {server.base}?namespace=main\n")
    newer = export(tmp_path, (record(16, measurement(128)),))
    out = dejavu("import", newer, "--store", server.base)
    assert out.stdout.startswith("1 new, 0 known")


def test_what_a_server_refuses_is_named_and_the_rest_goes_on(
    server: Running, tmp_path: Path
) -> None:
    named = Config(params={f"P{index}": "x" * 400 for index in range(2 * MAX_BODY // 400)})
    large = record(16, Measurement(config=named, median=1.0, at=MOMENT))
    file = export(tmp_path, (record(16),), (large,), (record(16),))
    out = dejavu("import", file, "--store", server.base)
    assert out.returncode == ExitCode.PARTIAL
    assert out.stdout.startswith("2 new, 0 known")
    assert re.search(r"1 of k\.1 on NVIDIA H200: .*413", out.stderr)
    assert kernels_on(server) == ["k.0", "k.2"]


def test_pins_that_a_token_may_not_set_are_named(tmp_path: Path, server: Running) -> None:
    url = f"sqlite:///{tmp_path / 'server.sqlite3'}"
    secrets = {role: make_token(url, role) for role in ("write", "admin")}
    pin = Pin(config=config(64), at=MOMENT, by="me")
    file = export(tmp_path, (record(16).model_copy(update={"pin": pin}),))
    arguments = ("import", file, "--store", server.base)
    out = dejavu(*arguments, DEJAVU_CACHE_TOKEN=secrets["write"])
    assert (out.returncode, out.stdout[:14]) == (ExitCode.PARTIAL, "1 new, 0 known")
    assert "the pin of k.0" in out.stderr
    out = dejavu(*arguments, DEJAVU_CACHE_TOKEN=secrets["admin"])
    assert (out.returncode, out.stderr) == (0, "")
    out = dejavu("show", "k.0", "--store", server.base, DEJAVU_CACHE_TOKEN=secrets["admin"])
    assert "pinned" in out.stdout


class TestExport:
    def test_a_damaged_store_leaves_the_previous_backup(self, tmp_path: Path) -> None:
        store = FileStore(tmp_path / "store")
        store.put(context(), [record(16)])
        store.put(context(kernel="pkg.kernels.mul"), [record(16)])
        backup = tmp_path / "backup.jsonl"
        assert dejavu("export", backup, "--store", store.root).returncode == 0
        complete = backup.read_bytes()
        path = store.path(context())
        path.write_text(path.read_text().replace('"median"', '"mean"'))
        out = dejavu("export", backup, "--store", store.root)
        assert (out.returncode, str(path) in out.stderr) == (ExitCode.UNUSABLE, True)
        assert backup.read_bytes() == complete
        assert path.exists(), "a command that reads must not rename what it cannot read"

    def test_a_full_pipe_is_an_error(self, tmp_path: Path) -> None:
        FileStore(tmp_path).put(context(), [record(16)])
        command = [sys.executable, "-m", "dejavu_client", "export", "--store", str(tmp_path)]
        with open("/dev/full", "w") as full:
            out = subprocess.run(
                command, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True
            )
        assert (out.returncode, out.stderr) == (
            ExitCode.UNUSABLE,
            "error: standard output: No space left on device\n",
        )

    def test_the_permissions_of_the_previous_backup_stay(self, tmp_path: Path) -> None:
        FileStore(tmp_path / "store").put(context(), [record(16)])
        backup = tmp_path / "backup.jsonl"
        backup.touch(0o600)
        assert dejavu("export", backup, "--store", tmp_path / "store").returncode == 0
        assert (backup.stat().st_mode & 0o777, backup.stat().st_size > 0) == (0o600, True)
