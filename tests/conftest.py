"""What all tests share: the interpreter where there is no GPU, and a cache of their own."""

from __future__ import annotations

import gc
import logging
import os
import random
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.slow_list import SlowListWriter, mark_slow_tests

gc.disable()  # until all tests are collected: imports leave little to free
HAS_GPU = shutil.which("nvidia-smi") is not None or Path("/dev/kfd").exists()
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read by Triton when a kernel is decorated
for name in [name for name in os.environ if name.startswith("DEJAVU_")]:
    del os.environ[name]


# How long an example takes depends on what else the machine does.
settings.register_profile(
    "search", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=1000
)
# Every run draws the same examples: one that fails was changed, and not unlucky. More of them would
# find no more, as the next run draws none that are new.
settings.register_profile(
    "test",
    settings.get_profile("search"),
    max_examples=50,
    derandomize=True,
    database=None,
    print_blob=True,
)
settings.load_profile("test")
os.environ.setdefault("PYTHONHASHSEED", "0")  # of workers, and of the processes that tests start

# A worker of pytest-xdist has neighbours on every core, and so have the processes that it starts.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")


# A shell's background jobs ignore Ctrl-C, and so would the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-slow-list",
        action="store_true",
        help="write which tests are slow to tests/slow.txt",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--write-slow-list"):
        config.pluginmanager.register(SlowListWriter())
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        from support.fork_server import SHARED_FOLDER, ForkServers

        servers = ForkServers()
        os.environ[SHARED_FOLDER] = servers.folder
        config.add_cleanup(servers.close)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_slow_tests(items)
    if not HAS_GPU:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="there is no GPU here"))


def pytest_collection_finish() -> None:
    gc.freeze()  # full collections need not look at what was imported
    gc.enable()
    if not HAS_GPU and "triton" in sys.modules:
        import support.quicker_triton  # noqa: F401
    # Kernels are written, edited and imported again within a second: bytecode would hide the edit.
    sys.dont_write_bytecode = True


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Let every test draw the same random numbers, whichever tests its process ran before."""
    random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test starts with an empty default store and user's cache, and unread settings.

    No command that ran before it writes the log to its own, closed standard error.
    """
    from dejavu_cache.settings import current_settings
    from dejavu_cache.stores import tiered as process
    from dejavu_cache.system import notices

    # Marks of measurements, journals and spools are there.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    monkeypatch.setenv("DEJAVU_CACHE_URL", (tmp_path / "default-store").as_uri())
    notices._said.clear()
    monkeypatch.setattr(notices.logger, "handlers", [])
    notices.logger.setLevel(logging.NOTSET)
    current_settings.cache_clear()
    process.default_store.cache_clear()
    yield
    current_settings.cache_clear()
    process.default_store.cache_clear()
