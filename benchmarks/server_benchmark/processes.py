"""Servers in processes of their own, and what the operating system says of them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import httpx

BARE = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
body = open(sys.argv[2], "rb").read()
async def bare(request):
    return Response(body, media_type="application/json", headers={"Content-Encoding": "gzip"})
app = Starlette(routes=[Route("/bare", bare)])
uvicorn.run(app, port=int(sys.argv[1]), log_config=None, access_log=False, server_header=False)
"""


class Server(NamedTuple):
    """A server on this machine."""

    port: int
    process: subprocess.Popen[bytes]


@contextmanager
def run_server(url: str, **environ: str) -> Iterator[Server]:
    """Run the cache server on a database; yield its port and process."""
    port = free_port()
    with _answering(start_server(url, port, **environ), port, "/readyz") as server:
        yield server


def start_server(
    url: str, port: int, log: IO[bytes] | int = subprocess.DEVNULL, **environ: str
) -> subprocess.Popen[bytes]:
    """Start the cache server on a database, without waiting for it."""
    settings = {"DEJAVU_SERVER_DATABASE": url, "DEJAVU_SERVER_WITHOUT_TOKENS": "true"}
    command = [sys.executable, "-m", "dejavu_service", "serve", "--port", str(port)]
    return subprocess.Popen(command, env={**os.environ, **settings, **environ}, stderr=log)


@contextmanager
def run_bare(body: Path) -> Iterator[Server]:
    """Run a Starlette endpoint `/bare` that sends a file's bytes; yield its port and process."""
    port = free_port()
    command = [sys.executable, "-c", BARE, str(port), str(body)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    with _answering(process, port, "/bare") as server:
        yield server


@contextmanager
def _answering(process: subprocess.Popen[bytes], port: int, path: str) -> Iterator[Server]:
    """Wait until a server answers, and stop it at the end."""
    try:
        _wait_for(f"http://127.0.0.1:{port}{path}")
        yield Server(port, process)
    finally:
        process.terminate()
        process.wait()


def _wait_for(url: str, seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        try:
            httpx.get(url).raise_for_status()
            return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise TimeoutError(f"{url} did not answer within {seconds:g} s")


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until_quiet(share: float = 0.1, at_most: float = 30) -> None:
    """Wait until other work takes less than a share of the machine, `at_most` so many seconds."""
    ends = time.monotonic() + at_most
    while time.monotonic() < ends:
        busy_before, total_before = _ticks()
        time.sleep(0.3)
        busy, total = _ticks()
        if busy - busy_before < share * (total - total_before):
            return


def _ticks() -> tuple[int, int]:
    """Return the machine's busy clock ticks and all of them; waiting for a disk is not busy."""
    fields = Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
    ticks = [int(field) for field in fields]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """Return the processor time that a process has taken so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mb(process: subprocess.Popen[bytes]) -> float:
    """Return a process's largest resident memory so far, in MB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return round(int(status.partition("VmHWM:")[2].split()[0]) / 1024, 1)
