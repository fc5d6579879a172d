"""The command line over real folders."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from dejavu_client.cli.errors import NothingFoundError
from dejavu_client.cli.kernel_names import matching_kernels, shorten_kernels
from support.command_line import run_cli
from support.processes import ROOT, dejavu, run_python
from support.records import MOMENT, config, context, measurement, record

from dejavu_cache import __version__
from dejavu_cache.errors import ExitCode
from dejavu_cache.model.record import Failure, Measurement, RecordSet, Winner
from dejavu_cache.model.scenario import canonical_json
from dejavu_cache.stores import FileStore


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path / "store")
    failed = Measurement(
        config=measurement(128).config,
        failure=Failure(kind="out_of_resources", reason="shared memory"),
        at=MOMENT,
    )
    store.put(
        context(), [record(16, measurement(32, 1.0), measurement(64, 2.0), failed), record(32)]
    )
    return store


def test_ls_lists_kernels_in_columns_when_piped(store: FileStore) -> None:
    out = dejavu("ls", "--store", store.url)
    header, row = out.stdout.splitlines()
    assert header.split("\t")[0] == "kernel"
    assert row.split("\t")[0:7:2] == ["pkg.kernels.add", "NVIDIA H200", "events-cold", "3"]
    assert "\x1b" not in out.stdout


def test_show_names_winner_runner_up_and_failures(store: FileStore) -> None:
    out = run_cli("show", "add", "--store", store.root).stdout
    *_, header, first, second = (line.split("\t") for line in out.splitlines())
    assert header == ["M", "BLOCK", "ms", "slower", "failed", "runner-up"]
    assert first == ["16", "32", "1", "2.00x", "1", "BLOCK=64"]
    assert second == ["32", "64", "1", "-", "-", "-"]
    assert "all scenarios: N=64, x_ptr=float16" in out
    assert "all winners: num_warps=4" in out


def test_show_filters_by_scenario(store: FileStore) -> None:
    lines = json.loads(
        run_cli("show", "add", "--scenario", "M=32", "--store", store.root, "--json").stdout
    )
    assert [line["record"]["scenario"]["args"]["M"] for line in lines] == [32]


def test_show_of_what_is_not_there_exits_1(store: FileStore) -> None:
    out = run_cli("show", "nothing", "--store", store.root)
    assert (out.returncode, out.stdout) == (1, "")
    assert "has no kernel 'nothing'" in out.stderr


def test_diff_tells_what_the_others_winner_costs(store: FileStore, tmp_path: Path) -> None:
    assert run_cli("diff", store.root, store.root).returncode == 0
    other = FileStore(tmp_path / "other")
    faster = measurement(64, 0.5, MOMENT + timedelta(days=1))
    other.put(context(), [record(16, measurement(32, 1.0), faster)])
    out = run_cli("diff", store.root, other.root, "--json")
    assert out.returncode == 1
    assert [(row["what"], row["cost"]) for row in json.loads(out.stdout)] == [
        ("winner", 2.0),
        ("only in A", None),
    ]


def test_diff_compares_gpus_and_tritons_by_their_winners(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    slow, fast = measurement(32, 1.0), measurement(64, 2.0)
    store.put_now(context(), [record(16, slow, fast), record(32, slow, fast), record(64)])
    b200 = context(device="NVIDIA B200", triton="3.7.0")
    faster = measurement(64, 0.5)
    store.put_now(b200, [record(16, slow, faster), record(32, measurement(32, 0.1))])
    for options in (
        ("--device", "H200", "--device", "B200"),
        ("--triton", "3.6.0", "--triton", "3.7.0"),
    ):
        out = run_cli("diff", tmp_path, *options, "--json")
        rows = json.loads(out.stdout)
        assert out.returncode == 1
        assert [(row["what"], row["cost"]) for row in rows] == [
            ("winner", 2.0),
            ("only in A", None),
        ]
        assert rows[0]["device"] == "NVIDIA H200, Triton 3.6.0 | NVIDIA B200, Triton 3.7.0"
    same = run_cli("diff", tmp_path, "--device", "H200", "--device", "H200")
    assert (same.returncode, same.stdout) == (0, "no differences\n")
    assert run_cli("diff", tmp_path, "--device", "H200", "--device", "L4").returncode == 1
    assert run_cli("diff", tmp_path, "--device", "H200").returncode == 2
    assert run_cli("diff", tmp_path).returncode == 2


def test_an_export_imports_to_the_same_files(store: FileStore, tmp_path: Path) -> None:
    exported = run_cli("export", "--store", store.root)
    assert exported.stdout == run_cli("export", "--store", store.root).stdout
    (tmp_path / "records.ndjson").write_text(exported.stdout)
    copy = FileStore(tmp_path / "copy")
    assert run_cli("import", tmp_path / "records.ndjson", "--store", copy.root).returncode == 0
    assert copy.path(context()).read_bytes() == store.path(context()).read_bytes()


def test_only_a_newline_ends_a_line_of_an_export(tmp_path: Path) -> None:
    """Compilers' messages may hold all kinds of separators."""
    failure = Failure(kind="compile_error", reason="one\u2028two\u0085three")
    failed = record(16, measurement(32), Measurement(config=config(64), failure=failure, at=MOMENT))
    line = canonical_json(RecordSet(context=context(), records=(failed,)))
    (tmp_path / "records.ndjson").write_text(line + "\n", encoding="utf-8")
    run_cli("import", tmp_path / "records.ndjson", "--store", tmp_path / "other")
    assert list(FileStore(tmp_path / "other").records(context())) == [failed]


