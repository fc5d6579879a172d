"""Signed record sets: only what the publisher signed is believed, and what was fetched stays."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from dejavu_client.cli.main import run_command
from dejavu_client.cli.record_copy import for_strangers
from dejavu_client.static_sets import StaticStore, publish, signed_index
from dejavu_client.static_sets.sources import Files
from support.bad_server import BadServer, drip, drips
from support.kernels import ADD, write_source
from support.processes import dejavu, fork_program
from support.records import MOMENT, config, context, measurement, record, tuned_record
from support.signed_sets import KNOWN, SETS, Publisher, draw_sets, read_all, serve_folder
from support.sweeping import wait_until

from dejavu_cache.errors import SettingsError, StoreError
from dejavu_cache.model.record import Failure, Measurement, Pin, Record, RecordSet
from dejavu_cache.model.scenario import canonical_json, now
from dejavu_cache.stores import FileStore, MemoryStore, TieredStore

UNKNOWN = "-----BEGIN PRIVATE KEY-----\nMA4CAQAwBQYDKgMEBAIFAA==\n-----END PRIVATE KEY-----\n"
"""A key of an algorithm that nobody knows."""


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    return Publisher(tmp_path)


@pytest.fixture
def url(publisher: Publisher) -> Iterator[str]:
    with serve_folder(publisher.folder) as address:
        yield address


REFUSALS: dict[str, tuple[Callable[[Publisher], object], str]] = {
    "unsigned": (lambda p: p.index.write_bytes(b'\n{"format": 1}'), "it is unsigned"),
    "altered": (lambda p: p.change(b"add", b"bad"), "was altered"),
    "another key": (lambda p: p.sign_changed(b"", b"", "other.pem"), "another key"),
    "empty": (lambda p: p.index.write_bytes(b""), "it is unsigned"),
    "missing": (lambda p: p.index.unlink(), "check the set's URL"),
    "newer": (lambda p: p.sign_changed(b'"format": 1', b'"format": 9'), "upgrade dejavu-cache"),
    "twice": (lambda p: p.sign_changed(b"pkg.sub", b"pkg.add"), "two files of one context"),
    "endless": (lambda p: p.sign_changed(b'"pow2"', b'"%s"' % (b"x" * 10**5)), "it is no index"),
    "context": (lambda p: p.sign_changed(b"pkg.sub", b"pkg.sun"), "another context"),
    "huge": (lambda p: p.change(b"\n", b"\n" + b" " * 2**25), "more than 32"),
    "truncated": (lambda p: p.change(b"]}\n", b"]", "*.json"), "not the file"),
    "oversized": (lambda p: p.change(b"]}\n", b"]}\n ", "*.json"), "more than"),
    "digest": (lambda p: p.change(b"0.99", b"0.11", "*.json"), "not the file"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_was_not_signed_is_refused(publisher: Publisher, url: str, case: str) -> None:
    break_it, message = REFUSALS[case]
    break_it(publisher)
    with pytest.raises(StoreError, match=rf"^(?=.*{message}).{{,900}}\Z"):  # in one line
        read_all(publisher.open(url))


def test_an_earlier_index_is_refused_and_the_later_one_serves(publisher: Publisher) -> None:
    earlier = shutil.copytree(publisher.folder, publisher.root / "earlier")
    publisher.publish(SETS[:1])
    assert len(read_all(publisher.open())) == 2
    (copied,) = (path.read_bytes() for path in publisher.copies.glob("*.index"))
    publisher.publish([])
    assert not read_all(publisher.open())
    assert not list(publisher.copies.glob("*.json")), "no copy of what was recalled"
    (publisher.copies / f"{10**19}.index").write_bytes(copied)
    assert not read_all(publisher.open()), "a copy's name lies"
    shutil.copytree(earlier, publisher.folder, dirs_exist_ok=True)
    assert not read_all(publisher.open())
    with pytest.raises(StoreError, match="is not after"):
        publisher.open().entries(fresh=True)


def test_whom_another_process_overtakes_takes_the_later_index(publisher: Publisher) -> None:
    """Also where files are links, as in what Kubernetes mounts."""

    class Overtaken(Files):
        def read(self, *file: Any) -> tuple[bytes, str] | None:
            answer = super().read(*file)
            publisher.publish(SETS[:1])
            read_all(publisher.open())
            return answer

    publisher.index.rename(publisher.root / "data")
    publisher.index.symlink_to(publisher.root / "data")
    source = Overtaken(publisher.folder.as_uri(), 2)
    store = StaticStore(source, publisher.key, folder=publisher.copies)
    assert [entry.context for entry in store.entries(fresh=True)] == [SETS[0].context]


def test_who_publishes_into_a_folder_waits_for_another_one_and_says_so(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupted() -> Iterator[RecordSet]:
        yield SETS[0]
        with monkeypatch.context() as patch:
            patch.setattr(signed_index, "LONGEST_WAIT", 0.1)
            assert "lock" in str(pool.submit(publisher.publish, []).exception())
        others.append(pool.submit(publisher.publish, []))
        wait(others, 0.3)

    others: list[Future[str]] = []
    monkeypatch.setattr(signed_index, "MOMENT", 0.1)
    publisher.publish([])
    publisher.publish([])  # no file is named any more
    with ThreadPoolExecutor() as pool:
        publish(interrupted(), publisher.folder, publisher.root / "mine.pem")
        assert len(read_all(publisher.open())) in (0, 2)
    assert not read_all(publisher.open())
    assert "another process publishes in" in caplog.text


def test_a_publication_that_fails_fills_no_disk(publisher: Publisher) -> None:
    """Else nobody could recall a set on a full one; nor does one that was killed."""

    def without_room() -> Iterator[RecordSet]:
        yield RecordSet(context=SETS[0].context, records=(record(64),))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    there, second = {*publisher.folder.iterdir()}, publisher.index.stat().st_mtime
    with pytest.raises(StoreError, match="No space left"):
        publisher.publish(without_room())  # type: ignore[arg-type]
    assert {*publisher.folder.iterdir()} == there
    for name in (f"{0:064}.json", f"{0:064}.json.tmp-1-a", "index.signed.tmp-1-a"):
        (publisher.folder / name).write_bytes(b"of a killed one")
    publisher.publish([*SETS, RecordSet(context=context(kernel="pkg.gone"), records=())])
    assert {*publisher.folder.iterdir()} == there
    assert read_all(publisher.open()) == KNOWN
    assert publisher.index.stat().st_mtime >= second + 1, "by which servers and mirrors tell it"


def test_a_file_that_is_gone_costs_no_other_and_may_be_replaced(
    publisher: Publisher, url: str
) -> None:
    store, (first, second) = publisher.open(url), SETS
    entries = {entry.context: entry for entry in store.entries(fresh=True)}
    (publisher.folder / entries[first.context].file).unlink()
    with pytest.raises(StoreError, match="check the set's URL"):
        next(store.records(first.context))
    assert [*store.records(second.context)] == [*second.records]
    store = publisher.open(url)
    assert len(store.entries(fresh=True)) == len(SETS)
    for m in (64, 128):  # so that no file of the index that was read is there
        publisher.publish([RecordSet(context=first.context, records=(record(m),))])
    assert [*store.records(first.context)] == [record(128)]
    assert not read_all(store) - {(first.context, record(128))}, "what was recalled"


def test_a_new_key_takes_the_place_of_an_old_one(publisher: Publisher) -> None:
    """Who still names the old one keeps what it signed, and believes nothing new."""
    assert read_all(publisher.open()) == KNOWN
    new = publisher.root / "other.pem"
    with pytest.raises(StoreError, match="signed by another key"):
        publish([], publisher.folder, new)
    with pytest.raises(SettingsError, match="one outside"):
        publish([], publisher.root, new)
    unknown = new.with_name("unknown.pem")
    unknown.write_text(UNKNOWN)
    for size in (len(UNKNOWN), 1 << 40):
        os.truncate(unknown, size)
        with pytest.raises(SettingsError, match="no Ed25519 key"):
            publish([], publisher.folder, unknown)
    publisher.index.unlink()
    key, source = publish([], publisher.folder, new), Files(publisher.folder.as_uri(), 2)
    assert not read_all(StaticStore(source, key, folder=publisher.root / "new"))
    assert read_all(publisher.open()) == KNOWN
    with pytest.raises(StoreError, match="another key"):
        publisher.open().entries(fresh=True)


def test_a_later_set_is_read_and_serves_offline(publisher: Publisher, url: str) -> None:
    store, (first, second) = publisher.open(url), SETS
    assert store.get(first.context, record(64).scenario) is None
    pinned = record(64, pin=Pin(config=record(64).measurements[0].config, at=now()))
    publisher.publish([RecordSet(context=first.context, records=(pinned,)), second])
    store.entries(fresh=True)  # by a launch of another kernel
    assert store.revalidate({first.context: [], second.context: []}).keys() == {first.context}
    assert list(store.records(first.context)) == [record(64)]
    shutil.rmtree(publisher.folder)
    offline = publisher.open(url)
    assert list(offline.records(first.context)) == [record(64)]
    with pytest.raises(StoreError, match="check the set's URL"):
        next(offline.records(second.context))


def test_no_changed_set_is_believed(publisher: Publisher) -> None:
    """`benchmarks/static_sets.py` draws more."""
    assert draw_sets(publisher, 300)["believed"] == 0


def test_a_process_launches_with_a_strangers_set(
    publisher: Publisher, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, theirs, ours = tmp_path / "kernels.py", tmp_path / "theirs", tmp_path / "ours"
    write_source(source, ADD)

    def run(store: str) -> dict[str, object]:
        words = (str(source), str(tmp_path / "log"), "[100, 300]")
        done = fork_program("tune_sizes.py", *words, TRITON_INTERPRET="1", DEJAVU_CACHE_URL=store)
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    tuned, key = run(theirs.as_uri()), str(tmp_path / "mine.pem")
    shutil.rmtree(folder := str(publisher.folder))
    assert run_command(["export", folder, "--sign", key, "--store", str(theirs)]) == 0
    assert not [path for path in publisher.folder.iterdir() if b"@" in path.read_bytes()]
    words = capsys.readouterr().out.split()[3:]  # the key for `use`
    (publisher.folder / "it's,new").symlink_to(publisher.folder)
    assert run_command(["use", f"{url}/it's,new", *words, "--device", "interpreter"]) == 0
    url = shlex.split(capsys.readouterr().out)[-1].split(",")[-1]
    assert run(f"{ours.as_uri()},{url}") == {**tuned, "benchmarked": 0}
    assert not list(FileStore(ours).contexts()), "what is a stranger's stays apart"
    assert run_command(["export", folder, "--sign", key, "--store", f"{theirs},{url}"]) == 2
    assert run_command(["export", folder, "--sign", key, "--recall-all", "--kernel", "add"]) == 2
    inside = ["--sign", f"{folder}/my.pem", "--new-key", "--recall-all"]
    assert run_command(["export", folder, *inside]) == 2
    assert not (publisher.folder / "my.pem").exists(), "where it would be served"
    assert run_command(["export", folder, "--sign", key, "--recall-all"]) == 0
    publisher.index.rename(tmp_path / "recalling")
    assert run_command(["doctor", "--store", url]) == 0
    assert "readable, 1 context, from copies: http://" in capsys.readouterr().out


def test_strangers_read_no_names_of_users_hosts_and_folders() -> None:
    failure = Failure(kind="crash", reason="in /tmp/x by me@host")
    failed = Measurement(config=config(8), failure=failure, at=MOMENT, by="me@host")
    verdict = {"outcome": "not_compared", "reason": "no default: of /home/me"}
    winner = {"config": config(64), "at": MOMENT, "results": {"out": verdict}}
    pin = Pin(config=config(64), at=MOMENT, by="me@host")
    published = for_strangers(record(16, measurement(), failed, winner=winner, pin=pin))
    text = canonical_json(published)
    assert ["in … by …" in text, "default: of …" in text] == [True, True], text
    assert not {"/", "@"} & {*text}, text


def test_use_lists_what_is_of_this_very_gpu(publisher: Publisher) -> None:
    """And not of one whose name begins with this one's."""
    theirs = context(device="interpreter 2")
    publisher.publish([RecordSet(context=theirs, records=(record(1),))])
    words = ("use", publisher.folder, "--key", publisher.key, "--triton", "3.6.0", "--dry-run")
    earlier = f"memory://,static+{publisher.folder.as_uri()}?key={43 * 'A'}"
    seen = dejavu(*words, "--device", "interpreter", DEJAVU_CACHE_URL=earlier)
    assert seen.stdout.count("static+") == 1, "its new key takes the place of an earlier one"
    assert dejavu(*words, TRITON_INTERPRET="1").returncode == 1


