"""`dejavu-cache pages`: the server's pages for the records of any store."""

import os
import re
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from support.processes import dejavu
from support.records import MOMENT, context, measurement, record

from dejavu_cache.stores import FileStore


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    """Return a store with two versions of a kernel's code, the one that was tuned last first."""
    store = FileStore(tmp_path / "records")
    store.put(context(source="a" * 32), [record(16, measurement(32, 1.0), measurement(64, 2.0))])
    earlier = measurement(32, 1.0, MOMENT - timedelta(days=9))
    store.put(context(source="b" * 32), [record(16, earlier), record(64, earlier)])
    return store


def test_a_store_is_shown_and_cannot_be_changed(store: FileStore, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}
    words = [sys.executable, "-m", "dejavu_service", "pages", "--store", str(store.root)]
    env = {**os.environ, "BROWSER": "true", "TMPDIR": str(tmp_path)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        base = process.stdout.readline().partition("/ shows ")[0]
        try:
            with httpx.Client(base_url=base, follow_redirects=True, timeout=60) as client:
                overview = client.get("/").text
                path, *_ = re.findall(r'"(/pages/main/contexts/\w+)">NVIDIA H200<', overview)
                scenario, *_ = re.findall(rf'"({path}/scenarios/\w+)"', client.get(path).text)
                shown = client.get(scenario).text
                assert "BLOCK=32" in shown
                assert set(re.findall(r"\d{4}-\d\d-\d\d", shown)) == {str(MOMENT.date())}
                for page in (overview, shown, client.get("/pages/main/activity").text):
                    assert not re.search(r"Log in|admin|token", page)
                digest = path.rpartition("/")[2]
                deleted = client.delete(f"/v1/main/contexts/{digest}/records")
                assert deleted.status_code in (401, 403)
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode == 0
    assert before == {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}
    assert not list(tmp_path.glob("dejavu-pages-*"))


def test_the_overview_is_one_file_that_loads_nothing(store: FileStore, tmp_path: Path) -> None:
    page = tmp_path / "overview.html"
    assert dejavu("pages", "--store", store.root, "--out", page).returncode == 0
    text = page.read_text()
    assert "pkg.<wbr>kernels.<wbr>add" in text
    assert "1 of earlier source" in text
    assert "<b>1 of 2</b>" in text
    assert "source bbbbbbbb" in text
    assert not re.search(r"\b(href|src|action)=|url\(|<script|<form", text)


def test_the_overview_goes_through_a_pipe_which_stays(store: FileStore, tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    with open(os.open(pipe, os.O_RDWR | os.O_NONBLOCK), "rb", buffering=0) as reader:
        assert dejavu("pages", "--store", store.root, "--out", pipe).returncode == 0
        assert (reader.read(1 << 16) or b"").startswith(b"<!doctype html>")
    assert pipe.is_fifo()
