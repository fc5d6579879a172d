"""Bundles: the same bytes, and every other byte refused."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import zstandard
from support.processes import dejavu, environment

from dejavu_cache.errors import BundleError
from dejavu_cache.prewarm.bundle import archive
from dejavu_cache.prewarm.bundle.compatibility import compatibility_checks, read_any
from dejavu_cache.prewarm.bundle.oci_image import bundle_in, write_layout
from dejavu_cache.prewarm.new_folder import new_folder
from dejavu_cache.stores.manifest import MANIFEST, SCHEMA, Manifest, verify_folder


@pytest.fixture(scope="session")
def bundle(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("bundle") / "tuned.tar.zst"
    archive.create(folder, file)
    return file


def test_the_same_folder_elsewhere_gives_the_same_bytes(
    folder: Path, bundle: Path, tmp_path: Path
) -> None:
    """Whenever it was made, by whom, and whatever it is called."""
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    for path in other.rglob("*"):
        os.utime(path, (0, 0))
        path.chmod(0o700)
    archive.create(other, tmp_path / "again.tar.zst")
    assert (tmp_path / "again.tar.zst").read_bytes() == bundle.read_bytes()


def test_what_goes_in_comes_out(folder: Path, bundle: Path, tmp_path: Path) -> None:
    """By the commands."""
    assert dejavu("bundle", "extract", bundle, tmp_path / "out").returncode == 0
    assert verify_folder(tmp_path / "out") == verify_folder(folder)
    inspected = dejavu("bundle", "inspect", bundle)
    assert inspected.returncode == 0
    for word in (
        "NVIDIA H200",
        "sm_90, 132 units, 140 GiB",
        "sm_100",
        "products.add_one",
        verify_folder(folder).digest,
    ):
        assert word in inspected.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_flipped_bit_is_refused_wherever_it_is(bundle: Path, tmp_path: Path) -> None:
    """Also in the parts that a decompressor would not mind."""
    data, file = bundle.read_bytes(), tmp_path / "flipped"
    places = [*range(40), *range(40, len(data) - 48, 997), *range(len(data) - 48, len(data))]
    for position in places:
        file.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(BundleError):
            archive.extract(file, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["flipped"]


@pytest.mark.parametrize("left", [0, 1, 39, 5000, -1, -40, -41])
def test_a_cut_bundle_is_refused(bundle: Path, tmp_path: Path, left: int) -> None:
    """Wherever it was cut; nothing is left of it."""
    (tmp_path / "cut").write_bytes(bundle.read_bytes()[:left])
    with pytest.raises(BundleError, match=r"cut|altered|no bundle"):
        archive.extract(tmp_path / "cut", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["cut"]


def write_sealed_bundle(path: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> Path:
    """Write a bundle of any entries with a valid seal, as an attacker could."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for entry, data in entries:
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    body = zstandard.compress(plain.getvalue())
    seal = archive._SEAL.pack(archive._SKIPPED, 32, hashlib.sha256(body).digest())
    path.write_bytes(body + seal)
    return path


def manifest_of(folder: Path, **changes: object) -> bytes:
    return json.dumps({**json.loads((folder / MANIFEST).read_text()), **changes}).encode()


def entry(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "/etc/passwd"
    return info


@pytest.mark.parametrize(
    "evil",
    [
        entry("../outside"),
        entry("/tmp/outside"),
        entry("records/../../outside"),
        entry("./records/x"),
        entry("link", tarfile.SYMTYPE),
        entry("link", tarfile.LNKTYPE),
        entry("pipe", tarfile.FIFOTYPE),
        entry("not-in-the-manifest"),
        entry(MANIFEST),
    ],
    ids=lambda entry: f"{entry.name} {entry.type.decode()}",
)
def test_what_reaches_outside_is_refused(
    folder: Path, tmp_path: Path, evil: tarfile.TarInfo
) -> None:
    """Whatever its manifest says of it."""
    said = {evil.name: {"size": 4, "sha256": hashlib.sha256(b"evil").hexdigest()}}
    files = {} if evil.name == "not-in-the-manifest" else said
    data = b"" if evil.type != tarfile.REGTYPE else b"evil"
    file = write_sealed_bundle(
        tmp_path / "bundle", (entry(MANIFEST), manifest_of(folder, files=files)), (evil, data)
    )
    with pytest.raises(BundleError):
        archive.extract(file, tmp_path / "deep" / "out")
    assert not (tmp_path / "deep" / "out").exists()
    assert {path.name for path in tmp_path.rglob("*")} == {"bundle", "deep"}


def test_a_newer_one_and_other_files_are_refused(folder: Path, tmp_path: Path) -> None:
    """Messages about a newer format name the remedy."""
    newer = write_sealed_bundle(
        tmp_path / "newer",
        (entry(MANIFEST), manifest_of(folder, schema_version=SCHEMA + 1, more={})),
    )
    with pytest.raises(BundleError, match=f"schema version {SCHEMA + 1}.*upgrade dejavu-cache"):
        archive.read_bundle(newer)
    missing = write_sealed_bundle(tmp_path / "missing", (entry(MANIFEST), manifest_of(folder)))
    with pytest.raises(BundleError, match="is missing"):
        archive.read_bundle(missing)
    (tmp_path / "text").write_text("no bundle" * 100)
    refused = dejavu("bundle", "verify", tmp_path / "text")
    assert refused.returncode == 3
    assert "no bundle" in refused.stderr


def test_a_folder_that_was_changed_is_not_packed(folder: Path, tmp_path: Path) -> None:
    """Altered, with something more, with something less."""
    for change in (
        lambda path: path.write_bytes(path.read_bytes()[::-1]),
        lambda path: path.with_name("more").write_text("more"),
        lambda path: path.unlink(),
    ):
        other = tmp_path / "other"
        shutil.copytree(folder, other)
        change(next(other.rglob("*.cubin")))
        with pytest.raises(BundleError, match=r"altered|not in the manifest|missing"):
            archive.create(other, tmp_path / "bundle")
        shutil.rmtree(other)
    assert not list(tmp_path.iterdir())


def test_a_file_that_changes_while_it_is_packed_is_an_error(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing = tmp_path / "changing"
    shutil.copytree(folder, changing)

    def verify_then_change(verified: Path) -> Manifest:
        manifest = verify_folder(verified)
        binary = next(verified.rglob("*.cubin"))
        binary.write_bytes(binary.read_bytes()[::-1])
        return manifest

    monkeypatch.setattr(archive, "verify_folder", verify_then_change)
    with pytest.raises(BundleError, match="was changed while it was packed"):
        archive.create(changing, tmp_path / "bundle")
    assert [path.name for path in tmp_path.iterdir()] == ["changing"]


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "root"])
def test_a_bundle_replaces_files_alone(kind: str, folder: Path, tmp_path: Path) -> None:
    """A device such as /dev/stdout, which root may replace, stays what it is."""
    target = tmp_path / "target" if kind != "root" else Path("/")
    if kind == "pipe":
        os.mkfifo(target)
    elif kind == "link":
        target.symlink_to("elsewhere")
    elif kind == "folder":
        target.mkdir()
    before = target.lstat()
    with pytest.raises(BundleError, match="is no file"):
        archive.create(folder, target)
    assert os.path.samestat(target.lstat(), before)
    assert {path.name for path in tmp_path.iterdir()} <= {"target"}