def test_a_record_file_and_a_folder_are_imported_too(store: FileStore, tmp_path: Path) -> None:
    for source in (store.path(context()), store.root):
        copy = FileStore(tmp_path / f"copy-{source.name}")
        assert run_cli("import", source, "--store", copy.root).returncode == 0
        assert copy.path(context()).read_bytes() == store.path(context()).read_bytes()


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


CUT = "the end of the file is missing"
RECORD_FILE_DAMAGE: dict[str, tuple[Callable[[str], str], str]] = {
    "a measurement": (lambda text: text.replace('"median": 2.0', '"medXan": 2.0'), '{"M": 16,'),
    "a winner": (
        lambda text: text.replace('"measurements"', '"winner": 7,\n "measurements"', 1),
        '{"M": 16,',
    ),
    "a scenario's name": (
        lambda text: text.replace('{"scenario": {"args": {"M": 32', '{"scene": {"args": {"M": 32'),
        "not a record",
    ),
    "a newer version's field": (
        lambda text: text.replace('"median": 2.0', '"p99": 3.0, "median": 2.0'),
        "p99",
    ),
    "the context": (lambda text: text.replace('"arch"', '"arc"'), "environment.device"),
    "cut in a record": (lambda text: text[: text.index('"median": 2.0')], CUT),
    "cut between records": (lambda text: text[: text.rindex("\n{")], CUT),
    "cut at the end of the last record": (lambda text: text.removesuffix("\n]}\n"), CUT),
}


@pytest.mark.parametrize("arguments", [["import"], ["import", "--vllm"]], ids=" ".join)
def test_an_import_reads_no_sparse_file_into_memory(arguments: list[str], tmp_path: Path) -> None:
    path = tmp_path / "results" / "E=8,N=1024,device_name=NVIDIA_H200.json"
    path.parent.mkdir()
    path.touch()
    os.truncate(path, 1 << 40)
    out = run_cli(*arguments, path.parent, "--store", tmp_path / "store")
    assert out.returncode == 3, out.stderr
    assert str(path) in out.stderr
    assert "nothing was imported" in out.stderr


def test_a_record_file_that_was_formatted_anew_is_imported(
    store: FileStore, tmp_path: Path
) -> None:
    (path,) = store.root.rglob("*.json")
    for text in (json.dumps(json.loads(path.read_text()), indent=2), "\n\n" + path.read_text()):
        path.write_text(text)
        assert run_cli("import", path, "--store", tmp_path / "copy").returncode == 0
        copy = FileStore(tmp_path / "copy")
        assert list(copy.record_sets()) == list(FileStore(store.root).record_sets())


@pytest.mark.parametrize("damage", RECORD_FILE_DAMAGE)
@pytest.mark.parametrize("whole_folder", [False, True])
def test_nothing_of_a_damaged_record_file_is_imported(
    store: FileStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: str,
    whole_folder: bool,
) -> None:
    store.put(context(device="NVIDIA B200"), [record(16)])
    path = store.path(context())
    damaged, problem = RECORD_FILE_DAMAGE[damage]
    before = path.read_text()
    path.write_text(damaged(before))
    assert path.read_text() != before
    source = store.root if whole_folder else path
    out = run_cli("import", source, "--store", tmp_path / "copy")
    assert (out.returncode, out.stdout) == (3, "")
    assert f"{path} is damaged, so nothing was imported; repair it, get it again" in out.stderr
    assert problem in out.stderr
    assert not (tmp_path / "copy").exists()
    assert "doctor" not in out.stderr + caplog.text, "no store has the file"
    assert "aside" not in out.stderr + caplog.text
    merged = run_cli("merge", store.root, "--into", tmp_path / "copy")
    assert (merged.returncode, merged.stdout) == (3, "")


