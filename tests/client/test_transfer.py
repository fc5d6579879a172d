"""`export` and `import`: nothing is lost, nothing damaged is taken, and progress is told."""

import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from dejavu_client.cli.commands import transfer
from dejavu_client.cli.main import run_command
from support.command_line import run_cli
from support.records import MOMENT, config, context, measurement, record

from dejavu_cache.errors import ExitCode
from dejavu_cache.model.record import Failure, Measurement, Record, RecordSet, record_set_line
from dejavu_cache.model.scenario import Context, canonical_json
from dejavu_cache.stores import FileStore
from dejavu_cache.system import notices


def test_what_cannot_be_read_is_left_out_of_no_export(tmp_path: Path) -> None:
    FileStore(tmp_path).put(context(), [record(16)])
    out = run_cli("export", "--store", f"{tmp_path},http://127.0.0.1:9")
    assert (out.returncode, out.stdout) == (ExitCode.UNUSABLE, "")
    assert "http://127.0.0.1:9" in out.stderr


def test_an_export_imports_to_the_same_files(store: FileStore, tmp_path: Path) -> None:
    exported = run_cli("export", "--store", store.root)
    assert exported.stdout == run_cli("export", "--store", store.root).stdout
    (tmp_path / "records.ndjson").write_text(exported.stdout)
    for source in (tmp_path / "records.ndjson", store.path(context()), store.root):
        copy = FileStore(tmp_path / f"copy-{source.name}")
        assert run_cli("import", source, "--store", copy.root).returncode == 0
        assert copy.path(context()).read_bytes() == store.path(context()).read_bytes()


def test_only_a_newline_ends_a_line_of_an_export(tmp_path: Path) -> None:
    """Compilers' messages may hold all kinds of separators."""
    failure = Failure(kind="compile_error", reason="one\u2028two\u0085three")
    failed = record(16, measurement(32), Measurement(config=config(64), failure=failure, at=MOMENT))
    line = canonical_json(RecordSet(context=context(), records=(failed,)))
    (tmp_path / "records.ndjson").write_text(line + "\n", encoding="utf-8")
    run_cli("import", tmp_path / "records.ndjson", "--store", tmp_path / "other")
    assert list(FileStore(tmp_path / "other").records(context())) == [failed]


@pytest.mark.parametrize("damage", ["{}", "hello", '{"format": 99}', '{"context": 1}'])
def test_nothing_of_a_damaged_export_is_imported(
    store: FileStore, tmp_path: Path, damage: str
) -> None:
    exported = run_cli("export", "--store", store.root).stdout
    (tmp_path / "records.ndjson").write_text(f"{exported}{damage}\n")
    out = run_cli("import", tmp_path / "records.ndjson", "--store", tmp_path / "copy")
    assert out.returncode == 3
    assert "records.ndjson, line 2" in out.stderr
    assert "\n  :" not in out.stderr, "an empty place"
    assert not (tmp_path / "copy").exists()


RECORD_FILE_DAMAGE: dict[str, Callable[[str], str]] = {
    "a measurement": lambda text: text.replace('"median": 2.0', '"medXan": 2.0'),
    "a winner": lambda text: text.replace('"measurements"', '"winner": 7,\n "measurements"', 1),
    "a scenario's name": lambda text: text.replace('{"scenario": {"args"', '{"scene": {"args"'),
    "a newer version's field": lambda text: text.replace('"median": 2.0', '"p99": 3, "median": 2'),
    "the context": lambda text: text.replace('"arch"', '"arc"'),
    "cut in a record": lambda text: text[: text.index('"median": 2.0')],
    "cut between records": lambda text: text[: text.rindex("\n{")],
    "cut at the end of the last record": lambda text: text.removesuffix("\n]}\n"),
}


