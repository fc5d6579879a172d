"""The result of a prewarming, and the cache of the last one."""

from __future__ import annotations

import hashlib
import json
import os
import sysconfig
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from .. import __version__
from ..errors import DejavuError
from ..stores.manifest import Manifest, read_manifest, verify_folder
from ..system.safe_files import replace_file
from ..system.user_folder import user_folder
from ..triton_internals.distribution import triton_version
from .messages import BuildPlan, PrewarmSpec
from .record_source import all_records, own_records

__all__ = ["PrewarmResult", "ResultCache"]

_KEYS = "callees first"
"""How binaries get their keys; a folder whose binaries have other keys is made again."""


class PrewarmResult(NamedTuple):
    """The result of a prewarming.

    Attributes:
        compiled: number of kernels that were compiled; 0 if nothing had changed.
        notes: remarks for the user, one sentence each.
        repaired: whether something of the earlier folder was not what its manifest says.
    """

    manifest: Manifest
    compiled: int
    notes: tuple[str, ...]
    repaired: bool = False


class ResultCache:
    """Inputs and result of the last prewarming of a folder, kept in the user's cache folder.

    A prewarming with the same inputs then returns at once.
    """

    def __init__(self, out: Path, spec: PrewarmSpec) -> None:
        """Name the file; nothing is read yet.

        Args:
            out: the prewarmed folder.
            spec: the options of the prewarming.
        """
        name = hashlib.sha256(str(out).encode()).hexdigest()[:24]
        self._path = user_folder("prewarm") / f"{name}.json"
        self._out = out
        self._spec = spec

    def load(self) -> PrewarmResult | None:
        """Return the last result, or None if the inputs or any file of the folder have changed."""
        try:
            saved = json.loads(self._path.read_text(encoding="utf-8"))
            manifest = read_manifest(self._out)
            is_unchanged = (
                saved["manifest"] == manifest.digest
                and saved["from"] == self._inputs(saved["files"], saved["kernels"])
                and verify_folder(self._out) == manifest
            )
            return PrewarmResult(manifest, 0, tuple(saved["notes"])) if is_unchanged else None
        except (OSError, ValueError, KeyError, TypeError, DejavuError):
            return None

    def save(self, result: PrewarmResult, plan: BuildPlan) -> None:
        """Save a result with the inputs that it depends on."""
        kernels = sorted({context.kernel.name for context in plan.contexts})
        content = {
            "manifest": result.manifest.digest,
            "files": plan.files,
            "kernels": kernels,
            "notes": result.notes,
            "from": self._inputs(plan.files, kernels),
        }
        with suppress(OSError):
            replace_file(self._path, json.dumps(content).encode())

    def _inputs(self, files: Iterable[str], kernels: Sequence[str]) -> dict[str, Any]:
        """Return everything that a prewarming's result depends on."""
        records = hashlib.sha256()
        with own_records(self._spec.store) as own:
            store = all_records(own)
            for kernel in kernels:
                for record_set in store.record_sets(kernel):
                    records.update(record_set.model_dump_json().encode())
                for tree, _ in store.trees(kernel):
                    records.update(tree.text.encode())
        stamps = {}
        for file in files:
            stat = Path(file).stat()
            stamps[file] = [stat.st_mtime_ns, stat.st_size]
        return {
            "keys": _KEYS,
            "spec": self._spec.model_dump(mode="json"),
            "records": records.hexdigest(),
            "files": stamps,
            "triton": [triton_version(), sysconfig.get_config_var("EXT_SUFFIX"), __version__],
            "variables": {
                name: value
                for name, value in sorted(os.environ.items())
                if name.startswith("TRITON_")
            },
        }
