"""A fresh suite and store for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sweeping import Sweeps


@pytest.fixture
def sweeps(tmp_path: Path) -> Sweeps:
    return Sweeps(tmp_path)
