"""A process loads binaries only from a folder that is named as prewarmed, private and unaltered."""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import triton
from support.processes import PROGRAMS, environment, run_command

from dejavu_cache.errors import SettingsError
from dejavu_cache.runtime.prewarmed_binaries import SealedBinaries, problem_of_folder
from dejavu_cache.stores import open_store
from dejavu_cache.stores.manifest import Manifest, describe_file, files_of, read_manifest
from dejavu_cache.triton_internals import hooks

KEY = "a" * 40


def manifest_of(folder: Path, **changed: Any) -> Manifest:
    files = {inside: describe_file(path) for inside, path in files_of(folder).items()}
    values: dict[str, Any] = {
        "made_by": "x",
        "triton": triton.__version__,
        "wheel": "x",
        "abi": sysconfig.get_config_var("EXT_SUFFIX"),
        "platform": sysconfig.get_platform(),
        "host_key": "x",
        "devices": (),
        "targets": (),
        "codegen": {},
        "kernels": (),
        "files": files,
        **changed,
    }
    return Manifest(**values)


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    """Make a small prewarmed folder with one group of files and Triton's driver module."""
    folder = tmp_path / "tuned"
    for key, files in {
        KEY: {"__grp__k.json": '{"child_paths": {"k.cubin": "k.cubin"}}', "k.cubin": "ELF"},
        hooks.cuda_utils_key(): {hooks.CUDA_UTILS: "ELF"},
    }.items():
        for name, text in files.items():
            path = folder / "binaries" / key / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    (folder / "prewarmed.json").write_text(manifest_of(folder).text)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


@pytest.fixture
def cold_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))  # a knob would stay set


def find(folder: Path) -> tuple[str | None, dict[str, str] | None]:
    """Return what Triton is handed: the driver's module and the kernel's group."""
    sealed = SealedBinaries(folder, read_manifest(folder))
    cache = hooks.sealed_cache([sealed], hooks.cache_manager())
    return cache("b" * 40).get_file(hooks.CUDA_UTILS), cache(KEY).get_group("k.json")


def decorate_in_a_process(url: str) -> subprocess.CompletedProcess[str]:
    env = environment(DEJAVU_CACHE_URL=url, TRITON_INTERPRET="", DEJAVU_CACHE_SHIPPED="0")
    program = PROGRAMS / "decorate_kernel.py"
    return run_command(sys.executable, program, "b" * 40, env=env, check=False)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_plain_folder_never_makes_a_process_load_a_binary(tuned: Path, scheme: str) -> None:
    """Whoever may write records could drop a manifest and a module into their folder."""
    ran = decorate_in_a_process(f"{scheme}{tuned}")
    assert "no sealed cache" in ran.stderr
    assert str(tuned / "binaries") not in ran.stdout


def test_a_plain_path_serves_the_records_and_names_the_scheme(
    tuned: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        store = open_store(str(tuned))
    assert store.read_only
    assert store.url == (tuned / "records").as_uri() + "?read_only=1"
    (warning,) = caplog.messages
    assert f"prewarmed://{tuned}" in warning
    with pytest.raises(SettingsError, match="prewarmed"):
        open_store(f"prewarmed://host{tuned}")


@pytest.mark.parametrize("inside", ["", "prewarmed.json", "binaries"])
def test_a_program_goes_on_without_a_folder_that_was_moved(tuned: Path, inside: str) -> None:
    (tuned / inside).rename(tuned.parent / "elsewhere")
    ran = decorate_in_a_process(f"prewarmed://{tuned}")
    assert "no sealed cache" in ran.stderr
    lost = tuned / (inside or "prewarmed.json")
    assert f"{lost}: No such file or directory; mount the folder" in ran.stderr
    assert not [*open_store(f"prewarmed://{tuned}").contexts()]


CHANGES: dict[str, Callable[[Path], object]] = {
    "altered": lambda path: path.write_text("EVI"),
    "missing": lambda path: path.unlink(),
    "link": lambda path: path.symlink_to(path.rename(path.parents[3] / path.name)),
    "writable": lambda path: path.chmod(0o666),
    "foreign": lambda path: os.chown(path, 4711, 4711),
    "folder": lambda path: path.parent.chmod(0o775),
}


@pytest.mark.usefixtures("cold_cache")
@pytest.mark.parametrize("change", ["unlisted", *CHANGES])
def test_a_file_that_others_changed_is_compiled_instead(
    tuned: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    if change == "foreign" and os.getuid() != 0:
        pytest.skip("only root can give a file away")
    cubin = tuned / "binaries" / KEY / "k.cubin"
    module = tuned / "binaries" / hooks.cuda_utils_key() / hooks.CUDA_UTILS
    assert find(tuned) == (str(module), {"k.cubin": str(cubin)})
    if change == "unlisted":
        files = read_manifest(tuned).files
        kept = {name: file for name, file in files.items() if "grp" in name}
        (tuned / "prewarmed.json").write_text(manifest_of(tuned, files=kept).text)
    else:
        for path in (cubin, module):
            CHANGES[change](path)
    assert find(tuned) == (None, None)
    assert change == "unlisted" or "compiled instead" in caplog.text


@pytest.mark.usefixtures("cold_cache")
@pytest.mark.parametrize(
    "name", ["../../../evil.cubin", "/tmp/evil.cubin", "..", ".", "", "x/../k.cubin", "k.cubin\0"]
)
def test_a_group_cannot_lead_out_of_the_folder(tuned: Path, name: str) -> None:
    (tuned.parent / "evil.cubin").write_text("ELF")
    listing = tuned / "binaries" / KEY / "__grp__k.json"
    listing.write_text(json.dumps({"child_paths": {name: "k.cubin", "k.cubin": "k.cubin"}}))
    (tuned / "prewarmed.json").write_text(manifest_of(tuned).text)
    assert find(tuned)[1] is None


@pytest.mark.parametrize(
    ("inside", "mode"),
    [
        *(("", 0o777), ("..", 0o777), ("..", 0o770), ("binaries", 0o775)),
        *(("prewarmed.json", 0o664), ("prewarmed.json", None)),
        *(("", None), ("..", None), ("binaries", None)),
    ],
)
def test_a_folder_that_others_may_write_or_own_is_refused(
    tuned: Path, inside: str, mode: int | None
) -> None:
    path = Path(os.path.normpath(tuned / inside))
    assert problem_of_folder(tuned) is None
    if mode is not None:
        path.chmod(mode)
    elif os.getuid() == 0:
        os.chown(path, 4711, 4711)
    else:
        pytest.skip("only root can give a folder away")
    problem = problem_of_folder(tuned)
    assert problem is not None
    assert (f"chmod go-w {path}" if mode is not None else "chown") in problem


def test_a_refused_folder_still_serves_its_records(tuned: Path) -> None:
    tuned.chmod(0o777)
    ran = decorate_in_a_process(f"prewarmed://{tuned}")
    assert "no sealed cache" in ran.stderr
    assert f"chmod go-w {tuned}" in ran.stderr
    assert open_store(f"prewarmed://{tuned}").read_only


def test_a_link_to_the_folder_is_resolved_once(tuned: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(tuned)
    ran = decorate_in_a_process(f"PreWarmed://{tmp_path / 'current'}")
    module = tuned / "binaries" / hooks.cuda_utils_key() / hooks.CUDA_UTILS
    assert ran.stdout.strip() == str(module), ran.stderr
