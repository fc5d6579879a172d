"""Write the binaries of prewarmed folders as images for KServe's KernelCache and MCV.

Both extract `io.triton.cache/` of an image's last layer into Triton's cache folder, and compare the
image's labels and `io.triton.manifest/manifest.json` with a node's GPUs before and after that.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ...errors import BundleError
from ...stores.manifest import BINARIES, Manifest, verify_folder
from .archive import Digests, HashingWriter, add_file
from .oci_image import ImageContent, write_image

__all__ = ["write_kernel_cache"]

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
        return _write_image(folder, manifest, files, out)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BundleError(
            f"{folder} has binaries that Triton did not write "
            f"({type(error).__name__}: {error}): make the folder again"
        ) from None


def _write_image(folder: Path, manifest: Manifest, files: dict[str, Path], out: Path) -> int:
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

    def write_layer(raw: IO[bytes]) -> Digests:
        return _write_layer(files, entries, raw)

    annotations = {f"{_LABEL}/variant": "compat"}
    write_image(out, manifest, ImageContent("tar+gzip", write_layer, labels, annotations))
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
