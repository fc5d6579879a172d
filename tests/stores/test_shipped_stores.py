"""Records that packages ship are found by entry points, which are read once per search path."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import pytest

from dejavu_cache.stores import FileStore, shipped_stores, urls


def install_package(site: Path, name: str) -> None:
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{urls.SHIPPED}]\n{name} = {name}.records\n")
    (site / name / "records").mkdir(parents=True)
    # A launch must not import what else a package has, such as all of its kernels.
    (site / name / "__init__.py").write_text("raise RuntimeError('the package is imported')")


def test_packages_are_searched_once_and_again_when_the_path_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[dict[str, Any]] = []
    search = importlib.metadata.entry_points

    def count(**selection: Any) -> Any:
        searches.append(selection)
        return search(**selection)

    monkeypatch.setattr(urls, "entry_points", count)
    for number, name in enumerate(("first_shipping", "second_shipping"), 1):
        install_package(tmp_path / name, name)
        monkeypatch.setattr(sys, "path", [str(tmp_path / name), *sys.path])
        for _ in range(3):
            stores = [store for store in shipped_stores() if isinstance(store, FileStore)]
            assert tmp_path / name / name / "records" in [store.root for store in stores]
        assert len(searches) == number
