"""A headless Chromium, driven by its DevTools protocol."""

import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

from support.sweeping import wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
"""Path of the browser; empty where there is none."""

_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--hide-scrollbars", "--remote-debugging-port=0"),
)


class Browser:
    """A tab of the browser.

    Attributes:
        complaints: What its console said and what pages threw or failed to load.
    """

    def __init__(self, connection: ClientConnection) -> None:
        """Drive the tab behind a connection."""
        self._connection = connection
        self._numbers = itertools.count(1)
        self._loaded = 0
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = self._receive()
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    def _receive(self, timeout: float = 60) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._connection.recv(timeout))
        method, parameters = message.get("method", ""), message.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded += 1
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(parameters["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] == "error":
            self.complaints.append(str(parameters["args"]))
        return message

    def _await_load(self, before: int) -> None:
        deadline = time.monotonic() + 240
        while self._loaded == before:
            self._receive(max(deadline - time.monotonic(), 0.01))

    def open(self, url: str) -> str:
        """Go to a page and return its text."""
        before = self._loaded
        self.send("Page.navigate", url=url)
        self._await_load(before)
        return self.text

    def click(self, selector: str) -> str:
        """Click an element that leads to a page, and return the page's text."""
        before = self._loaded
        self.run(f"document.querySelector({json.dumps(selector)}).click()")
        self._await_load(before)
        return self.text

    def fill(self, selector: str, value: str) -> None:
        """Set the value of a field."""
        self.run(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(value)}")

    def run(self, script: str) -> Any:
        """Return the value of an expression or a promise in the page."""
        answer = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    @property
    def text(self) -> str:
        """Text of the page as a reader sees it."""
        return str(self.run("document.body.innerText"))

    @property
    def path(self) -> str:
        """Path and query of the page."""
        return str(self.run("location.pathname + location.search"))

    def show(self, width: int, *, dark: bool = False) -> None:
        """Set the width of the window in pixels and the colour scheme."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a browser with a profile of its own, and yield its tab."""
    profile = Path(tempfile.mkdtemp(prefix="chromium-"))
    process = subprocess.Popen(
        [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        port = _await_port(profile / "DevToolsActivePort", process)
        address = _await_tab(port)
        with connect(address, max_size=None, open_timeout=60) as connection:
            yield Browser(connection)
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(profile, ignore_errors=True)


def _await_port(file: Path, process: subprocess.Popen[bytes]) -> int:
    def has_begun() -> bool:
        assert process.poll() is None, "the browser ended"
        return file.exists() and bool(file.read_text())

    wait_until(has_begun)
    return int(file.read_text().split()[0])


def _await_tab(port: int) -> str:
    """Return the address of the first tab, which may open after the port."""

    def list_tabs() -> list[str]:
        listed = httpx.get(f"http://127.0.0.1:{port}/json", timeout=240).json()
        return [str(tab["webSocketDebuggerUrl"]) for tab in listed if tab["type"] == "page"]

    wait_until(lambda: bool(list_tabs()))
    return list_tabs()[0]
