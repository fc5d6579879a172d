"""A fresh suite and store for each test, whose workers are forked."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fork_server import kernel_nursery, worker_starter
from support.sweeping import Sweeps

from dejavu_cache.system import workers


@pytest.fixture
def sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweeps:
    start_forked = worker_starter(kernel_nursery("1").address, "1")
    monkeypatch.setattr(workers, "start_process", start_forked)
    return Sweeps(tmp_path)