def test_no_team_gets_a_strangers(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    """No store keeps a stranger's record, even if a tune reads both and another has a part."""
    near, far, scenario = FileStore(publisher.root / "near"), MemoryStore(), record(16).scenario
    far.put(SETS[0].context, [Record(scenario=scenario, measurements=record(16).measurements)])
    tiers = TieredStore([near, publisher.open(), far])
    merged = tiers.get(SETS[0].context, scenario, fresh=True)
    assert merged
    assert (merged.record, [*near.record_sets()]) == (record(16), [])
    near.put(context(kernel="pkg.own"), [record(1)])
    exported = publisher.root / "backup.jsonl"
    run_command(["export", str(exported), "--store", f"{near.root},{tiers.tiers[1].url}"])
    assert exported.read_text().count("\n") == 1
    monkeypatch.chdir(near.root)
    for target, code in ((near.root / "set", 2), ("oci://localhost:1/team/set:1", 3)):
        words = ["export", str(target), "--store", str(near.root)]
        assert run_command([*words, "--sign", str(publisher.root / "mine.pem")]) == code
    assert run_command(words) == 2, "unsigned"
    assert not (near.root / "set").exists(), "which is the store's own"
    ours, later = (tuned_record(scenario, [measurement(at=at)]) for at in (MOMENT, now()))
    far.put(SETS[0].context, [ours])
    publisher.publish([RecordSet(context=SETS[0].context, records=(later,))])
    found = TieredStore([publisher.open(), far]).get(SETS[0].context, scenario, fresh=True)
    assert found == (ours, far.url, False), "overruled by a stranger's later one"


def test_a_launch_waits_briefly_and_a_later_one_has_the_file(publisher: Publisher) -> None:
    gate, context, scenario = threading.Event(), SETS[0].context, record(16).scenario
    with serve_folder(publisher.folder, gate) as address:
        store = publisher.open(address, wait=0.5)
        launch = TieredStore([MemoryStore(), store])
        assert launch.get(context, scenario) is None
        assert launch.get(SETS[1].context, scenario) is None, "which does not wait again"
        assert not store.revalidate({context: [scenario]}), "nothing to tell as long as it is away"
        gate.set()
        wait_until(lambda: len([*publisher.copies.glob("*.json")]) == len(SETS))
        assert context in store.revalidate({context: [scenario]})
        assert launch.get(context, scenario) == (record(16), store.url, True)


def test_a_server_that_drips_stalls_no_launch(publisher: Publisher) -> None:
    server = BadServer(drip)
    store = publisher.open(server.url, wait=0.1)
    for m in (16, 32):
        launch = TieredStore([MemoryStore(), store])
        assert launch.get(SETS[0].context, record(m).scenario) is None
    assert (server.connections, server.finished) == (1, 0)
    server.close()


def test_a_redirect_with_an_endless_body_is_left(publisher: Publisher) -> None:
    server = BadServer(drips(b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", b"x"))
    with pytest.raises(StoreError, match="redirects"):
        publisher.open(server.url).entries(fresh=True)
