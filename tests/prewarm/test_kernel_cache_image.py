"""Images for KServe's KernelCache and MCV, extracted by the rules that those publish."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from triton.runtime.cache import FileCacheManager

from dejavu_cache.errors import BundleError
from dejavu_cache.prewarm.bundle.oci_image import write_kernel_cache
from dejavu_cache.stores.manifest import MANIFEST, describe_file, verify_folder


def read_blob(layout: Path, descriptor: dict[str, Any]) -> bytes:
    digest = descriptor["digest"].removeprefix("sha256:")
    data: bytes = (layout / "blobs/sha256" / digest).read_bytes()
    assert (hashlib.sha256(data).hexdigest(), len(data)) == (digest, descriptor["size"])
    return data


def extract(layout: Path, cache: Path) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Extract an image as `mcv --extract` does; return its labels and its manifest's entries."""
    (descriptor,) = json.loads((layout / "index.json").read_bytes())["manifests"]
    image = json.loads(read_blob(layout, descriptor))
    layer = image["layers"][-1]
    assert layer["mediaType"] == "application/vnd.oci.image.layer.v1.tar+gzip"
    plain = gzip.decompress(read_blob(layout, layer))
    config = json.loads(read_blob(layout, image["config"]))
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(plain).hexdigest()}"]
    (layout / "layer.tar").write_bytes(plain)
    entries: list[dict[str, Any]] = []
    with tarfile.open(layout / "layer.tar") as tar:
        for member in tar:
            data = tar.extractfile(member)
            assert data is not None, "the rules know regular files and folders alone"
            if member.name == "io.triton.manifest/manifest.json":
                entries = json.loads(data.read())
            elif member.name.startswith("io.triton.cache/"):
                path = cache / member.name.removeprefix("io.triton.cache/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data.read())
    for path in cache.rglob("__grp__*.json"):
        listing = json.loads(path.read_bytes())
        for name, place in listing["child_paths"].items():
            if place.startswith(".triton/cache"):
                listing["child_paths"][name] = str(cache / place.removeprefix(".triton/cache/"))
        path.write_text(json.dumps(listing))
    return config["config"]["Labels"], entries


def test_triton_finds_every_kernel_of_an_extracted_image(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = write_kernel_cache(folder, tmp_path / "image")
    cache = tmp_path / "cache"
    labels, entries = extract(tmp_path / "image", cache)
    manifest = verify_folder(folder)
    binaries = [name for name in manifest.files if name.endswith((".cubin", ".hsaco"))]
    assert count == len(entries) == len(binaries) > 3
    assert labels["cache.triton.image/entry-count"] == str(count)
    summary = json.loads(labels["cache.triton.image/summary"])["targets"]
    named = {f"{target['backend']}:{target['arch']}" for target in summary}
    assert named == set(manifest.targets)
    assert {json.dumps(target) for target in summary} == {
        json.dumps({name: entry[name] for name in ("backend", "arch", "warp_size")})
        for entry in entries
    }
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    for name in binaries:
        _, key, file = name.split("/")
        group = FileCacheManager(key).get_group(f"{Path(file).stem}.json")
        assert group is not None
        assert Path(group[file]).read_bytes() == (folder / name).read_bytes()


def test_the_same_folder_gives_the_same_image(folder: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_kernel_cache(folder, tmp_path / name)
    first, second = ((tmp_path / name / "index.json").read_bytes() for name in ("one", "two"))
    assert first == second
    with pytest.raises(BundleError, match="is there already"):
        write_kernel_cache(folder, tmp_path / "one")


@pytest.mark.parametrize("kind", ["metadata", "group"])
@pytest.mark.parametrize(
    "content", ["[]", "{", "[" * 100_000, '{"hash": "x", "target": {"backend": []}}']
)
def test_binaries_that_triton_did_not_write_are_refused(
    kind: str, content: str, folder: Path, tmp_path: Path
) -> None:
    strange = tmp_path / "strange"
    shutil.copytree(folder, strange)
    manifest = verify_folder(strange)
    inside = next(
        name
        for name in sorted(manifest.files)
        if name.startswith("binaries/")
        and name.endswith(".json")
        and ("__grp__" in name) == (kind == "group")
    )
    (strange / inside).write_text(content)
    files = {**manifest.files, inside: describe_file(strange / inside)}
    (strange / MANIFEST).write_text(manifest.model_copy(update={"files": files}).text)
    with pytest.raises(BundleError, match="that Triton did not write"):
        write_kernel_cache(strange, tmp_path / "image")
    assert [path.name for path in tmp_path.iterdir()] == ["strange"]
