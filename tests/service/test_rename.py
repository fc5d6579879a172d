"""A kernel is renamed on a server, with its pins and the provenance of its timings."""

from __future__ import annotations

from pathlib import Path

from dejavu_client.http.protocol_client import ProtocolClient, split_server_url
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.spool import Spool
from support.processes import dejavu
from support.records import MOMENT, config, context, measurement, record

from dejavu_cache.model.record import Winner


def test_records_on_a_server_are_renamed(namespace_url: str, tmp_path: Path) -> None:
    base, namespace = split_server_url(namespace_url, "main")
    client = ProtocolClient(base, namespace=namespace)
    old, new = context(kernel="pkg.old.add"), context(kernel="pkg.new.add")
    winner = Winner(config=config(32), at=MOMENT)
    tuned = record(16, measurement(32), measurement(64, 2.0), winner=winner)
    with RemoteStore(client, wait=10, spool=Spool(namespace_url, tmp_path / "spool")) as store:
        store.put(old, [tuned, record(32)], now=True)
        client.pin(old, tuned.scenario, config(64), "ann@host")
        before = list(store.records(old))

        arguments = ("rename", "pkg.old.add", "pkg.new.add", "--store", namespace_url)
        assert "2 records) would be renamed to pkg.new.add" in dejavu(*arguments).stdout
        assert list(store.contexts()) == [old]

        done = dejavu(*arguments, "--yes")
        assert (done.returncode, done.stderr) == (0, "")
        assert list(store.contexts()) == [new]
        after = list(store.records(new))
        assert [entry.measurements for entry in after] == [entry.measurements for entry in before]
        assert [entry.winner for entry in after] == [entry.winner for entry in before]
        assert [entry.pinned for entry in after] == [config(64), None]
        assert after[0].pin is not None
        assert after[0].pin.by == "ann@host"
        assert dejavu(*arguments, "--yes").stdout.startswith("nothing to rename")