def test_a_folder_is_unpacked_where_a_link_leads(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("elsewhere")
    archive.extract(bundle, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert verify_folder(tmp_path / "elsewhere")
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(BundleError, match="cannot be written"):
        archive.extract(bundle, tmp_path / "circle" / "out")


def test_a_mount_point_is_refused(bundle: Path, tmp_path: Path) -> None:
    """Nothing can take its place, which would be known only once all was unpacked."""
    command = f"mount -t tmpfs none {tmp_path} && exec {sys.executable} -m dejavu_client "
    isolated = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    able = shutil.which("unshare")
    if not able or subprocess.run([*isolated, f"{command} --version"], check=False).returncode:
        pytest.skip("this user may not mount anything")
    seen = subprocess.run(
        [*isolated, f"{command} bundle extract {bundle} {tmp_path}"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (seen.returncode, f"as in {tmp_path}/now" in seen.stderr) == (3, True), seen.stderr


def test_a_manifest_that_names_no_compiler_is_shown(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "other")
    (tmp_path / "other" / MANIFEST).write_bytes(manifest_of(folder, codegen={}))
    seen = dejavu("bundle", "inspect", tmp_path / "other")
    assert (seen.returncode, "compiler unknown" in seen.stdout) == (0, True), seen.stderr


def test_the_machine_is_looked_at_field_by_field(folder: Path) -> None:
    """Another Triton, another Python, no GPU: each is named, before anything is loaded."""
    manifest = verify_folder(folder)
    assert {field.name: field.state for field in compatibility_checks(manifest, device=False)} == {
        "platform": "ok",
        "python": "ok",
        "triton": "ok",
        "wheel": "ok",
    }
    other = manifest.model_copy(update={"triton": "3.3.1", "abi": ".cpython-39.so"})
    wrong = [
        field.name for field in compatibility_checks(other, device=False) if field.state != "ok"
    ]
    assert wrong == ["python", "triton"]
    assert dejavu("bundle", "verify", "--no-device", folder).returncode == 0


def test_an_image_layout_is_what_registries_take(
    folder: Path, bundle: Path, tmp_path: Path
) -> None:
    """Every blob is where its digest says; its layer is the bundle; two of them are the same."""
    layout = tmp_path / "image"
    write_layout(folder, layout)
    assert json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    for blob in (layout / "blobs" / "sha256").iterdir():
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    assert bundle_in(layout)[0].read_bytes() == bundle.read_bytes()
    config = json.loads(
        next(
            b for b in layout.rglob("*") if b.is_file() and b"diff_ids" in b.read_bytes()
        ).read_text()
    )
    plain = zstandard.ZstdDecompressor().stream_reader(bundle.read_bytes()).read()
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(plain).hexdigest()}"]
    assert read_any(layout) == verify_folder(folder)
    write_layout(folder, tmp_path / "again")
    names = [
        sorted(str(path.relative_to(image)) for path in image.rglob("*"))
        for image in (layout, tmp_path / "again")
    ]
    assert names[0] == names[1]


def test_what_a_killed_extraction_left_is_removed_by_the_next(bundle: Path, tmp_path: Path) -> None:
    abandoned, other = (tmp_path / name for name in (".out.making", ".outer.making"))
    for folder in (abandoned, other):
        (folder / "binaries").mkdir(parents=True)
    archive.extract(bundle, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"out", other.name}


def test_two_extractions_at_once_do_not_meet(bundle: Path, tmp_path: Path) -> None:
    with (
        new_folder(tmp_path / "out"),
        pytest.raises(BundleError, match="another process is making"),
    ):
        archive.extract(bundle, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
