"""On one GPU or several, ranks run one config, and a rank's death stops no other."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.processes import ROOT, environment

pytestmark = pytest.mark.gpu

RANK = """
    import json, os, signal, sys, time
    import torch, triton
    import torch.distributed as dist
    from dejavu_cache import cached_autotune
    from dejavu_cache.settings import current_settings
    from kernels import matmul, matmul_configs, matmul_kernel

    rank, folder, consensus = int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.cuda.set_device(rank % torch.cuda.device_count())
    store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), 2, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    home = folder if consensus == "none" else f"{folder}/{rank}"
    decorate = cached_autotune(
        matmul_configs()[::8], key=["M", "N", "K"], store=home, consensus=consensus
    )
    kernel = decorate(matmul_kernel)
    chosen = []
    for size in (256, 512, 1024):
        a, b = torch.randn(2, size, size, device="cuda", dtype=torch.bfloat16)
        torch.testing.assert_close(matmul(kernel, a, b), a @ b, rtol=2e-2, atol=0.6)
        chosen.append(str(kernel.best_config))
        if rank == 1:  # runs something that the other does not
            matmul(kernel, a[:128].contiguous(), b)
    with open(f"{folder}/chosen{rank}.json", "w") as file:
        json.dump({"chosen": chosen, "tuned": kernel.benchmarked}, file)
    dist.barrier()
    os.environ["DEJAVU_CACHE_TUNE_WAIT"] = "3"
    current_settings.cache_clear()
    if rank == 1:
        def dies(launch, quantiles):
            os.kill(os.getpid(), signal.SIGKILL)
        kernel._do_bench, kernel.__dict__["do_bench"] = dies, dies
        store.set("dying", "1")
    else:
        store.get("dying")
        time.sleep(0.5)
    a, b = torch.randn(2, 2048, 2048, device="cuda", dtype=torch.bfloat16)
    start = time.monotonic()
    torch.testing.assert_close(matmul(kernel, a, b), a @ b, rtol=2e-2, atol=1.0)
    torch.cuda.synchronize()
    print(time.monotonic() - start, flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize("consensus", ["none", "ranks"])
def test_ranks_run_one_config(tmp_path: Path, consensus: str) -> None:
    """Through a shared store, or through the job's key-value store where there is none."""
    from torch.distributed import TCPStore

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    master = TCPStore("127.0.0.1", port, 2, is_master=True, wait_for_workers=False)
    env = environment()
    env["PYTHONPATH"] = f"{ROOT / 'benchmarks'}:{env['PYTHONPATH']}"
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                textwrap.dedent(RANK),
                str(port),
                str(rank),
                str(tmp_path),
                consensus,
            ],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=200) for rank in ranks]
    del master
    assert [rank.returncode for rank in ranks] == [0, -9], outputs
    first, second = (json.loads((tmp_path / f"chosen{rank}.json").read_text()) for rank in range(2))
    assert first["chosen"] == second["chosen"]
    if consensus == "none":
        scenarios = 3 + 3  # of both ranks, and of one
        assert first["tuned"] + second["tuned"] == 6 * scenarios, "each once"
    assert float(outputs[0][0]) < 60