def test_an_error_names_some_of_many_damaged_records(store: FileStore, tmp_path: Path) -> None:
    store.put(context(), [record(m) for m in range(100, 150)])
    path = store.path(context())
    path.write_text(path.read_text().replace('"median"', '"medXan"'))
    out = run_cli("import", path, "--store", tmp_path / "copy")
    assert out.returncode == 3
    assert len(out.stderr.splitlines()) < 30
    assert "and 32 more" in out.stderr


@pytest.mark.parametrize(("rule", "median"), [("newest", 3.0), ("fastest", 1.0), ("fail", None)])
def test_merge_settles_conflicts_as_told(
    store: FileStore, tmp_path: Path, rule: str, median: float | None
) -> None:
    other = FileStore(tmp_path / "other")
    other.put(context(), [record(32, measurement(64, 3.0, MOMENT + timedelta(days=1)))])
    out = run_cli("merge", other.root, "--into", store.root, "--on-conflict", rule)
    pinned = FileStore(store.root).get(context(), record(32).scenario)
    assert pinned
    assert out.returncode == (0 if median else 1)
    assert pinned.record.measurements[0].median == (median or 1.0)


def test_clear_asks_first(store: FileStore) -> None:
    assert dejavu("clear", "--store", store.root).returncode == 1
    assert len(list(store.contexts())) == 1
    assert run_cli("clear", "--yes", "--store", store.root).returncode == 0
    assert list(FileStore(store.root).contexts()) == []


class TestDoctor:
    def test_a_sound_store_is_ok(self, store: FileStore) -> None:
        out = run_cli("doctor", "--store", store.root)
        assert out.returncode == 0, out.stdout
        assert "1 context, 2 records" in out.stdout

    def test_findings_of_a_sound_store_are_no_errors_in_json(self, store: FileStore) -> None:
        findings = json.loads(run_cli("doctor", "--store", store.root, "--json").stdout)
        assert {finding["state"] for finding in findings} <= {"ok", "note"}

    def test_unknown_and_senseless_settings_are_found(self) -> None:
        out = run_cli("doctor", DEJAVU_CACHE_MOOD="good", DEJAVU_CACHE_MODE="sometimes")
        assert out.returncode == 1
        assert "wrong DEJAVU_CACHE_MOOD: no such setting" in out.stdout
        assert "DEJAVU_CACHE_MODE='sometimes'" in out.stdout

    def test_damaged_and_newer_files_are_found(self, store: FileStore) -> None:
        path = store.path(context())
        path.with_name("x.json").write_text(path.read_text().replace('"format": 1', '"format": 99'))
        path.with_name("y.json.damaged-1").write_text("?")
        out = run_cli("doctor", "--store", store.root)
        assert out.returncode == 1
        assert "upgrade dejavu-cache" in out.stdout
        assert "was damaged and set aside" in out.stdout

    def test_a_store_that_cannot_be_made_is_found(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        out = run_cli("doctor", DEJAVU_CACHE_URL=str(tmp_path / "file" / "store"))
        assert (out.returncode, "cannot be" in out.stdout) == (1, True)


def test_an_unusable_store_exits_3_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    out = run_cli("import", "-", "--store", "gopher://x")
    assert (out.returncode, len(out.stderr.splitlines())) == (2, 1)
    exported = tmp_path / "empty"
    exported.write_text("")
    source = FileStore(tmp_path / "source")
    source.put(context(), [record(1)])
    out = run_cli("merge", source.root, "--into", tmp_path / "store")
    assert (out.returncode, len(out.stderr.splitlines())) == (3, 1)


def test_the_winner_of_a_record_is_the_recorded_one(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    tie = record(
        16,
        measurement(32, 1.0),
        measurement(64, 1.001),
        winner=Winner(config=measurement(64).config, at=MOMENT),
    )
    store.put(context(), [tie])
    assert "all winners: BLOCK=64" in run_cli("show", "add", "--store", tmp_path).stdout


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        ("serve", "sqlalchemy", "server"),
        ("sweep json", "triton", "gpu"),
        ("prewarm json --device H200 --out unused", "triton", "gpu"),
    ],
)
def test_a_command_whose_extra_is_missing_says_what_to_install(
    command: str, package: str, extra: str
) -> None:
    code = f"""
        import sys
        sys.modules["{package}"] = None
        sys.argv = ["dejavu-cache", *"{command}".split()]
        from dejavu_client.cli.main import main
        main()
    """
    out = run_python(code, check=False)
    assert (out.returncode, out.stderr.splitlines()) == (
        2,
        [f"error: this needs {package}: pip install 'dejavu-cache[{extra}]'"],
    )


