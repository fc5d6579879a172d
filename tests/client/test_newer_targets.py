"""Copies into a store of which a newer version wrote some files."""

from __future__ import annotations

from pathlib import Path

from support.command_line import run_cli
from support.records import context, record

from dejavu_cache.errors import ExitCode
from dejavu_cache.stores import FileStore

CONTEXTS = [context(kernel=f"pkg.{name}") for name in "abc"]


def test_a_copy_goes_on_behind_a_context_of_a_newer_format(tmp_path: Path) -> None:
    source, target = FileStore(tmp_path / "source"), FileStore(tmp_path / "target")
    for each in CONTEXTS:
        source.put(each, [record(1)])
    target.put(CONTEXTS[0], [record(2)])
    newer = target.path(CONTEXTS[0])
    newer.write_text(newer.read_text().replace('"format": 2', '"format": 99'))
    before = newer.read_bytes()
    out = run_cli("import", source.root, "--into", target.root)
    assert out.returncode == ExitCode.PARTIAL
    assert out.stdout == f"2 new, 0 known in {target.url}\n"
    assert "1 record is not known to be in" in out.stderr
    assert "1 of pkg.a on NVIDIA H200: " in out.stderr
    assert "has format 99" in out.stderr
    assert newer.read_bytes() == before
    assert [found.kernel.name for found in FileStore(target.root).contexts()] == ["pkg.b", "pkg.c"]
