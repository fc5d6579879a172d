"""A prewarmed folder that was damaged or tampered with, and is prewarmed again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from support.prewarming import prewarm

from dejavu_cache.errors import BundleError
from dejavu_cache.stores import FileStore
from dejavu_cache.stores.manifest import MANIFEST, find_differences, read_manifest, verify_folder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux")


class Build(NamedTuple):
    """A folder for one GPU, its files as they were made, and how to prewarm it again."""

    out: Path
    sound: dict[str, bytes]
    again: Callable[..., subprocess.CompletedProcess[str]]

    def find(self, pattern: str) -> list[Path]:
        """Return the files of the folder that match a pattern, sorted."""
        return sorted(self.out.rglob(pattern))

    @property
    def binary_count(self) -> int:
        """Number of different binaries."""
        return len([name for name in self.sound if name.endswith(".cubin")])


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def made(records: FileStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with `out`, a prewarmed folder, and `user`, the user's cache folder."""
    home = tmp_path_factory.mktemp("damaged")
    done = prewarm(
        records, home / "out", devices=("NVIDIA H200",), XDG_CACHE_HOME=str(home / "user")
    )
    assert done.returncode == 0, done.stderr
    shutil.copytree(home, home.with_name("sound"))
    return home


@pytest.fixture
def build(made: Path, records: FileStore) -> Build:
    """Return the folder as it was made, where it was made."""
    shutil.rmtree(made)
    shutil.copytree(made.with_name("sound"), made)
    out = made / "out"

    def again(*words: str) -> subprocess.CompletedProcess[str]:
        user = str(made / "user")
        return prewarm(
            records, out, "products", *words, devices=("NVIDIA H200",), XDG_CACHE_HOME=user
        )

    return Build(out, contents(out), again)


def flip_a_byte(path: Path) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    path.write_bytes(damaged)


@pytest.mark.parametrize("words", [(), ("--allow-other-wheel",)], ids=["same", "changed"])
def test_a_damaged_binary_is_compiled_again(build: Build, words: tuple[str, ...]) -> None:
    """Whether the inputs are the same or have changed."""
    cubin = build.find("*.cubin")[0]
    flip_a_byte(cubin)
    done = build.again(*words)
    assert done.returncode == 0, done.stderr
    assert f"1 of {build.binary_count} binaries compiled" in done.stdout
    name = cubin.relative_to(build.out).as_posix()
    assert f"note: {build.out} was changed since it was made ({name} was altered)" in done.stderr
    assert contents(build.out) == build.sound
    verify_folder(build.out)
    after = build.again(*words)
    assert "nothing new" in after.stdout
    assert "note" not in after.stderr, "the damage is no property of the new folder"


def test_whatever_differs_is_made_again_or_left_out(build: Build, tmp_path: Path) -> None:
    """Also a host module, a listing, records, links, and files that the manifest does not have."""
    launcher = build.find("*.so")[0]
    flip_a_byte(launcher)
    cubins = build.find("*.cubin")
    assert len(cubins) >= 5
    cubins[0].unlink()
    (listing,) = cubins[1].parent.glob("__grp__*")
    listing.write_text(listing.read_text().replace("cubin", "nibuc"))
    elsewhere = tmp_path / "elsewhere"
    shutil.copy(cubins[2], elsewhere)
    cubins[2].unlink()
    cubins[2].symlink_to(elsewhere)
    shutil.move(cubins[3].parent, tmp_path / "key")
    cubins[3].parent.symlink_to(tmp_path / "key")
    (cubins[4].parent / "planted.so").write_bytes(b"ELF")
    (build.out / "binaries" / "PLANTED").mkdir()
    (build.out / "binaries" / "PLANTED" / "planted.cubin").write_bytes(b"ELF")
    flip_a_byte(build.find("records/**/*.json")[0])
    differing = {inside for inside, _ in find_differences(build.out, read_manifest(build.out))}
    done = build.again()
    assert done.returncode == 0, done.stderr
    assert f"and {len(differing) - 5} more" in done.stderr
    assert "nothing new" not in done.stdout
    assert contents(build.out) == build.sound
    verify_folder(build.out)
    assert not [path for path in build.out.rglob("*") if path.is_symlink()]


def test_a_host_module_that_is_damaged_is_not_nothing_new(build: Build) -> None:
    flip_a_byte(build.find("*.so")[0])
    done = build.again()
    assert done.returncode == 0, done.stderr
    assert f"0 of {build.binary_count} binaries compiled" in done.stdout
    assert contents(build.out) == build.sound


def damage_text(build: Build) -> None:
    (build.out / MANIFEST).write_text("{")


def empty_the_list(build: Build) -> None:
    path = build.out / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "files": {}}))


def name_a_newer_version(build: Build) -> None:
    path = build.out / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 99}))


def link_the_manifest(build: Build) -> None:
    path = build.out / MANIFEST
    shutil.move(path, build.out.with_name("manifest"))
    path.symlink_to(build.out.with_name("manifest"))


def link_the_binaries(build: Build) -> None:
    path = build.out / "binaries"
    shutil.move(path, build.out.with_name("binaries"))
    path.symlink_to(build.out.with_name("binaries"))


@pytest.mark.parametrize(
    "damage",
    [damage_text, empty_the_list, name_a_newer_version, link_the_manifest, link_the_binaries],
)
def test_nothing_is_kept_that_no_manifest_describes(
    build: Build, damage: Callable[[Build], None]
) -> None:
    """All is compiled again, and the damaged binary with it."""
    flip_a_byte(build.find("*.cubin")[0])
    damage(build)
    with pytest.raises(BundleError):
        verify_folder(build.out)
    done = build.again()
    assert done.returncode == 0, done.stderr
    assert f"{build.binary_count} of {build.binary_count} binaries compiled" in done.stdout
    assert "note: " in done.stderr
    assert contents(build.out) == build.sound
    verify_folder(build.out)


def test_a_folder_behind_a_link_is_replaced_and_the_link_stays(
    build: Build, records: FileStore
) -> None:
    link = build.out.with_name("link")
    link.symlink_to("out")
    for devices in (("NVIDIA H200",), ("NVIDIA H200", "NVIDIA B200"), ("NVIDIA H200",)):
        again = prewarm(records, link, devices=devices, XDG_CACHE_HOME=str(link.with_name("user")))
        assert again.returncode == 0, again.stderr
        assert link.is_symlink()
        assert len(verify_folder(build.out).devices) == len(devices)
    assert {path.name for path in link.parent.iterdir()} == {"out", "link", "user"}
