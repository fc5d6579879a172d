"""Artifacts of an earlier version are read, served and verified by this one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.spool import Spool
from support.processes import dejavu
from support.service import running_server

from dejavu_cache import Mode, Settings, open_store
from dejavu_cache.model.buckets import Edges, Pow2
from dejavu_cache.model.record import RecordSet
from dejavu_cache.policy import Policy
from dejavu_cache.stores import FileStore
from dejavu_cache.stores.manifest import is_prewarmed, read_manifest

DATA = Path(__file__).with_name("data")
(SNAPSHOT,) = (DATA / "snapshot").iterdir()
KERNEL = "shop.kernels.matmul"


@pytest.fixture
def record_set() -> RecordSet:
    """Parse the records that the earlier version wrote as one line of JSON."""
    return RecordSet.model_validate_json(SNAPSHOT.read_text(encoding="utf-8"))


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    """Copy the file store."""
    return FileStore(shutil.copytree(DATA / "store", tmp_path / "store"))


def test_a_file_store_is_read(store: FileStore, record_set: RecordSet) -> None:
    assert list(store.record_sets()) == [record_set]
    assert store.unreadable() == {}
    assert store.damaged_files() == []
    for record in record_set.records:
        stored = FileStore(store.root).get(record_set.context, record.scenario)
        assert stored is not None
        assert stored.record == record


def test_writing_what_is_there_changes_no_byte(store: FileStore, record_set: RecordSet) -> None:
    files = {path: path.read_bytes() for path in store.root.rglob("*.json*")}
    (stored,) = store.trees()
    store.put(record_set.context, record_set.records)
    store.put_tree(stored.tree)
    store.put_imported(store.imported("matmul"))
    assert files == {path: path.read_bytes() for path in store.root.rglob("*.json*")}


def test_a_store_written_anew_has_the_same_bytes(
    store: FileStore, record_set: RecordSet, tmp_path: Path
) -> None:
    anew = FileStore(tmp_path / "anew")
    anew.put(record_set.context, record_set.records)
    path = anew.path(record_set.context)
    assert path.read_bytes() == (store.root / path.relative_to(anew.root)).read_bytes()


def test_a_tree_answers(store: FileStore, record_set: RecordSet) -> None:
    (stored,) = store.trees(KERNEL)
    blocks = [
        config.params["BLOCK"]
        for record in record_set.records
        if (config := stored.tree.choose(record.scenario))
    ]
    assert blocks == [64, 32, 64], "in the order of the scenarios' text: M = 16, 256, 64"


def test_a_snapshot_is_verified_and_read(record_set: RecordSet) -> None:
    assert list(open_store(f"frozen://{SNAPSHOT}").record_sets()) == [record_set]


def test_results_of_other_tools_are_read(store: FileStore) -> None:
    (result,) = store.imported("matmul")
    assert result.fits([["64", "torch.float16"]], {}, "NVIDIA H200", "3.6.0")


def test_a_database_is_served(tmp_path: Path, record_set: RecordSet) -> None:
    database = shutil.copy(DATA / "server.sqlite3", tmp_path / "server.sqlite3")
    with running_server(f"sqlite:///{database}", tmp_path / "server.log") as server:
        client = ProtocolClient(server.base)
        with RemoteStore(client, wait=10, spool=Spool(server.base, tmp_path / "spool")) as store:
            records = list(store.records(record_set.context))
            assert [record.measurements for record in records] == [
                record.measurements for record in record_set.records
            ]
            assert [record.winner for record in records] == [
                record.winner for record in record_set.records
            ]
            assert [record.pinned for record in records] == [
                record.pinned for record in record_set.records
            ]
            assert [record.launches for record in records] == [
                record.launches for record in record_set.records
            ]
            (miss,) = client.misses()
            assert miss["count"] == 3
        client.close()


def test_a_prewarmed_folder_and_its_bundle_are_verified(tmp_path: Path) -> None:
    folder, out = tmp_path / "prewarmed", tmp_path / "extracted"
    shutil.copytree(DATA / "prewarmed", folder)
    assert is_prewarmed(folder)
    extracted = dejavu("bundle", "extract", DATA / "bundle.tar.zst", out)
    assert extracted.returncode == 0, extracted.stderr
    assert read_manifest(out).digest == read_manifest(folder).digest
    packed = dejavu("bundle", "create", folder, tmp_path / "again.tar.zst")
    assert packed.returncode == 0, packed.stderr
    assert (tmp_path / "again.tar.zst").read_bytes() == (DATA / "bundle.tar.zst").read_bytes()
    (context,) = open_store(str(folder)).contexts()
    assert context.kernel.name == "products.add_one"


def test_a_policy_is_read() -> None:
    policy = Policy.read(DATA / "dejavu.toml")
    assert policy.problems == ()
    rule = policy.rule_for(KERNEL)
    assert (rule.mode, rule.max_distance) == (Mode.REUSE, 1.5)
    assert rule.buckets == {"M": Pow2(), "N": Edges((1, 64, 4096))}
    assert rule.default == {"BLOCK": 64, "num_warps": 4}


def test_settings_are_read() -> None:
    lines = (DATA / "settings.env").read_text(encoding="utf-8").splitlines()
    settings = Settings.from_environment(dict(line.split("=", 1) for line in lines))
    assert settings == Settings(
        url="/var/cache/team,https://cache.example.com",
        mode=Mode.REUSE,
        namespace="release-7",
        token="dejavu_1_secret",
        wait=0.5,
        tune_wait=60,
        consensus="ranks",
        tune_seconds=30,
        tune_configs=40,
        max_distance=1.5,
        toolchain="loose",
        family=True,
        progress=False,
        shipped=False,
        report="/tmp/report",
        policy="/etc/dejavu.toml",
        install=True,
    )
