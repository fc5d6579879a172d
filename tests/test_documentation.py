"""Settings, commands, options and messages agree with the documentation; the quick start runs."""

import ast
import importlib
import os
import re
import runpy
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer
from dejavu_client.cli.main import all_commands, run_command
from support.checkout import ROOT
from support.command_line import list_commands

import dejavu_cache
from dejavu_cache.settings import current_settings
from dejavu_cache.stores.tiered import default_store

REFERENCE = ROOT / "docs/reference"
GENERATED = {REFERENCE / name for name in ("api.md", "commands.md", "settings.md", "http.md")}
"""Pages that are written from the code, which say nothing about whether people are told."""
PAGES = {
    path: path.read_text(encoding="utf-8")
    for path in sorted(ROOT.glob("docs/**/*.md"))
    if path not in GENERATED
}
TEXT = "\n".join(PAGES.values())
QUICKSTART = PAGES[ROOT / "docs/quickstart.md"]
COMMANDS = list_commands()


def is_documented(word: str) -> bool:
    """Return whether a page has a word that is not part of a longer one."""
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", TEXT) is not None


def test_every_command_is_documented() -> None:
    assert 20 < len(COMMANDS) <= 30
    groups = {name.split()[0] for name in COMMANDS}
    assert not [name for name in groups if f"`{name}" not in TEXT]
    assert not [name for name in COMMANDS if not is_documented(name.split()[-1])]


def test_the_reference_of_commands_is_written_from_this_code() -> None:
    tool = runpy.run_path(str(ROOT / "tools/write_reference.py"))
    assert (REFERENCE / "commands.md").read_text() == tool["render_commands"](), "make reference"
    options = [option for command in COMMANDS.values() for option in command.params]
    assert all(option.help for option in options if option.param_type_name == "option")


def test_the_quoted_messages_are_in_the_source() -> None:
    quoted = re.findall(r"^\| `([^`]+)` \|", PAGES[ROOT / "docs/troubleshooting.md"], re.MULTILINE)
    assert len(quoted) > 20
    texts = "\0".join(
        node.value
        for package in ("dejavu_cache", "client/dejavu_client", "service/dejavu_service")
        for path in ROOT.glob(f"{package}/**/*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    assert not [message for message in quoted if message not in texts]


def test_every_command_line_in_the_documentation_parses() -> None:
    lines = {
        (path.name, line.partition("  #")[0].strip())
        for path, text in PAGES.items()
        for kind, block in re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
        if kind in ("", "sh")
        for line in map(str.strip, re.sub(r"\\\n\s*", "", block).splitlines())
        if line.startswith(("dejavu-cache ", "$ dejavu-cache "))
    }
    lines |= {
        (path.name, line)
        for path in ROOT.glob("service/dejavu_service/pages/templates/*.html")
        for line in re.findall(r">(dejavu-cache [^<{]* --[^<{]*)</code>", path.read_text())
    }
    assert len(lines) > 30
    application: Any = typer.main.get_command(all_commands())
    for page, line in sorted(lines):
        if "…" in line or "<" in line:
            continue
        words = shlex.split(line.removeprefix("$ ").split(" && ")[0].split(" | ")[0], comments=True)
        context = application.make_context("dejavu-cache", words[1:], resilient_parsing=False)
        command, name, rest = application, "dejavu-cache", words[1:]
        while hasattr(command, "commands"):
            name, command, rest = command.resolve_command(context, rest)
            assert command is not None, (page, line)
        try:
            command.make_context(name, rest, parent=context)
        except Exception as error:
            raise AssertionError(f"{page}: {line}: {error}") from error


def test_every_snippet_of_python_parses_and_imports_what_there_is() -> None:
    snippets = [
        (path.name, block)
        for path, text in PAGES.items()
        for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    ]
    assert len(snippets) > 8
    for page, block in snippets:
        if block.startswith(">>>"):
            block = "\n".join(re.findall(r"^>>> (.*)$", block, re.MULTILINE))
        for node in ast.walk(parse_fragment(block, page)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dejavu"):
                module = importlib.import_module(node.module or "")
                missing = [name.name for name in node.names if not hasattr(module, name.name)]
                assert not missing, (page, missing)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "dejavu_cache":
                assert hasattr(dejavu_cache, node.attr), (page, node.attr)


def parse_fragment(block: str, page: str) -> ast.Module:
    """Parse code that may end with a decorator or a function's head, and leave out elements."""
    text = re.sub(r"(?<=\)), …", "", block.rstrip()).replace("…", "...")
    for rest in ("", "\ndef decorated(): ...", "\n    ..."):
        with suppress(SyntaxError):
            return ast.parse(text + rest)
    raise AssertionError(f"{page} has code that is no Python:\n{block}")


def test_the_tests_that_hold_the_promises_exist() -> None:
    text = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    path, missing, count = "", [], 0
    for name in re.findall(r"`((?:tests/[\w/.]+\.py)?::test_\w+)`", text):
        path, test = name.split("::")[0] or path, name.split("::")[1]
        count += 1
        file = ROOT / path
        if not file.exists() or f"def {test}(" not in file.read_text(encoding="utf-8"):
            missing.append(name)
    assert missing == []
    assert count > 20


def run_twice(script: Path, printed: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Check what two processes of a sample print."""
    for line in printed:
        runpy.run_path(str(script), run_name="__main__")
        assert capsys.readouterr().out == line + "\n"
        current_settings.cache_clear()
        default_store.cache_clear()  # a second process has read nothing yet


def test_the_quick_start_does_what_its_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    printed = ["benchmarked 6 configs", "benchmarked 0 configs"]
    assert all(line in QUICKSTART for line in printed)
    run_twice(ROOT / "examples/quickstart.py", printed, capsys)
    lines = re.findall(r"^dejavu-cache (.+)$", QUICKSTART, re.MULTILINE)
    assert len(lines) >= 2
    for line in lines:
        assert run_command(line.split()) == 0, line
    assert "quickstart.add_kernel" in capsys.readouterr().out


def test_the_sample_of_the_readme_prints_what_it_says(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    script = tmp_path / "add_one.py"
    script.write_text(re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)[0])
    printed = re.findall(r"^benchmarked .*$", readme, re.MULTILINE)
    assert len(printed) == 2
    run_twice(script, printed, capsys)


def test_the_demo_takes_no_settings_of_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEJAVU_CACHE_TOKEN_FILE", "of-another-server")
    runpy.run_path(str(ROOT / "examples/demo.py"))["forget_settings"]()
    assert "DEJAVU_CACHE_TOKEN_FILE" not in os.environ
