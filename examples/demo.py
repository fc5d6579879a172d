"""One process tunes a kernel; others that share its folder or a server benchmark nothing.

Run by `make demo`. Without a GPU the kernels run in Triton's interpreter.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent


def worker() -> None:
    """Multiply matrices of several sizes, and print how many configs were benchmarked."""
    import torch
    from matmul import matmul, matmul_kernel

    device = "cuda" if torch.cuda.is_available() else "cpu"
    heights, width = ((32, 33, 64, 128), 64) if device == "cpu" else ((512, 600, 1024, 4096), 1024)
    start = time.perf_counter()
    for rows in heights:
        a = torch.randn(rows, width, device=device)
        b = torch.randn(width, width, device=device)
        torch.testing.assert_close(matmul(a, b), a @ b, rtol=1e-2, atol=1e-1)
    print(
        json.dumps(
            {"benchmarked": matmul_kernel.benchmarked, "seconds": time.perf_counter() - start}
        )
    )


def run_worker(url: str) -> dict[str, float]:
    """Run a worker in a process of its own with the store of a URL."""
    env = {**os.environ, "DEJAVU_CACHE_URL": url, "DEJAVU_CACHE_WAIT": "5"}
    if not shutil.which("nvidia-smi") and not Path("/dev/kfd").exists():
        env["TRITON_INTERPRET"] = "1"
    out = subprocess.run(
        [sys.executable, __file__, "worker"], env=env, check=True, stdout=subprocess.PIPE, text=True
    )
    result: dict[str, float] = json.loads(out.stdout)
    return result


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Run a cache server on SQLite for this machine only; yield its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    database = f"sqlite:///{folder / 'server.sqlite3'}"
    command = [
        sys.executable,
        "-m",
        "dejavu_client",
        "serve",
        "--without-tokens",
        "--port",
        str(port),
        "--database",
        database,
    ]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(100):
            try:
                urllib.request.urlopen(f"{url}/readyz", timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


def print_result(process: str, result: dict[str, float]) -> None:
    """Print a line about one process."""
    benchmarked, seconds = result["benchmarked"], result["seconds"]
    print(f"{process}: benchmarked {benchmarked:2} configs, took {seconds:6.2f} s", flush=True)


def dejavu(*arguments: str) -> None:
    """Run the command line."""
    subprocess.run([sys.executable, "-m", "dejavu_client", *arguments], check=True)


def forget_settings() -> None:
    """Leave out the caller's settings: the demo's server takes no token, and its programs tune."""
    for name in [name for name in os.environ if name.startswith("DEJAVU_")]:
        del os.environ[name]


def main() -> None:
    """Run the demo; fail if a process benchmarked what another one had measured."""
    forget_settings()
    with tempfile.TemporaryDirectory(prefix="dejavu-demo-") as name:
        folder = Path(name)
        mine, other = (folder / "records").as_uri(), (folder / "another-machines-records").as_uri()
        print("A kernel with 4 problem sizes, of which 2 share a bucket.\n", flush=True)
        first = run_worker(mine)
        print_result("first process               ", first)
        second = run_worker(mine)
        print_result("second process, same folder ", second)
        with server(folder) as url:
            dejavu("sync", "--push-only", "--store", f"{mine},{url}")
            third = run_worker(f"{other},{url}")
            print_result("another folder, same server ", third)
        print(
            f"saved: {first['seconds'] - second['seconds']:.2f} s, in every process from now on\n",
            flush=True,
        )
        dejavu("ls", "--store", mine)
        dejavu("show", "matmul.matmul_kernel", "--store", other)
        if second["benchmarked"] or third["benchmarked"]:
            sys.exit("only the first process should have benchmarked anything")


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["worker"] else main()
