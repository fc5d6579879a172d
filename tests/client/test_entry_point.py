"""What all commands share: exit codes, help, errors of one line, empty arguments, and Ctrl-C."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from dejavu_client.cli.help_texts import EXAMPLES, GROUPS
from support.command_line import list_commands, run_cli
from support.processes import ROOT, run_python
from support.records import context, record

from dejavu_cache import __version__
from dejavu_cache.errors import ExitCode
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
    assert (out.returncode, out.stderr.splitlines()) == (
        2,
        [f"error: this needs {package}: pip install 'dejavu-cache[{extra}]'"],
    )


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
        ("gc", "--days", "0", "--store", ""),
        ("pin", "", "--config", "BLOCK=64", "--store", "{store}"),
        ("export", "--kernel", "", "--store", "{store}"),
        ("export", "--vllm", "", "--store", "{store}"),
        ("export", "", "--store", "{store}"),
        ("sync", "--push-only", "--store", ""),
        ("ls", "--device", "", "--store", "{store}"),
        ("ls", "--triton", "", "--store", "{store}"),
        ("import", "{store}", "--into", ""),
        ("import", "{store}", "", "--into", "{store}/new"),
        ("prewarm", "module", "--device", "X", "--out", "{store}/new", "--store", ""),
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
