"""A stranger installs the package, names a signed set, and launches; nothing is benchmarked.

    python examples/stranger.py [--wheel FILE] [--system-site-packages] [PIP OPTION…]

This process publishes: it tunes the quick start's kernel, signs its records and serves the files.
The stranger has an environment of its own, with Torch and Triton: installed first, or those of this
Python with `--system-site-packages`. From `pip install` of this package on, each step is timed.
Without a GPU the kernel runs in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
HAS_GPU = shutil.which("nvidia-smi") is not None or Path("/dev/kfd").exists()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", default=str(HERE.parent), help="what is installed")
    parser.add_argument("--system-site-packages", action="store_true")
    options, pip_options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        key = publish(home / "publisher")
        files = functools.partial(QuietHandler, directory=home / "publisher" / "set")
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), files) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            url = f"http://127.0.0.1:{server.server_port}"
            use(url, key, home / "stranger", options, pip_options)
            server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


def publish(home: Path) -> str:
    """Tune, and sign what was tuned; return the public key."""
    environment = environment_of(home, DEJAVU_CACHE_URL=str(home / "tuned"))
    tuned = call([sys.executable, HERE / "quickstart.py"], environment)
    print(f"the publisher {tuned.strip()}")
    command = ["export", home / "set", "--store", home / "tuned", "--sign", home / "key.pem"]
    line = call([sys.executable, "-m", "dejavu_client", *command, "--new-key"], environment)
    return line.split()[-1]


def use(
    url: str, key: str, home: Path, options: argparse.Namespace, pip_options: list[str]
) -> None:
    """Install the wheel, fetch and verify the set, and launch; print what each took."""
    environment = environment_of(home)
    site = ["--system-site-packages"] if options.system_site_packages else []
    call([sys.executable, "-m", "venv", *site, home / "venv"], environment)
    python = home / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "-q", *pip_options]
    start = time.perf_counter()
    if not options.system_site_packages:
        call([*pip, "torch", "triton", "numpy<2.4"], os.environ)
    step("before: an environment with Torch and Triton", start)
    wheel = Path(options.wheel).resolve().as_uri()
    environment["DEJAVU_CACHE_SHIPPED"] = "0"  # what is found is the set's
    start = last = time.perf_counter()
    call([*pip, f"dejavu-cache[signed] @ {wheel}"], os.environ)
    last = step("pip install 'dejavu-cache[signed]'", last)
    line = [home / "venv" / "bin" / "dejavu-cache", "use", url, "--key", key]
    answer = call(line, environment)
    last = step(f"dejavu-cache use {url} --key {key}", last)
    environment["DEJAVU_CACHE_URL"] = answer.strip().splitlines()[-1].split("'")[1]
    launched = call([python, HERE / "quickstart.py"], environment).strip()
    step(f"python quickstart.py: {launched}", last)
    step("in all", start)
    if launched != "benchmarked 0 configs":
        sys.exit("the set was not used")


def environment_of(home: Path, **variables: str) -> dict[str, str]:
    """Return the variables of a program of a user without files."""
    home.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    interpreted = {} if HAS_GPU else {"TRITON_INTERPRET": "1"}
    return {**kept, **interpreted, "HOME": str(home), **variables}


def call(command: list[str | Path], environment: dict[str, str] | os._Environ[str]) -> str:
    """Return what a command prints that must succeed."""
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=environment
    ).stdout


def step(what: str, since: float) -> float:
    """Print how long a step took, and return the time."""
    now = time.perf_counter()
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = spent.ru_utime + spent.ru_stime
    print(f"{now - since:6.1f} s  {what} (CPU seconds so far: {total:.1f})", flush=True)
    return now


if __name__ == "__main__":
    main()
