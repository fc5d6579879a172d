"""Tuned tables of engines are imported whole, once, and only where they can be read."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.command_line import run_cli
from support.processes import dejavu
from support.tuned_tables import FIRST, SECOND, TABLE, contents, imported, write_content

from dejavu_cache.stores import FileStore


def test_a_table_that_was_corrected_and_imported_again_counts(tmp_path: Path) -> None:
    """The numbers are such that neither the largest nor the smallest one is the last."""
    for block in (16, 128, 32):
        write_content(tmp_path / "in" / TABLE, {"1": {"BLOCK_SIZE_M": block}})
        assert run_cli("import", "--vllm", tmp_path / "in").returncode == 0
        run_cli("export", "--vllm", tmp_path / "out")
        assert contents(tmp_path / "out") == {TABLE: {"1": {"BLOCK_SIZE_M": block}}}


def test_importing_a_folder_again_changes_nothing(tmp_path: Path) -> None:
    """Another process orders what it makes of a set otherwise."""
    write_content(tmp_path / "in" / TABLE, {"1": FIRST, "2": SECOND})
    for seed in "123":
        seen = dejavu(
            "import", "--vllm", tmp_path / "in", PYTHONHASHSEED=seed, **own_store(tmp_path)
        )
        assert seen.returncode == 0, seen.stderr
        (file,) = (tmp_path / "store" / ".imported").iterdir()
        assert len(file.read_text().splitlines()) == 2


def own_store(folder: Path) -> dict[str, str]:
    return {"DEJAVU_CACHE_URL": str(folder / "store"), "XDG_CACHE_HOME": str(folder)}


def test_imports_at_once_lose_nothing(tmp_path: Path) -> None:
    def put(number: int) -> None:
        FileStore(tmp_path).put_imported([imported(M=str(number))])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(40)))
    assert len(list(FileStore(tmp_path).imported("fused_moe_kernel"))) == 40


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", '{"1": null}', '{"1": {"kwargs": []}}', '{"1": {"BLOCK_SIZE_M": NaN}}',
        '{"1": {"BLOCK_SIZE_M": 1e999}}', '{"one": {}}', '{"-1": {}}', '{"\\ud800": {}}',
        '{"triton_version": 3.6, "1": {}}', '{"triton_version": "\\udfff", "1": {}}',
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_read_is_named(content: str, tmp_path: Path) -> None:
    write_content(tmp_path / "in" / TABLE.replace("128", "8"), {"1": FIRST})
    (tmp_path / "in" / TABLE).write_text(content)
    seen = run_cli("import", "--vllm", tmp_path / "in", "--store", tmp_path / "store")
    assert (seen.returncode, len(seen.stderr.splitlines())) == (3, 1), seen.stderr
    assert f"{TABLE} does not hold what vllm writes" in seen.stderr
    assert not (tmp_path / "store").exists()


def test_tables_of_other_operations_are_left_out(tmp_path: Path) -> None:
    """SGLang has some beside those of block-scaled products."""
    other = "N=512,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8_channelwise.json"
    write_content(tmp_path / "in" / other, {"1": FIRST})
    seen = run_cli("import", "--vllm", tmp_path / "in")
    assert (seen.returncode, "has no results of vllm" in seen.stderr) == (1, True), seen.stderr
    write_content(tmp_path / "in" / TABLE, {"1": FIRST})
    seen = run_cli("import", "--vllm", tmp_path / "in")
    assert (seen.returncode, seen.stdout.startswith("1 result of vllm")) == (0, True), seen
    run_cli("export", "--vllm", tmp_path / "out")
    assert contents(tmp_path / "out") == {TABLE: {"1": FIRST}}


@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/nowhere")])
@pytest.mark.parametrize("option", ["--vllm", ""])
def test_an_import_waits_for_no_pipe(
    plant: Callable[[Path], None], option: str, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    plant(tmp_path / "in" / TABLE)
    seen = run_cli("import", *([option] if option else []), tmp_path / "in")
    assert seen.returncode in (1, 3), seen.stderr


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path / "in") + b"/E=8,N=32,device_name=H\xff.json"
    os.mkdir(tmp_path / "in")
    with open(path, "w") as file:
        file.write('{"1": {"BLOCK_SIZE_M": 16}}')
    seen = run_cli("import", "--vllm", tmp_path / "in")
    assert (seen.returncode, "device: " in seen.stderr) == (3, True)
