"""Write and read prewarmed folders as OCI image layouts.

Registries, cosign, image volumes and `COPY --from` take an image whose only layer is the bundle,
byte for byte.

KServe's KernelCache and MCV take one of the binaries alone. Both extract `io.triton.cache/` of an
image's last layer into Triton's cache folder, and compare the image's labels and
`io.triton.manifest/manifest.json` with a node's GPUs before and after that.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from ...errors import BundleError
from ...stores.manifest import BINARIES, Manifest, verify_folder
from ...system.safe_files import read_file
from ..new_folder import new_folder
from .archive import Digests, HashingWriter, add_file, write

__all__ = ["bundle_in", "write_kernel_cache", "write_layout"]

_TYPES = "application/vnd.oci.image"
_DIGEST = re.compile("[0-9a-f]{64}")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_layout(folder: Path, out: Path) -> Manifest:
    """Write a prewarmed folder as an image layout to a new folder.

    Raises:
        BundleError: the folder differs from its manifest, or the new one exists or cannot be
            written.
    """
    manifest = verify_folder(folder)
    labels = _labels(manifest)
    write_layer = partial(write, folder, manifest)
    _write_image(out, manifest, "tar+zstd", write_layer, labels=labels, annotations=labels)
    return manifest


def _write_image(
    out: Path,
    manifest: Manifest,
    layer_type: str,
    write_layer: Callable[[IO[bytes]], Digests],
    *,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
) -> None:
    """Write an image with one layer as an image layout to a new folder.

    Args:
        out: the new folder.
        manifest: the manifest of the prewarmed folder.
        layer_type: the end of the layer's media type, such as `tar+zstd`.
        write_layer: writes the layer to a file, and returns its digests.
        labels: the labels of the image's configuration.
        annotations: the annotations of the image's manifest.

    Raises:
        BundleError: the new folder exists or cannot be written.
    """
    with new_folder(out) as work:
        blobs = work / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        with (blobs / "layer").open("wb") as raw:
            digests = write_layer(raw)
        (blobs / "layer").rename(blobs / digests.blob)
        config = {
            "architecture": _ARCHITECTURES.get(manifest.platform.rpartition("-")[2], "amd64"),
            "os": "linux",
            "config": {"Labels": labels},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digests.tar}"]},
        }
        layer = {
            "mediaType": f"{_TYPES}.layer.v1.{layer_type}",
            "digest": f"sha256:{digests.blob}",
            "size": digests.size,
        }
        image = {
            "schemaVersion": 2,
            "mediaType": f"{_TYPES}.manifest.v1+json",
            "config": _blob(blobs, config, f"{_TYPES}.config.v1+json"),
            "layers": [layer],
            "annotations": annotations,
        }
        manifests = [_blob(blobs, image, f"{_TYPES}.manifest.v1+json")]
        (work / "index.json").write_bytes(_json({"schemaVersion": 2, "manifests": manifests}))
        (work / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))


def _labels(manifest: Manifest) -> dict[str, str]:
    return {
        "org.opencontainers.image.title": "prewarmed Triton kernels",
        "dejavu-cache.digest": manifest.digest,
        "dejavu-cache.devices": ", ".join(device.name for device in manifest.devices),
        "dejavu-cache.triton": manifest.wheel,
    }


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _blob(blobs: Path, value: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Write a JSON blob under its digest, and return its descriptor."""
    data = _json(value)
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}


def bundle_in(layout: Path) -> tuple[Path, str]:
    """Return the path of the bundle in an image layout that `write_layout` wrote, and its digest.

    Whoever reads the bundle compares the digest, since the file may be exchanged until then.

    Raises:
        BundleError: the layout is of another image, or damaged.
    """
    try:
        (image,) = json.loads(read_file(layout / "index.json", layout))["manifests"]
        path, digest = _blob_of(layout, image)
        content = read_file(path, layout)
        if hashlib.sha256(content).hexdigest() != digest:
            raise BundleError(f"{path} was altered: its digest is not its name")
        (layer,) = json.loads(content)["layers"]
        return _blob_of(layout, layer)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BundleError(f"{layout} is no image of a prewarmed folder: {error}") from None


