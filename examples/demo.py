"""The main job, end to end: one process tunes a kernel, another one benchmarks nothing.

Run by `make demo`. With a GPU it uses it; otherwise kernels run in Triton's interpreter.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent


def worker() -> None:
    """One process of the demo: multiplies matrices of several sizes and tells what that cost."""
    import torch
    from matmul import matmul, matmul_kernel

    device = "cuda" if torch.cuda.is_available() else "cpu"
    heights, width = ((32, 33, 64, 128), 64) if device == "cpu" else ((512, 600, 1024, 4096), 1024)
    start = time.perf_counter()
    for rows in heights:
        a = torch.randn(rows, width, device=device)
        b = torch.randn(width, width, device=device)
        torch.testing.assert_close(matmul(a, b), a @ b, rtol=1e-2, atol=1e-1)
    print(json.dumps({"benchmarked": matmul_kernel.benchmarked, "seconds": time.perf_counter() - start}))


def run_worker(url: str) -> dict[str, float]:
    """Runs a worker in a process of its own over the store that a URL names."""
    env = {**os.environ, "DEJAVU_CACHE_URL": url}
    if not shutil.which("nvidia-smi") and not Path("/dev/kfd").exists():
        env["TRITON_INTERPRET"] = "1"
    out = subprocess.run([sys.executable, __file__, "worker"], env=env, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, float] = json.loads(out.stdout)
    return result


def main() -> None:
    """Runs the demo and fails if the second process benchmarked anything."""
    with tempfile.TemporaryDirectory(prefix="dejavu-demo-") as folder:
        url = (Path(folder) / "records").as_uri()
        print("A kernel with 4 problem sizes, of which 2 share a bucket.\n")
        first = run_worker(url)
        print(f"first process:  benchmarked {first['benchmarked']:2} configs, took {first['seconds']:6.2f} s")
        second = run_worker(url)
        print(f"second process: benchmarked {second['benchmarked']:2} configs, took {second['seconds']:6.2f} s")
        print(f"saved:          {first['seconds'] - second['seconds']:.2f} s, in every process from now on\n")
        subprocess.run([sys.executable, "-m", "dejavu_client", "ls", "--store", url], check=True)
        subprocess.run(
            [sys.executable, "-m", "dejavu_client", "show", "matmul.matmul_kernel", "--store", url], check=True
        )
        if second["benchmarked"]:
            sys.exit("the second process should have benchmarked nothing")


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["worker"] else main()
