"""Records that packages ship are found by entry points."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dejavu_cache.stores import FileStore, shipped_stores, tiered


def install_package(site: Path, name: str) -> None:
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{tiered.SHIPPED}]\n{name} = {name}.records\n")
    (site / name / "records").mkdir(parents=True)
    # A launch must not import what else a package has, such as all of its kernels.
    (site / name / "__init__.py").write_text("raise RuntimeError('the package is imported')")


def test_a_packages_records_are_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_package(tmp_path, "shipping")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    shipped_stores.cache_clear()
    stores = [store for store in shipped_stores() if isinstance(store, FileStore)]
    shipped_stores.cache_clear()
    assert tmp_path / "shipping" / "records" in [store.root for store in stores]
