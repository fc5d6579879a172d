"""A hostile bundle is refused, leaves nothing behind and takes the machine down with nothing."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("zstandard")

import zstandard

from dejavu_cache.errors import BundleError
from dejavu_cache.prewarm.bundle.archive import _SEAL, _SKIPPED, extract, read_bundle
from dejavu_cache.prewarm.bundle.compatibility import read_any
from dejavu_cache.prewarm.bundle.oci_image import bundle_in
from dejavu_cache.stores.manifest import File, Manifest

CONTENT = b"evil"

Entry = tuple[tarfile.TarInfo, bytes | None]


def manifest(files: dict[str, File]) -> bytes:
    made = Manifest(
        made_by="x",
        triton="3.6.0",
        wheel="w",
        abi="a",
        platform="p",
        host_key="h",
        devices=(),
        targets=(),
        codegen={},
        kernels=(),
        files=files,
    )
    return made.text.encode()


def described(content: bytes) -> File:
    return File(size=len(content), sha256=hashlib.sha256(content).hexdigest())


def regular(name: str, content: bytes) -> Entry:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    return entry, content


def special(name: str, kind: bytes, target: str = "") -> Entry:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry, None


def seal(tar: bytes, path: Path) -> Path:
    body = zstandard.ZstdCompressor().compress(tar)
    path.write_bytes(body + _SEAL.pack(_SKIPPED, 32, hashlib.sha256(body).digest()))
    return path


def bundle(path: Path, entries: Iterable[Entry]) -> Path:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry, content in entries:
            tar.addfile(entry, None if content is None else io.BytesIO(content))
    return seal(buffer.getvalue(), path)


def assert_refused(file: Path, match: str | None = None) -> None:
    """Refuse to read and to extract a bundle, and leave nothing behind."""
    folder = file.parent
    before = set(folder.rglob("*"))
    with pytest.raises(BundleError, match=match):
        read_bundle(file)
    with pytest.raises(BundleError, match=match):
        extract(file, folder / "out")
    assert set(folder.rglob("*")) == before


NAMES = [
    "../slip",
    "/tmp/absolute",
    "records/../../slip",
    "./records/dot",
    "records//empty",
    "records/..",
    "records/.",
    "records\\..\\x",
    ".",
    "",
    "records/a\x00b",
    "records/a\nb",
    "records/\x1b[31m",
    "records/\udcff",
    "prewarmed.json",
    "sitecustomize.py",
    "usercustomize.pth",
    "records",
    "records/" + "x" * 300,
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_that_leads_elsewhere(name: str, tmp_path: Path) -> None:
    entry = regular(name, CONTENT)
    folder = tmp_path / "inner"
    folder.mkdir()
    try:
        text = manifest({name: described(CONTENT)})
    except UnicodeEncodeError:
        text = manifest({})
    file = bundle(folder / "b.tar.zst", [regular("prewarmed.json", text), entry])
    if len(name) < 255:
        assert_refused(file)
    else:  # the file system refuses it
        with pytest.raises(BundleError, match="cannot be written"):
            extract(file, folder / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]
    assert [path.name for path in folder.iterdir()] == ["b.tar.zst"]


@pytest.mark.parametrize(
    "entry",
    [
        special("records/link", tarfile.SYMTYPE, "/etc/passwd"),
        special("records", tarfile.SYMTYPE, "/tmp"),
        special("records/link", tarfile.LNKTYPE, "prewarmed.json"),
        special("records/device", tarfile.CHRTYPE),
        special("records/disk", tarfile.BLKTYPE),
        special("records/pipe", tarfile.FIFOTYPE),
        special("records/folder", tarfile.DIRTYPE),
        special("records/odd", b"Z"),
    ],
    ids=lambda entry: entry[0].name,
)
def test_what_is_no_regular_file(entry: Entry, tmp_path: Path) -> None:
    listed = {entry[0].name: described(b"")}
    for files in ({}, listed):
        head = regular("prewarmed.json", manifest(files))
        assert_refused(bundle(tmp_path / "b.tar.zst", [head, entry]))


def test_a_file_where_a_folder_is_needed(tmp_path: Path) -> None:
    names = ["records/a", "records/a/b"]
    head = regular("prewarmed.json", manifest({name: described(CONTENT) for name in names}))
    file = bundle(tmp_path / "b.tar.zst", [head, *(regular(name, CONTENT) for name in names)])
    with pytest.raises(BundleError, match="cannot be written"):
        extract(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_what_the_manifest_says(tmp_path: Path) -> None:
    head = regular("prewarmed.json", manifest({"records/a": described(b"good")}))
    assert_refused(bundle(tmp_path / "b", [head, regular("records/a", b"evil")]), "altered")
    assert_refused(bundle(tmp_path / "b", [head, regular("records/a", b"long evil")]), "not what")
    assert_refused(bundle(tmp_path / "b", [head]), "missing")
    assert_refused(bundle(tmp_path / "b", [head, regular("records/b", b"evil")]), "not what")
    assert_refused(bundle(tmp_path / "b", [regular("records/a", b"good"), head]), "begin")
    twice = [head, regular("records/a", b"good"), regular("records/a", b"good")]
    assert_refused(bundle(tmp_path / "b", twice), "no bundle has")


def test_a_bomb_is_refused_before_it_expands(tmp_path: Path) -> None:
    """Of 1 TiB of zeros in the manifest, not one is decompressed."""
    size = 1 << 40
    text = manifest({"binaries/zeros": File(size=size, sha256="0" * 64)})
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        entry, content = regular("prewarmed.json", text)
        tar.addfile(entry, io.BytesIO(content or b""))
        entry = tarfile.TarInfo("binaries/zeros")
        entry.size = size
        buffer.write(entry.tobuf(tarfile.PAX_FORMAT))
        buffer.write(bytes(1 << 20))
    assert_refused(seal(buffer.getvalue(), tmp_path / "bomb"), "would expand")


def test_a_bomb_of_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dejavu_cache.prewarm.bundle import archive

    monkeypatch.setattr(archive, "MAX_FILES", 3)
    files = {f"records/{number}": described(b"") for number in range(4)}
    head = regular("prewarmed.json", manifest(files))
    entries = [head, *(regular(name, b"") for name in files)]
    assert_refused(bundle(tmp_path / "many", entries), "would expand to 4 files")


@pytest.mark.parametrize("kind", ["manifest", "header", "sparse"])
def test_what_is_read_into_memory_is_limited(kind: str, tmp_path: Path) -> None:
    """Neither a manifest, nor a name, nor the holes of a sparse file."""
    size = 256 << 20
    buffer = io.BytesIO()
    if kind == "manifest":
        entry = tarfile.TarInfo("prewarmed.json")
        entry.size = size
        buffer.write(entry.tobuf(tarfile.PAX_FORMAT) + bytes(size))
    elif kind == "header":
        entry = tarfile.TarInfo("././@PaxHeader")
        entry.type, entry.size = tarfile.XHDTYPE, size
        buffer.write(entry.tobuf(tarfile.USTAR_FORMAT) + b"1" * size)
    else:
        name = "records/sparse"
        text = manifest(
            {name: File(size=1 << 20, sha256=hashlib.sha256(bytes(1 << 20)).hexdigest())}
        )
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
            entry, content = regular("prewarmed.json", text)
            tar.addfile(entry, io.BytesIO(content or b""))
            entry = tarfile.TarInfo(name)
            entry.pax_headers = {
                "GNU.sparse.major": "0",
                "GNU.sparse.minor": "1",
                "GNU.sparse.name": name,
                "GNU.sparse.size": str(1 << 20),
                "GNU.sparse.map": f"{1 << 20},0",
            }
            tar.addfile(entry)
    file = seal(buffer.getvalue(), tmp_path / "b.tar.zst")
    buffer.close()
    tracemalloc.start()
    assert_refused(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < size / 2


def header(kind: bytes, content: bytes = b"") -> bytes:
    """Return a header of a tar, with content that is not a file's."""
    entry = tarfile.TarInfo("records/a")
    entry.type, entry.size = kind, len(content)
    return entry.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)


