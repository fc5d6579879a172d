"""What all commands share: exit codes, help, errors of one line, empty arguments, and Ctrl-C."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from dejavu_client.cli.application import EXAMPLES, GROUPS
from dejavu_client.http.errors import UnreachableError
from dejavu_client.http.protocol_client import ProtocolClient
from support.command_line import list_commands, run_cli
from support.processes import ROOT, dejavu, environment, run_command, run_python
from support.records import context, record
from support.service import Running, running_server

from dejavu_cache import __version__
from dejavu_cache.errors import ExitCode, NewerFormatError, StoreError
from dejavu_cache.model.record import RecordSet
from dejavu_cache.stores import FileStore


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
    error = f"error: this needs {package}: pip install 'dejavu-cache[{extra}]'\n"
    assert (out.returncode, out.stderr) == (2, error)


def test_a_name_whose_extra_is_missing_says_what_to_install() -> None:
    code = "import sys; sys.modules['triton'] = None; from dejavu_cache import cached_autotune"
    out = run_python(code, check=False)
    assert "cached_autotune needs triton: pip install 'dejavu-cache[gpu]'" in out.stderr


WHILE_IMPORTED = """
        class Interrupter:
            @staticmethod
            def find_spec(name, path=None, target=None):
                if name == "typer":
                    signal.raise_signal(signal.SIGINT)

        sys.meta_path.insert(0, Interrupter)
"""
WHILE_PARSED = """
        import typer.main

        typer.main.get_command = lambda *_, **__: signal.raise_signal(signal.SIGINT)
"""
WHILE_ENDED = """
        import atexit

        atexit.register(signal.raise_signal, signal.SIGINT)
"""


@pytest.mark.parametrize(
    ("interrupted", "code"),
    [
        pytest.param(WHILE_IMPORTED, ExitCode.INTERRUPTED, id="import"),
        pytest.param(WHILE_PARSED, ExitCode.INTERRUPTED, id="parse"),
        pytest.param(WHILE_ENDED, ExitCode.SUCCESS, id="end"),
    ],
)
def test_ctrl_c_around_a_command_prints_no_traceback(interrupted: str, code: int) -> None:
    program = f"""
        import signal
        import sys

        signal.signal(signal.SIGINT, signal.default_int_handler)
        {interrupted}
        sys.argv = ["dejavu-cache", "--version"]
        from dejavu_client.__main__ import main
        main()
    """
    out = run_python(program, check=False)
    assert (out.returncode, out.stderr) == (code, "")


@pytest.mark.parametrize("option", ["-h", "--help", "--version"])
def test_help_and_version_go_to_standard_output(option: str) -> None:
    out = run_cli(option)
    assert (out.returncode, out.stderr) == (0, "")
    assert out.stdout.startswith(f"dejavu-cache {__version__}" if "v" in option else "Usage:")


def test_wrong_usage_is_one_line_on_standard_error() -> None:
    wrong = ["explain", "nonsense", "pages --port -1", "sync --server x", "quarantine add"]
    wrong += ["log --since yesterday", "quarantine add --host h --until 2026-01-31"]
    wrong += ["use http://[::1 --key K", "export https://host/set --sign key --recall-all"]
    wrong += ["export oci://[::1/a:b --sign key --recall-all"]
    for line in wrong:
        out = run_cli(*line.split(), DEJAVU_CACHE_URL="http://127.0.0.1:1")
        assert (out.returncode, out.stdout) == (2, "")
        assert out.stderr.startswith("error: ")
        assert len(out.stderr.splitlines()) == 1


def test_the_documentation_lists_the_exit_codes() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    table = page.partition("| exit code |")[2].partition("\n\n")[0]
    codes = [str(code.value) for code in ExitCode]
    assert re.findall(r"^\| (\d+) \|", table, re.MULTILINE) == codes


COMMANDS = list_commands()


def test_every_command_has_a_group_and_an_example() -> None:
    groups = {name.split()[0] for name in COMMANDS}
    assert groups == {name for names in GROUPS.values() for name in names}
    assert set(COMMANDS) == set(EXAMPLES)


def test_every_example_parses() -> None:
    for name, examples in EXAMPLES.items():
        for example in examples:
            words = shlex.split(example)
            assert words[: len(name.split())] == name.split()
            COMMANDS[name].make_context(name, words[len(name.split()) :])


@pytest.mark.parametrize("columns", [80, 120])
def test_the_help_of_every_command_fits(columns: int) -> None:
    for name in ("", *COMMANDS):
        out = run_cli(*name.split(), "--help", columns=columns)
        assert (out.returncode, out.stderr) == (0, "")
        lines = out.stdout.splitlines()
        assert max(map(len, lines)) <= columns, name
        assert not [line for line in lines[1:] if line.endswith("...")], name
        assert not name or f"  dejavu-cache {EXAMPLES[name][0]}" in out.stdout


@pytest.mark.parametrize("words", [[], ["quarantine"]])
def test_without_a_command_the_help_is_no_error_message(words: list[str]) -> None:
    done = run_cli(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: dejavu-cache")


@pytest.mark.parametrize(
    "words",
    [
        ("gc", "", "--yes", "--store", "{store}"),
        ("gc", "--all", "--yes", "--store", ""),
        ("pin", "", "--config", "BLOCK=64", "--store", "{store}"),
        *(("export", option, "", "--store", "{store}") for option in ("--vllm", "--sign")),
        ("export", "", "--store", "{store}"),
        ("sync", "--push-only", "--store", ""),
        *(("ls", option, "", "--store", "{store}") for option in ("--device", "--triton")),
        ("import", "{store}", "--store", ""),
        ("import", "{store}", "", "--store", "{store}/new"),
        ("prewarm", "module", "--device", "", "--out", "{store}/new"),
        *(("run", option, "", "--", "true") for option in ("--store", "--mode", "--policy")),
    ],
    ids=" ".join,
)
def test_it_is_refused(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path)
    store.put(context(), [record(16)])
    monkeypatch.setenv("DEJAVU_CACHE_URL", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    seen = run_cli(*(word.format(store=tmp_path) for word in words))
    assert (seen.returncode, seen.stdout) == (2, "")
    assert "it is empty" in seen.stderr
    assert sorted(tmp_path.rglob("*")) == before


NAME = "pkg.kernels.möbius☃"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Make a store with a kernel whose name is not ASCII."""
    FileStore(tmp_path / "störe").put(context(kernel=NAME), [record(32)])
    return tmp_path / "störe"


