"""What is made once for all workers of pytest-xdist, and only read by them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a path in the run's temporary folder, which the first worker that asks makes."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    path, mark = folder / name, folder / f"{name}.made"
    with FileLock(folder / f"{name}.lock"):
        if not mark.exists():
            make(path)
            mark.touch()
    return path
