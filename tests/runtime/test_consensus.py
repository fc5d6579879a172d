"""The ranks of a torch.distributed job agree on one config per scenario, whichever rank dies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.fork_server import kernel_nursery
from support.kernels import ADD, load
from support.processes import PROGRAMS, in_own_process

from dejavu_cache import cached_autotune


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


class NotingLaunches:
    """A kernel that tells a benchmark which block it is timing."""

    latest = 0

    def __init__(self, fn: Any) -> None:
        self.fn, self.arg_names = fn, fn.arg_names

    def run(self, *args: Any, **kwargs: Any) -> Any:
        NotingLaunches.latest = kwargs["BLOCK"]
        return self.fn.run(*args, **kwargs)


@in_own_process(TRITON_INTERPRET="1")
def test_versions_of_one_kernel_agree_separately(tmp_path: str) -> None:
    """Both have one name and one scenario; a helper's constant differs."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/job", rank=0, world_size=1)
    for version, best in ((1, 16), (2, 64)):

        def bench(kernel_call: Any, quantiles: Any, best: int = best) -> list[float]:
            kernel_call()
            return [1.0 if NotingLaunches.latest == best else 2.0] * 3

        source = ADD.replace("tl.constexpr(1)", f"tl.constexpr({version})")
        module: Any = load(Path(tmp_path) / str(version) / "kernels.py", source)
        decorate = cached_autotune(module.CONFIGS, ["n"], do_bench=bench, consensus="ranks")
        kernel = decorate(module.add.fn)
        kernel.fn = NotingLaunches(kernel.fn)
        kernel[(7,)](torch.ones(100), torch.ones(100), 100)
        assert kernel.best_config.kwargs == {"BLOCK": best}