@pytest.mark.parametrize("source", ["results", "results/records.json", "/dev/zero", "-"])
def test_an_import_reads_nothing_endless_into_memory(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkdir("results")
    Path("results/records.json").touch()
    os.truncate("results/records.json", 1 << 40)
    monkeypatch.setattr(transfer, "MAX_BYTES", 1 << 20)
    with open("/dev/zero") as endless:
        monkeypatch.setattr("sys.stdin", endless)
        out = run_cli("import", source, "--store", "store")
    reason = "it is neither a file nor a folder" if "dev" in source else "File too large"
    assert (out.returncode, reason in out.stderr, source in out.stderr) == (3, True, True)


@pytest.mark.parametrize("form", ["export", "folder"])
def test_nothing_is_imported_beside_records_of_a_newer_version(
    form: str, store: FileStore, tmp_path: Path
) -> None:
    """The error says so, since the records before the newer ones could be read."""
    source = store.root
    if form == "export":
        newer = source = tmp_path / "export.jsonl"
        assert run_cli("export", source, "--store", store.root).returncode == 0
    else:
        store.put(context(kernel="z.last"), [record(1)])
        newer = sorted(source.rglob("*.json"))[-1]
    text = newer.read_text()
    last = text.replace('"format": ', '"format": 9')
    newer.write_text(text + last if form == "export" else last)
    seen = run_cli("import", source, "--store", tmp_path / "copy")
    assert (seen.returncode, seen.stdout) == (ExitCode.UNUSABLE, "")
    assert "upgrade dejavu-cache" in seen.stderr
    assert "nothing was " in seen.stderr
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("damage", RECORD_FILE_DAMAGE)
def test_nothing_of_a_damaged_record_file_is_imported(
    store: FileStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    store.put(context(device="NVIDIA B200"), [record(16)])
    path = store.path(context())
    before = path.read_text()
    path.write_text(RECORD_FILE_DAMAGE[damage](before))
    assert path.read_text() != before
    out = run_cli("import", path, "--store", tmp_path / "copy")
    assert (out.returncode, out.stdout) == (3, "")
    assert f"{path} is damaged, so nothing was imported; repair it, get it again" in out.stderr
    assert not (tmp_path / "copy").exists()
    assert "doctor" not in out.stderr + caplog.text, "no store has the file"
    assert "aside" not in out.stderr + caplog.text
    for folder in (store.url, store.root):
        merged = run_cli("import", folder, "--store", tmp_path / "copy")
        assert (merged.returncode, merged.stdout) == (3, "")
        assert str(path) in merged.stderr
        assert not (tmp_path / "copy").exists()


def test_a_short_copy_says_nothing_and_a_long_one_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = FileStore(tmp_path / "source")
    source.put(context(), [record(32), record(64)])
    words = ["import", str(source.root), "--store", str(tmp_path / "target")]
    assert run_command(words) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(notices, "LINE_EVERY", 0.0)
    assert run_command(words) == 0
    assert "target: 0 new, 2 known after 0 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    ["export {out} --store {store}", "import file://{store} --store {new}", "diff {store} {other}"],
)
def test_records_that_could_not_be_read_are_not_left_out_silently(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exported parts would pass for the whole, and replace an earlier export."""
    store, other = FileStore(tmp_path / "store"), FileStore(tmp_path / "other")
    for name in ("a.x", "b.x", "c.x"):
        store.put(context(kernel=name), [record(1)])
        other.put(context(kernel=name), [record(1)])
    out = tmp_path / "out"
    out.write_text("before")
    read_records = FileStore.records

    def read_and_vanish(self: FileStore, of: Context) -> Iterator[Record]:
        if of.kernel.name == "b.x" and store.root.exists():
            store.root.rename(tmp_path / "elsewhere")
        return read_records(self, of)

    monkeypatch.setattr(FileStore, "records", read_and_vanish)
    places = {"out": out, "new": tmp_path / "new", "store": store.root, "other": other.root}
    seen = run_cli(*command.format(**places).split())
    assert seen.returncode == ExitCode.UNUSABLE, seen
    assert f"{store.root} disappeared while it was read" in seen.stderr
    assert out.read_text() == "before"
    assert sorted(tmp_path.glob("out*")) == [out]


FOUR = [measurement(block) for block in (16, 32, 64, 128)]
MANY = [record(m, *FOUR) for m in range(300)]


@pytest.mark.parametrize("command", [["show", "add", "--json"], ["export"]])
def test_records_pass_one_by_one(command: list[str], tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put(context(), MANY)
    assert peak_of(*command, "--store", store.url) < 10 * store.path(context()).stat().st_size


def test_record_sets_are_imported_one_by_one(tmp_path: Path) -> None:
    """All of them are checked first; parsed, they are not kept."""
    file = tmp_path / "export.jsonl"
    with open(file, "w") as lines:
        for number in range(30):
            lines.writelines(record_set_line(context(kernel=f"pkg.k{number}"), MANY[:40]))
    command = ("import", str(file), "--store", str(tmp_path / "store"))
    assert peak_of(*command) < 6 * file.stat().st_size


def peak_of(*command: str) -> int:
    """Run a command twice, and return the most memory that the second run takes."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        run_command(command)  # imports what it needs
        tracemalloc.start()
        try:
            assert run_command(command) == 0
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    return peak


def test_show_prints_one_json_document(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put(context(), MANY[:3])
    out = run_cli("show", "add", "--json", "--store", tmp_path).stdout
    rows = json.loads(out)
    assert out == json.dumps(rows, indent=2) + "\n"
    assert [row["record"] for row in rows] == [entry.model_dump(mode="json") for entry in MANY[:3]]


wrong = Measurement(config=config(8), failure=Failure(kind="wrong", reason="no"), at=MOMENT)


@pytest.mark.parametrize("records", [(), (record(1),), (record(1), record(2, wrong))])
def test_the_line_of_a_record_set_is_its_canonical_json(records: tuple[object, ...]) -> None:
    record_set = RecordSet.model_validate({"context": context(), "records": records})
    line = "".join(record_set_line(context(), record_set.records))
    assert line == canonical_json(record_set) + "\n"