def test_ctrl_c_while_a_command_is_imported_prints_no_traceback() -> None:
    code = """
        import signal
        import sys

        class Interrupter:
            @staticmethod
            def find_spec(name, path=None, target=None):
                if name == "typer":
                    signal.raise_signal(signal.SIGINT)

        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.meta_path.insert(0, Interrupter)
        sys.argv = ["dejavu-cache", "ls"]
        from dejavu_client.__main__ import main
        main()
    """
    out = run_python(code, check=False)
    assert (out.returncode, out.stdout, out.stderr) == (ExitCode.INTERRUPTED, "", "")


def test_ctrl_c_while_the_arguments_are_parsed_prints_no_traceback() -> None:
    code = """
        import signal
        import sys
        import typer.main

        def interrupt(*args, **options):
            signal.raise_signal(signal.SIGINT)

        signal.signal(signal.SIGINT, signal.default_int_handler)
        typer.main.get_command = interrupt
        sys.argv = ["dejavu-cache", "ls"]
        from dejavu_client.__main__ import main
        main()
    """
    out = run_python(code, check=False)
    assert (out.returncode, out.stdout, out.stderr) == (ExitCode.INTERRUPTED, "", "")


@pytest.mark.parametrize(
    ("pattern", "kernels"),
    [
        ("add", ["pkg.kernels.add"]),
        ("pkg.kernels.add", ["pkg.kernels.add"]),
        ("*add*", ["other.add_one", "pkg.kernels.add"]),
        ("kernels.*", ["pkg.kernels.add"]),
    ],
)
def test_a_kernel_is_named_by_its_end_or_a_glob(pattern: str, kernels: list[str]) -> None:
    assert matching_kernels(["pkg.kernels.add", "other.add_one"], pattern, "here") == kernels


@pytest.mark.parametrize("typo", ["ad", "kernels.ad", "pkg.kernels.addd", "Add"])
def test_a_similar_kernel_is_suggested(typo: str) -> None:
    with pytest.raises(NothingFoundError, match=r"did you mean pkg\.kernels\.add"):
        matching_kernels(["pkg.kernels.add", "pkg.kernels.mul"], typo, "here")


def test_an_exact_name_matches_no_other_kernel() -> None:
    assert matching_kernels(["add", "pkg.add"], "add", "here") == ["add"]


def test_a_kernel_is_shortened_to_an_end_that_names_it_alone() -> None:
    names = ["pkg.a.add", "pkg.b.add", "pkg.mul", "add", "", "pkg.a.add"]
    short = shorten_kernels(names)
    assert short == ["a.add", "b.add", "mul", "add", "", "a.add"]
    for name, end in zip(names[:4], short[:4], strict=True):
        assert matching_kernels(names[:4], end, "here") == [name]


@pytest.mark.parametrize("option", ["-h", "--help", "--version"])
def test_help_and_version_go_to_standard_output(option: str) -> None:
    out = run_cli(option)
    assert (out.returncode, out.stderr) == (0, "")
    assert out.stdout.startswith(f"dejavu-cache {__version__}" if "v" in option else "Usage:")


def test_wrong_usage_is_one_line_on_standard_error() -> None:
    wrong = ["show", "nonsense", "ls --nonsense", "push --server x", "quarantine add"]
    wrong += ["log --since yesterday", "quarantine add --host h --until 2026-01-31"]
    for line in wrong:
        out = run_cli(*line.split(), DEJAVU_CACHE_URL="http://127.0.0.1:1")
        assert (out.returncode, out.stdout) == (2, "")
        assert out.stderr.startswith("error: ")
        assert len(out.stderr.splitlines()) == 1


def test_the_documentation_lists_the_exit_codes() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    table = page.partition("| exit code |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| (\d+) \|", table, re.MULTILINE) == [
        str(code.value) for code in ExitCode
    ]