@pytest.mark.parametrize("command", ["ls", "ls --json", "export", "explain *bius*"])
def test_a_terminal_that_lacks_a_character_gets_the_rest(command: str, store: Path) -> None:
    seen = dejavu(*command.split(), "--store", store, PYTHONIOENCODING="ascii")
    assert seen.returncode == 0, seen.stderr
    if "--json" in command:
        assert json.loads(seen.stdout)[0]["kernel"] == NAME
    else:
        assert "bius" in seen.stdout


def test_an_export_is_read_again_whatever_the_locale_is(store: Path, tmp_path: Path) -> None:
    command = f"export --store {store} | {words()} import - --store {tmp_path / 'cöpy'}"
    seen = shell(command, LC_ALL="POSIX", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    assert (seen.returncode, seen.stderr) == (0, "")
    assert [context.kernel.name for context in FileStore(tmp_path / "cöpy").contexts()] == [NAME]


@pytest.mark.parametrize(
    ("command", "code"),
    [("ls >&-", 0), ("ls 2>&-", 0), ("show x 2>&-", 1), ("import - <&-", 1), ("doctor <&-", 0)],
)
def test_a_closed_stream_is_an_empty_one(command: str, code: int, store: Path) -> None:
    seen = shell(command, DEJAVU_CACHE_URL=str(store))
    assert (seen.returncode, "Traceback" in seen.stderr) == (code, False), seen.stderr


def test_a_working_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    seen = run_command(
        *("sh", "-c", f"mkdir gone && cd gone && rmdir ../gone && {words()} ls"),
        cwd=tmp_path, env=environment(DEJAVU_CACHE_URL="relative"), check=False,
    )  # fmt: skip
    assert (seen.returncode, "the working directory: " in seen.stderr) == (3, True), seen.stderr


@pytest.mark.parametrize("command", ["ls", "gc --yes", "gc", "show add", "pin add --config B=1"])
def test_a_store_of_which_nothing_can_be_read_is_not_called_empty(
    command: str, store: Path
) -> None:
    (file,) = store.rglob("*.json")
    file.write_text(file.read_text().replace('"format": ', '"format": 99', 1))
    seen = run_cli(*command.split(), "--store", store)
    assert (seen.returncode, "upgrade dejavu-cache" in seen.stderr) == (3, True), seen


def words() -> str:
    """Return the command by its package's name, as words of a shell."""
    return f"{shlex.quote(sys.executable)} -m dejavu_client"


def shell(command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_command("sh", "-c", f"{words()} {command}", env=environment(**env), check=False)


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
        ("import {local} --store {new}", "put", NEWER, PARTIAL, "2 new, 0 known",
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