def pax(key: str, value: str) -> bytes:
    length = len(f" {key}={value}\n") + 2
    return header(tarfile.XHDTYPE, f"{length} {key}={value}\n".encode())


def sparse(blocks: int) -> bytes:
    """Return an old GNU header of a sparse file whose list of holes goes on in more blocks."""
    hole = b"00000000001\0" * 2
    head = bytearray(header(tarfile.GNUTYPE_SPARSE))
    head[386 : 386 + 4 * len(hole)], head[482] = hole * 4, 1
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + (hole * 21 + b"\1" + bytes(7)) * blocks


HEADERS = {
    "names within names": pax("comment", "x") * 3000,
    "global headers": header(tarfile.XGLTYPE, b"13 comment=x\n") * 3000,
    "long names": header(tarfile.GNUTYPE_LONGNAME, b"records/a\0") * 3000,
    "holes": sparse(100_000),
    "holes that are no numbers": pax("GNU.sparse.map", "1,x"),
    "a size that is no number": pax("GNU.sparse.realsize", "x"),
    "holes in the file": pax("GNU.sparse.major", "1") + pax("GNU.sparse.minor", "0"),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_a_header_that_no_bundle_has(kind: str, tmp_path: Path) -> None:
    """It is an error in a line, whatever `tarfile` would make of it, and takes no memory."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        head, text = regular("prewarmed.json", manifest({"records/a": described(CONTENT)}))
        tar.addfile(head, io.BytesIO(text or b""))
        end = tar.offset
    tail = header(tarfile.REGTYPE, CONTENT) + bytes(1024)
    file = seal(buffer.getvalue()[:end] + HEADERS[kind] + tail, tmp_path / "b.tar.zst")
    tracemalloc.start()
    assert_refused(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20


def test_a_long_name_is_no_reason_to_refuse_a_bundle(tmp_path: Path) -> None:
    name = f"records/{'long/' * 40}\N{SNOWMAN}"
    head = regular("prewarmed.json", manifest({name: described(CONTENT)}))
    file = bundle(tmp_path / "b.tar.zst", [head, regular(name, CONTENT)])
    extract(file, tmp_path / "out")
    assert (tmp_path / "out" / name).read_bytes() == CONTENT


def test_a_pipe_is_no_bundle(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert_refused(tmp_path / "pipe", "no file")


def layout(folder: Path, layer: bytes, **changed: object) -> Path:
    """Write an image layout by hand."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    image = blob(json.dumps({"layers": [{**blob(layer), **changed}]}).encode())
    (folder / "index.json").write_text(json.dumps({"manifests": [image]}))
    (folder / "oci-layout").write_text("{}")
    return folder


@pytest.mark.parametrize(
    "digest",
    ["sha256:../../../victim", "sha256:" + "0" * 64, "md5:" + "0" * 32, "/etc/passwd", "", 7, None],
)
def test_an_image_cannot_name_another_file(digest: object, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("x")
    made = layout(tmp_path / "image", b"layer", digest=digest)
    with pytest.raises(BundleError):
        read_any(made)


def test_an_image_with_links_pipes_or_nesting_is_refused(tmp_path: Path) -> None:
    made = layout(tmp_path / "image", b"layer")
    blob, _ = bundle_in(made)
    blob.unlink()
    blob.symlink_to(bundle(tmp_path / "other", [regular("prewarmed.json", manifest({}))]))
    with pytest.raises(BundleError, match="its digest is not its name"):
        read_any(made)
    (made / "index.json").unlink()
    os.mkfifo(made / "index.json")
    with pytest.raises(BundleError):
        bundle_in(made)
    (made / "index.json").unlink()
    (made / "index.json").write_text("[" * 100_000)
    with pytest.raises(BundleError):
        bundle_in(made)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("image", [False, True])
def test_a_bundle_that_is_exchanged_after_its_check(
    image: bool, in_place: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is unpacked was checked: it is never a bundle, however good, that came in between."""
    files = {name: {f"records/{name}": described(CONTENT)} for name in ("good", "late")}
    good, late = (
        bundle(
            tmp_path / name,
            [regular("prewarmed.json", manifest(files[name])), regular(f"records/{name}", CONTENT)],
        )
        for name in files
    )
    assert late.stat().st_size == good.stat().st_size  # else it would only look cut
    place = good
    if image:
        place, _ = bundle_in(layout(tmp_path / "image", good.read_bytes()))
    decompressor = zstandard.ZstdDecompressor

    def exchange(**options: Any) -> zstandard.ZstdDecompressor:
        if in_place:
            place.write_bytes(late.read_bytes())
        else:
            os.replace(late, place)
        return decompressor(**options)

    monkeypatch.setattr(zstandard, "ZstdDecompressor", exchange)
    out = tmp_path / "out"
    try:
        blob = bundle_in(tmp_path / "image")[1] if image else None
        extract(place, out, blob)
    except BundleError:
        assert in_place
        assert not out.exists()
    else:
        assert [file.name for file in (out / "records").iterdir()] == ["good"]
