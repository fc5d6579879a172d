"""Triton's version is found under whatever name it was distributed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dejavu_cache.triton_internals.environment import triton_version


@pytest.mark.parametrize("name", ["triton", "pytorch-triton-rocm", "pytorch-triton-xpu"])
def test_any_distribution_of_triton_counts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / f"{name.replace('-', '_')}-3.9.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 3.9.1\n")
    (folder / "top_level.txt").write_text("triton\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert triton_version() == "3.9.1"


def test_without_a_distribution_there_is_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert triton_version() is None
