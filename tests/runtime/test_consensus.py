"""The ranks of a torch.distributed job agree on one config per scenario, whichever rank dies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.fork_server import kernel_nursery
from support.processes import PROGRAMS, fork_program


@pytest.fixture
def rank_outputs(tmp_path: Path) -> dict[int, tuple[Any, str]]:
    from torch.distributed import TCPStore

    master = TCPStore("127.0.0.1", 0, 3, is_master=True, wait_for_workers=False)
    port, program = master.port, PROGRAMS / "agree_as_rank.py"
    ranks = [
        kernel_nursery("1").start_file(
            program, port, rank, tmp_path, folder=tmp_path / "printed", TRITON_INTERPRET="1"
        )
        for rank in range(3)
    ]
    outputs = [rank.communicate(timeout=240) for rank in ranks]
    del master
    assert [rank.returncode for rank in ranks] == [0, -9, 0], outputs
    # Some versions of Gloo print their connections to the standard output, before the result.
    results = {rank: outputs[rank][0].splitlines()[-1] for rank in (0, 2)}
    return {rank: (json.loads(result), outputs[rank][1]) for rank, result in results.items()}


def test_ranks_agree_without_a_collective(rank_outputs: dict[int, tuple[Any, str]]) -> None:
    """All run what the first has chosen; a version mismatch and a death hold nobody up."""
    (first, heard), (third, _) = rank_outputs[0], rank_outputs[2]
    assert first["same"] == third["same"]
    assert {first["how"], third["how"]} <= {"agreed", "tuned"}
    assert third["alone"] in (16, 32, 64)
    assert first["other"] == 128
    assert "which this rank does not declare" in heard
    assert first["after a death"] == third["after a death"]


def test_versions_of_one_kernel_agree_separately(tmp_path: Path) -> None:
    done = fork_program(
        "agree_on_versions.py",
        str(tmp_path),
        TRITON_INTERPRET="1",
        DEJAVU_CACHE_URL=str(tmp_path / "store"),
    )
    # Some versions of Gloo print that ranks have connected.
    lines = [line for line in done.stdout.splitlines() if not line.startswith("[Gloo]")]
    assert lines == ["16", "64"]
