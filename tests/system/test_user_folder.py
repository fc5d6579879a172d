"""A user without a home or a writable folder can do everything, and files are replaced whole."""

import errno
import logging
import os
import stat
import tempfile
import tracemalloc
from contextlib import closing, nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.command_line import run_cli
from support.fork_server import kernel_nursery
from support.processes import fork_python
from support.records import context, record

from dejavu_cache.model.record import Measurement
from dejavu_cache.model.scenario import Config, now
from dejavu_cache.settings import Settings
from dejavu_cache.stores import MemoryStore, TieredStore, open_store
from dejavu_cache.system import safe_files as room
from dejavu_cache.system.notices import counted, whoami
from dejavu_cache.system.safe_files import read_file, replace_file, user_folder
from dejavu_cache.tuning.measurement_marks import MeasurementMark

ENVIRONMENTS = [
    {},
    {"HOME": "."},
    {"HOME": "/dev/null/home"},
    {"XDG_CACHE_HOME": "cache"},
    {"HOME": ".", "XDG_CACHE_HOME": "/dev/null/cache"},
]
"""Of users without a cache folder; `XDG_CACHE_HOME` counts only if it is absolute."""


@pytest.fixture(autouse=True)
def no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the user database, and keep temporary files apart from other tests'."""
    kernel_nursery("1")  # it outlives this test, and so must the folder that its socket lies in
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError))
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "DEJAVU_CACHE_URL"):
        monkeypatch.delenv(name, raising=False)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    room.private_temporary_folder.cache_clear()


def set_environment(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=str)
def test_a_user_without_a_cache_folder_gets_a_private_temporary_one(
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    set_environment(monkeypatch, environment)
    with caplog.at_level(logging.WARNING):
        folders = {name: user_folder(name) for name in ("records", "spool", "measuring")}
    parents = {folder.parent for folder in folders.values()}
    assert parents == {tmp_path / "temporary" / f"dejavu-cache-{os.getuid()}"}
    assert parents.pop().stat().st_mode & 0o777 == 0o700
    assert [record.message.partition(" (")[0] for record in caplog.records] == [
        "this user has no cache folder"
    ]


def test_a_folder_that_exists_is_used_though_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image may have records in a home that is read-only."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "dejavu-cache").mkdir(mode=0o500)
    assert user_folder("records") == tmp_path / "dejavu-cache" / "records"


def test_a_temporary_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    taken = tmp_path / "temporary" / f"dejavu-cache-{os.getuid()}"
    taken.mkdir()
    taken.chmod(0o777)
    assert taken not in user_folder("records").parents


def test_without_any_folder_records_are_kept_in_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", Mock(side_effect=FileNotFoundError))
    with caplog.at_level(logging.WARNING):
        store = TieredStore([open_store(Settings().default_url), MemoryStore()])
        store.put(context(), [record()])
        assert store.get(context(), record().scenario) is not None
        with pytest.raises(OSError, match="Not a directory"):
            user_folder("spool").mkdir(parents=True)


@pytest.mark.parametrize("environment", ENVIRONMENTS[2:4], ids=str)
@pytest.mark.parametrize(
    "command", ["doctor", "gc", "ls", "gc --yes", "show --misses", "show", "watch --help", "sync"]
)
def test_every_command_ends_with_an_answer(
    command: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch, environment)
    done = run_cli(*command.split())
    assert done.returncode == 0 or done.stderr.startswith("error: "), done
    assert done.returncode == 0 or command not in ("doctor", "gc", "ls")


def test_a_server_asks_for_a_place_for_its_database() -> None:
    done = run_cli("token", "list")
    assert (done.returncode, "DEJAVU_SERVER_DATABASE" in done.stderr) == (2, True)


LAUNCH = """
    import os, pwd, sys

    def unknown(uid):
        raise KeyError(uid)

    pwd.getpwuid = unknown
    for name in ("HOME", "XDG_CACHE_HOME", "DEJAVU_CACHE_URL"):
        os.environ.pop(name, None)
    os.environ.update(variable.split("=", 1) for variable in sys.argv[2:])

    import triton, dejavu_cache
    from support.addition import CONFIGS, add_one, equal_times
    from support.kernels import launch

    if sys.argv[1] == "install":
        dejavu_cache.install()
    autotune = triton.autotune if sys.argv[1] == "install" else dejavu_cache.cached_autotune
    launch(autotune(CONFIGS, ["n"], do_bench=equal_times)(add_one))
"""
"""A tune as a user whom the user database does not know; arguments set variables."""


@pytest.mark.parametrize("environment", ["HOME=.", "HOME=/dev/null"])
@pytest.mark.parametrize("how", ["decorator", "install"])
def test_a_launch_stores_its_records_where_it_is_told(
    how: str, environment: str, tmp_path: Path
) -> None:
    url = f"DEJAVU_CACHE_URL={(tmp_path / 'records').as_uri()}"
    done = fork_python(LAUNCH, how, environment, url, TRITON_INTERPRET="1")
    assert list((tmp_path / "records").rglob("*.json"))
    assert done.stderr.count("this user has no cache folder") <= 1
    assert "Triton alone" not in done.stderr


def test_a_launch_without_any_place_is_right_and_warns_once() -> None:
    done = fork_python(LAUNCH, "decorator", "HOME=.", TRITON_INTERPRET="1")
    assert done.stderr.count("this user has no cache folder") == 1
    assert done.stderr.count("\n") == 2  # the other line says what was tuned first, and where


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_folders_that_cannot_be_synced_are_passed_over_but_a_disk_that_fails_is_said(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of some network file systems refuse it."""
    sync = os.fsync

    def sync_files_alone(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(error, os.strerror(error))
        sync(handle)

    monkeypatch.setattr(os, "fsync", sync_files_alone)
    is_said = pytest.raises(OSError, match="Input/output error")
    with is_said if error == errno.EIO else nullcontext():
        replace_file(tmp_path / "records", b"content")
    assert (tmp_path / "records").read_bytes() == b"content"


def test_reading_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"content")
    tracemalloc.start()
    try:
        assert read_file(tmp_path / "small") == b"content"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_one_is_told_from_any_other_number() -> None:
    said = [counted(number, "record") for number in (0, 1, 2)]
    assert said == ["0 records", "1 record", "2 records"]
    said = [counted(number, "miss is", "misses are") for number in (1, 2)]
    assert said == ["1 miss is", "2 misses are"]
    assert counted(12345, "case", grouped=True) == "12,345 cases"


def test_a_name_that_is_no_text_can_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "b\udcff")
    monkeypatch.setattr("socket.gethostname", lambda: "h\udcff")
    whoami.cache_clear()
    try:
        name = whoami()
        with closing(MeasurementMark(context(), record().scenario)) as mark, mark.around(Config()):
            assert name in mark._path.read_text()
    finally:
        whoami.cache_clear()
    assert name == "b?@h?"
    assert Measurement(config=Config(), median=1.0, at=now(), by=name).by == name
