"""A GPU's memory is shared by all workers: a test that fills it runs alone."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def share_memory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Wait for a test that fills the memory; such a test waits for all others."""
    folder = Path(tmp_path_factory.getbasetemp().parent)
    kind = fcntl.LOCK_EX if request.node.get_closest_marker("fills_memory") else fcntl.LOCK_SH
    with ExitStack() as files:
        entrance, memory = (
            files.enter_context((folder / name).open("w")) for name in ("entrance", "memory")
        )
        fcntl.flock(entrance, kind)  # else there would always be a test that has it
        fcntl.flock(memory, kind)
        if kind == fcntl.LOCK_SH:
            fcntl.flock(entrance, fcntl.LOCK_UN)
        yield
