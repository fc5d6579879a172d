"""On a real GPU, unmodified kernels of other libraries are tuned once, and ranks agree."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest
import torch
from support.processes import ROOT, environment, run_command

pytestmark = pytest.mark.gpu

COUNT = """
    import gc
    from dejavu_cache import CachedAutotuner
    from triton.runtime.autotuner import Autotuner
    launched = [each for each in gc.get_objects() if isinstance(each, Autotuner) and each.cache]
    # A library's own class hands its launches over to an autotuner of ours.
    tuners = {getattr(each, "_adopted", None) or each for each in launched}
    assert all(type(each) is CachedAutotuner and each.is_adopted for each in tuners), tuners
    print("benchmarked", sum(each.benchmarked for each in tuners), "by", len(tuners))
"""

LINEAR_ATTENTION = """
    import sys
    if sys.argv[2] == "install":
        import dejavu_cache
        dejavu_cache.install()
    import torch
    from fla.ops.delta_rule import chunk_delta_rule
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.gla import chunk_gla
    from fla.ops.gla.naive import naive_recurrent_gla
    from fla.ops.retention import chunk_retention
    from fla.ops.simple_gla import chunk_simple_gla
    from fla.ops.simple_gla.naive import naive_recurrent_simple_gla

    torch.manual_seed(0)
    shape = dict(device="cuda", dtype=torch.float32)
    q, k, v = (torch.randn(1, 256, 2, 64, **shape) / 8 for _ in range(3))
    g = torch.nn.functional.logsigmoid(torch.randn(1, 256, 2, 64, **shape))
    gate, beta = g[..., 0].contiguous(), torch.rand(1, 256, 2, **shape)
    k = torch.nn.functional.normalize(k, dim=-1)
    half = (q.bfloat16(), k.bfloat16(), v.bfloat16())
    out = {
        "gla": chunk_gla(q, k, v, g)[0],
        "simple_gla": chunk_simple_gla(q, k, v, gate)[0],
        "retention": chunk_retention(q, k, v)[0],
        "delta_rule": chunk_delta_rule(*half, beta.bfloat16())[0],
        "gated_delta_rule": chunk_gated_delta_rule(*half, gate, beta.bfloat16())[0],
    }
    close = dict(rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(out["gla"], naive_recurrent_gla(q, k, v, g)[0], **close)
    simple = naive_recurrent_simple_gla(q, k, v, gate)[0]
    torch.testing.assert_close(out["simple_gla"], simple, **close)
    torch.save({name: value.cpu() for name, value in out.items()}, sys.argv[1])
"""

OWN = """
    import sys
    if sys.argv[2] == "install":
        import dejavu_cache
        dejavu_cache.install()
    import torch, triton
    from kernels import add_norm, decorate_add_norm, matmul, matmul_configs, matmul_kernel

    torch.manual_seed(0)
    product = triton.autotune(configs=matmul_configs()[::6], key=["M", "N", "K"])(matmul_kernel)
    norm = decorate_add_norm(triton.autotune)
    a, b = torch.randn(2, 512, 512, device="cuda", dtype=torch.bfloat16)
    x, residual = torch.randn(2, 300, 1024, device="cuda")
    out = {"matmul": matmul(product, a, b)}
    for name, weight in (("weighted", torch.randn(1024, device="cuda")), ("plain", None)):
        y, after, rows = add_norm(norm, x, residual, weight)
        torch.testing.assert_close(after, x + residual)
        assert rows.item() == 300
        out[name] = y
    torch.testing.assert_close(out["matmul"], a @ b, rtol=2e-2, atol=0.5)
    torch.save({name: value.cpu() for name, value in out.items()}, sys.argv[1])
"""


def run(program: str, folder: Path, how: str, *path: Path) -> tuple[dict[str, torch.Tensor], int]:
    """Run a program in a fresh process; return its results and how many configs it benchmarked."""
    script, saved = folder / "program.py", folder / f"{how}.pt"
    script.write_text(textwrap.dedent(program) + textwrap.dedent(COUNT))
    command = [sys.executable, str(script), str(saved), how]
    if how == "run":
        command = [sys.executable, "-m", "dejavu_client", "run", "--", *command]
    policy = folder / "policy.toml"
    policy.write_text('[[kernel]]\nmatch = "*"\ntune_configs = 8\n')
    url = (folder / "store").as_uri()
    env = environment(DEJAVU_CACHE_URL=url, DEJAVU_CACHE_POLICY=str(policy))
    env["PYTHONPATH"] = os.pathsep.join(
        [*map(str, path), str(ROOT / "benchmarks"), env["PYTHONPATH"]]
    )
    seen = run_command(*command, env=env, check=False)
    assert seen.returncode == 0, seen.stdout[-2000:] + seen.stderr[-6000:]
    words = seen.stdout.split()
    assert int(words[words.index("by") + 1]) > 0, "no kernel was adopted"
    return torch.load(saved), int(words[words.index("benchmarked") + 1])


def check(program: str, folder: Path, *path: Path) -> None:
    first, benchmarked = run(program, folder, "install", *path)
    assert benchmarked > 0
    second, again = run(program, folder, "run", *path)
    assert again == 0
    for name, value in first.items():
        assert torch.equal(second[name], value), (
            f"{name} differs by {(second[name] - value).abs().max()}"
        )


def test_flash_linear_attention_runs_unmodified(tmp_path: Path) -> None:
    wheels = os.environ.get("FLA_WHEELS")
    if wheels is None and importlib.util.find_spec("fla") is None:
        pytest.skip("neither FLA_WHEELS nor fla")
    unpacked = tmp_path / "wheels"
    for wheel in Path(wheels).glob("*.whl") if wheels else ():
        zipfile.ZipFile(wheel).extractall(unpacked)
    check(LINEAR_ATTENTION, tmp_path, unpacked)


def test_hooks_restores_heuristics_and_pruning_run_unmodified(tmp_path: Path) -> None:
    check(OWN, tmp_path)


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
    program = [sys.executable, "-c", textwrap.dedent(RANK)]
    ranks = [
        subprocess.Popen(
            [*program, str(port), str(rank), str(tmp_path), consensus],
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
