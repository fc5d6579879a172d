"""What a kernel's text says is read from a file only where the file cannot be wrong."""

from __future__ import annotations

import ast
import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import pytest
from support.checkout import ROOT
from support.kernels import ADD, load
from triton.runtime.jit import JITFunction

from dejavu_cache.settings import current_settings
from dejavu_cache.triton_internals import syntax_files
from dejavu_cache.triton_internals.hooks import retry_parsing
from dejavu_cache.triton_internals.source_hash import source_hash
from dejavu_cache.triton_internals.syntax import describe_text
from dejavu_cache.triton_internals.syntax_files import _path_of, _syntax_of

if TYPE_CHECKING:
    from support.fork_server import Nursery

TEXT = "def add(x, y: tl.constexpr):\n    return tl.load(x) + SHIFT * y\n"
OTHER = "def add(x, y: tl.constexpr):\n    return tl.load(x)\n"


def describe_in_new_process(text: str) -> Any:
    """Describe a text as a process does that has seen none."""
    _syntax_of.cache_clear()
    return _syntax_of(text)


def refuse(text: str) -> Any:
    raise AssertionError("the text was parsed")


def test_a_second_process_parses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    described = describe_in_new_process(TEXT)
    assert described == describe_text(TEXT)
    monkeypatch.setattr(syntax_files, "describe_text", refuse)
    assert describe_in_new_process(TEXT) == described
    with pytest.raises(AssertionError, match="was parsed"):
        describe_in_new_process(TEXT + "# a comment\n")


def test_an_identity_is_the_same_from_files(tmp_path: Path) -> None:
    _syntax_of.cache_clear()
    kernel = load(tmp_path / "kernels.py", ADD).add
    parsed = source_hash(kernel)
    assert list(_path_of("").parent.iterdir())
    _syntax_of.cache_clear()
    assert source_hash(kernel) == parsed


def test_other_code_or_another_python_reads_no_file_of_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    describe_in_new_process(TEXT)
    monkeypatch.setattr(syntax_files, "_MAKER", b"another version")
    monkeypatch.setattr(syntax_files, "describe_text", refuse)
    with pytest.raises(AssertionError, match="was parsed"):
        describe_in_new_process(TEXT)


def test_code_that_cannot_be_told_from_other_code_uses_no_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(syntax_files, "_MAKER", b"")
    assert describe_in_new_process(TEXT) == describe_text(TEXT)
    assert not _path_of(TEXT).parent.exists()


def test_a_package_in_a_zip_file_reads_them_too(tmp_path: Path, nursery: Nursery) -> None:
    archive = tmp_path / "packages.zip"
    with ZipFile(archive, "w") as packages:
        for file in ROOT.glob("dejavu_cache/**/*.py"):
            packages.write(file, file.relative_to(ROOT))
    makers = [
        nursery.start(
            """
            import sys
            sys.path.insert(0, sys.argv[1])
            from dejavu_cache.triton_internals import syntax_files
            print(syntax_files.__file__, syntax_files._MAKER.hex())
            """,
            path,
            folder=tmp_path,
        ).finish()
        for path in (archive, ROOT)
    ]
    assert makers[0].startswith(f"{archive}/")
    assert makers[0].split()[1] == makers[1].split()[1] == syntax_files._MAKER.hex()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def forget_a_name(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"SHIFT", b"tl   "))


def rename_another(path: Path) -> None:
    describe_in_new_process(OTHER)
    _path_of(OTHER).replace(path)


def let_others_write(path: Path) -> None:
    rename_digested(path)
    path.chmod(0o666)


def link(path: Path) -> None:
    rename_digested(path)
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def link_hard(path: Path) -> None:
    rename_digested(path)
    os.link(path, path.with_name("elsewhere"))


def give_away(path: Path) -> None:
    rename_digested(path)
    os.chown(path, 12345, -1)


def rename_digested(path: Path) -> None:
    """Plant a file of another text with a digest that is right."""
    describe_in_new_process(OTHER)
    _, _, content = _path_of(OTHER).read_bytes().partition(b"\n")
    path.write_bytes(syntax_files._digest(path, content) + b"\n" + content)


@pytest.mark.parametrize(
    "spoil", [cut, forget_a_name, rename_another, let_others_write, link, link_hard, give_away]
)
def test_a_spoilt_or_planted_file_is_not_believed(spoil: Callable[[Path], None]) -> None:
    if spoil is give_away and os.geteuid():
        pytest.skip("only root can give a file away")
    describe_in_new_process(TEXT)
    spoil(_path_of(TEXT))
    assert describe_in_new_process(TEXT) == describe_text(TEXT)
    assert describe_in_new_process(TEXT) == describe_text(TEXT), "and what replaced it is right"


def test_a_planted_file_would_be_believed_if_it_were_ours() -> None:
    """So the test above shows that the owner and the permissions count."""
    describe_in_new_process(TEXT)
    rename_digested(_path_of(TEXT))
    assert describe_in_new_process(TEXT) == describe_text(OTHER)


def test_without_a_folder_texts_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert describe_in_new_process(TEXT) == describe_text(TEXT)


def test_a_program_with_a_prewarmed_folder_writes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEJAVU_CACHE_URL", f"prewarmed://{tmp_path};http://cache:8080")
    current_settings.cache_clear()
    assert describe_in_new_process(TEXT) == describe_text(TEXT)
    assert not _path_of(TEXT).parent.exists()


def test_old_files_are_removed_and_those_of_others_are_not() -> None:
    describe_in_new_process(TEXT)
    folder = _path_of(TEXT).parent
    old, foreign = folder / ("0" * 64), folder / "notes.txt"
    for path in (old, foreign):
        path.touch()
        os.utime(path, (0, time.time() - 91 * 24 * 3600))
    syntax_files._remove_old_files.cache_clear()
    describe_in_new_process(OTHER)
    assert {*folder.iterdir()} == {foreign, _path_of(TEXT), _path_of(OTHER)}


def test_a_parse_in_the_midst_of_another_changes_nothing() -> None:
    text = TEXT * 500
    expected = describe_text(text)
    with parsing_meanwhile():
        assert describe_text(text) == expected


def test_a_parse_in_the_midst_of_tritons_changes_nothing(tmp_path: Path) -> None:
    body = "    at += n\n" * 2000
    (tmp_path / "long.py").write_text(f"def count(at, n):\n{body}")
    kernel = JITFunction(load(tmp_path / "long.py", (tmp_path / "long.py").read_text()).count)
    retry_parsing()
    expected = ast.dump(kernel.parse())
    with parsing_meanwhile():
        assert ast.dump(kernel.parse()) == expected


@contextmanager
def parsing_meanwhile() -> Iterator[None]:
    """Parse during one collection of garbage, as another thread may: Python 3.11.7 confuses both.

    Yields after the callback is set; it fails the test if there was no such collection.
    """
    parses: list[ast.AST] = []

    def parse_too(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and not parses:
            parses.append((lambda: ast.parse("x + 1"))())

    gc.callbacks.append(parse_too)
    try:
        yield
    finally:
        gc.callbacks.remove(parse_too)
    assert parses