def _blob_of(layout: Path, descriptor: Mapping[str, Any]) -> tuple[Path, str]:
    """Return the path and the digest of a descriptor's blob."""
    kind, _, digest = str(descriptor["digest"]).partition(":")
    if kind != "sha256" or not _DIGEST.fullmatch(digest):
        raise BundleError(f"{layout} names a blob by no SHA-256: {descriptor['digest']!r}")
    return layout / "blobs" / kind / digest, digest


_CACHE, _MANIFEST = "io.triton.cache", "io.triton.manifest/manifest.json"
_LABEL = "cache.triton.image"
_PLACE = ".triton/cache"
"""Beginning of a group's paths, which the extracting side replaces by its cache folder."""


def write_kernel_cache(folder: Path, out: Path) -> int:
    """Write the binaries of a prewarmed folder as an image layout to a new folder.

    Returns:
        The number of compiled kernels.

    Raises:
        BundleError: the folder differs from its manifest or has no binaries, or the new one exists
            or cannot be written.
    """
    manifest = verify_folder(folder)
    prefix = f"{BINARIES}/"
    files = {
        name.removeprefix(prefix): folder / name
        for name in sorted(manifest.files)
        if name.startswith(prefix)
    }
    try:
        return _write_binaries(folder, manifest, files, out)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BundleError(
            f"{folder} has binaries that Triton did not write "
            f"({type(error).__name__}: {error}): make the folder again"
        ) from None


def _write_binaries(folder: Path, manifest: Manifest, files: dict[str, Path], out: Path) -> int:
    entries = list(_entries(files))
    if not entries:
        raise BundleError(
            f"{folder} has no compiled kernels: run dejavu-cache prewarm for a device"
        )
    summary = {(entry["backend"], entry["arch"], entry["warp_size"]) for entry in entries}
    targets = [
        {"backend": backend, "arch": arch, "warp_size": warp}
        for backend, arch, warp in sorted(summary)
    ]
    labels = {
        "org.opencontainers.image.title": "compiled Triton kernels",
        f"{_LABEL}/entry-count": str(len(entries)),
        f"{_LABEL}/cache-size-bytes": str(sum(path.stat().st_size for path in files.values())),
        f"{_LABEL}/summary": json.dumps({"targets": targets}, separators=(",", ":")),
    }

    write_layer = partial(_write_layer, files, entries)
    annotations = {f"{_LABEL}/variant": "compat"}
    _write_image(out, manifest, "tar+gzip", write_layer, labels=labels, annotations=annotations)
    return len(entries)


def _entries(files: dict[str, Path]) -> Iterator[dict[str, Any]]:
    """Yield what the manifest says of each compiled kernel, from Triton's own metadata."""
    for name, path in files.items():
        if not name.endswith(".json") or "/__grp__" in name:
            continue
        metadata = json.loads(path.read_bytes())
        target = metadata.get("target")
        if not metadata.get("hash") or not isinstance(target, dict):
            continue
        entry = {
            "hash": metadata["hash"],
            "backend": target["backend"],
            "arch": str(target["arch"]),
            "warp_size": target["warp_size"],
            "num_stages": metadata.get("num_stages", 0),
            "num_warps": metadata.get("num_warps", 0),
            "debug": bool(metadata.get("debug", False)),
        }
        if metadata.get("ptx_version"):
            entry["ptx_version"] = metadata["ptx_version"]
        yield entry


def _write_layer(files: dict[str, Path], entries: list[dict[str, Any]], raw: IO[bytes]) -> Digests:
    packed: Any = HashingWriter(raw)
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as inner:
        plain: Any = HashingWriter(inner)
        with tarfile.open(fileobj=plain, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for name, path in files.items():
                data = path.read_bytes()
                if "/__grp__" in name:
                    data = _with_places(data, name.rpartition("/")[0])
                add_file(tar, f"{_CACHE}/{name}", io.BytesIO(data), len(data))
            text = json.dumps(entries, indent=2).encode()
            add_file(tar, _MANIFEST, io.BytesIO(text), len(text))
    return Digests(packed.hash.hexdigest(), plain.hash.hexdigest(), packed.size)


def _with_places(listing: bytes, key: str) -> bytes:
    """Return a group's listing with paths that the extracting side makes absolute."""
    names = json.loads(listing)["child_paths"]
    return json.dumps({"child_paths": {name: f"{_PLACE}/{key}/{name}" for name in names}}).encode()
