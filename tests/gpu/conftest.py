"""A GPU's memory is shared by all workers: a test that fills it runs alone."""

import fcntl
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def share_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    kind = fcntl.LOCK_EX if request.node.get_closest_marker("fills_memory") else fcntl.LOCK_SH
    folder = request.getfixturevalue("tmp_path_factory").getbasetemp().parent
    with (folder / "entrance").open("w") as entrance, (folder / "memory").open("w") as memory:
        fcntl.flock(entrance, kind)  # else there would always be a test that has the memory
        fcntl.flock(memory, kind)
        if kind == fcntl.LOCK_SH:
            fcntl.flock(entrance, fcntl.LOCK_UN)
        yield
