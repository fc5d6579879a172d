"""Measure how much there is to know, and hold the figures reached; `make check` runs this.

The limits are in `pyproject.toml`, in `[tool.size]`: no figure may exceed its limit, and `--lower`
writes what was reached as the new limits. With `--static`, as in `make lint`, nothing is run.
`--show` prints which functions were passed.

A module that one module of its own folder imports is a part of that one, unless it is long or
`[tool.size.rooms]` says why it is a room of its own.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "dejavu_cache": ROOT / "dejavu_cache",
    "dejavu_client": ROOT / "client" / "dejavu_client",
    "dejavu_service": ROOT / "service" / "dejavu_service",
}
BENCHMARKS = ROOT / "benchmarks"
"""Where the made-up records are."""
LONG = 250
"""Lines from which on a module is a room, whoever imports it."""

SLACK = 30
"""Share of the calls of a launch, as its reciprocal, by which they differ from run to run."""

GOALS = {
    "library lines": 27_500,
    "library files": 120,
    "product lines": 42_000,
    "product files": 240,
    "test lines": 32_000,
    "classes of autotuners": 1,
    "callbacks in the library": 25,
    "drawers in the library": 0,
    "functions of a found record": 150,
    "files of a found record": 25,
    "functions of a tune": 260,
    "files of a tune": 45,
    "service lines": 8_000,
    "service files": 50,
    "client/http lines": 2_000,
    "client/http files": 8,
    "functions of a cached read": 25,
    "files of a cached read": 10,
    "functions of a POST": 60,
    "files of a POST": 20,
}
"""What each figure should come to."""


def main() -> None:
    """Print each figure with its limit and goal; exit with 1 if one exceeds its limit."""
    path = ROOT / "pyproject.toml"
    text = path.read_text(encoding="utf-8")
    figures = {**count_lines(), **count_structure()}
    if "--static" not in sys.argv:
        figures |= count_calls()
    limits = read_limits(text)
    for name, figure in figures.items():
        limit = limits.get(name, GOALS[name])
        exceeds = "  exceeds its limit" if figure > limit else ""
        print(f"{name}: {figure:,} (at most {limit:,}; goal {GOALS[name]:,}){exceeds}")
    if "--lower" in sys.argv:
        for name, figure in figures.items():
            limit = figure + (figure // SLACK if " of a " in name else 0)
            if limit < limits.get(name, GOALS[name]):
                text = re.sub(rf'^"{name}" = \d+$', f'"{name}" = {limit}', text, flags=re.M)
        path.write_text(text, encoding="utf-8")
    if over := [name for name, figure in figures.items() if figure > limits.get(name, GOALS[name])]:
        sys.exit(f"make these smaller, or raise the limit in pyproject.toml: {', '.join(over)}")


def read_limits(text: str) -> dict[str, int]:
    """Return the limits that `pyproject.toml` holds; Python 3.10 has no reader of TOML."""
    table = text.partition("\n[tool.size]\n")[2].partition("\n[")[0]
    return {name: int(value) for name, value in re.findall(r'^"(.+)" = (\d+)$', table, re.M)}


def read_reasons(text: str) -> set[str]:
    """Return the modules of which `pyproject.toml` says why they are rooms of their own."""
    table = text.partition("\n[tool.size.rooms]\n")[2].partition("\n[")[0]
    return set(re.findall(r'^"(.+)" = ".+"$', table, re.M))


def count_lines() -> dict[str, int]:
    """Return the lines and files of the library, of the product and of its tests."""
    library = modules("dejavu_cache")
    product = [path for package in PACKAGES for path in modules(package).values()]
    tests = list((ROOT / "tests").rglob("*.py"))
    service = modules("dejavu_service")
    http = {
        name: path
        for name, path in modules("dejavu_client").items()
        if name.startswith("dejavu_client.http")
    }
    return {
        "library lines": sum(map(length, library.values())),
        "library files": len(library),
        "product lines": sum(map(length, product)),
        "product files": len(product),
        "test lines": sum(map(length, tests)),
        "service lines": sum(map(length, service.values())),
        "service files": len(service),
        "client/http lines": sum(map(length, http.values())),
        "client/http files": len(http),
    }


def count_structure() -> dict[str, int]:
    """Return how many autotuners, callbacks and drawers the library has."""
    bases: dict[str, set[str]] = {}
    callbacks = 0
    for path in modules("dejavu_cache").values():
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {ast.unparse(base).split(".")[-1] for base in node.bases}
            elif isinstance(node, ast.arg) and node.annotation is not None:
                callbacks += "Callable" in ast.unparse(node.annotation)
    autotuners = {"Autotuner"}
    while more := {name for name in bases if bases[name] & autotuners} - autotuners:
        autotuners |= more
    reasons = read_reasons((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = sorted(set(drawers("dejavu_cache")) - reasons)
    for name in found:
        print(f"{name} has one importer, in its own folder, and no reason to be a room")
    return {
        "classes of autotuners": len(autotuners) - 1,
        "callbacks in the library": callbacks,
        "drawers in the library": len(found),
    }


def drawers(package: str) -> Iterator[str]:
    """Yield the short modules of a package that one module of their own folder imports."""
    importers = defaultdict(set)
    known = {name: path for one in PACKAGES for name, path in modules(one).items()}
    for name, path in known.items():
        for imported in imports(name, path):
            importers[imported if imported in known else imported.rpartition(".")[0]].add(name)
    for name, path in modules(package).items():
        if path.name == "__init__.py" or length(path) >= LONG:
            continue
        folders = {importer.rpartition(".")[0] for importer in importers[name]}
        if len(importers[name]) == 1 and folders == {name.rpartition(".")[0]}:
            yield name


def imports(name: str, path: Path) -> Iterator[str]:
    """Yield the dotted names that a module imports, each as `module.attribute` or `module`."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


@cache
def modules(package: str) -> dict[str, Path]:
    """Return the files of a package by dotted name."""
    folder = PACKAGES[package]
    return {
        ".".join([package, *path.relative_to(folder).with_suffix("").parts]).removesuffix(
            ".__init__"
        ): path
        for path in sorted(folder.rglob("*.py"))
    }


def length(path: Path) -> int:
    """Return a file's number of lines."""
    return len(path.read_text(encoding="utf-8").splitlines())


@cache
def parse(path: Path) -> ast.Module:
    """Return a source file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


def count_calls() -> dict[str, int]:
    """Return how many functions and files a launch and a request pass, in their own processes."""
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        traced = [(name, _trace("launch", folder)[""]) for name in ("a tune", "a found record")]
        traced += _trace("requests", folder).items()
    for name, (functions, files) in traced:
        figures[f"functions of {name}"] = functions
        figures[f"files of {name}"] = files
    return figures


def _trace(what: str, folder: str) -> dict[str, list[int]]:
    settings = {"TRITON_INTERPRET": "1", "DEJAVU_CACHE_SHIPPED": "0", "DEJAVU_CACHE_URL": folder}
    path = os.pathsep.join([*(str(folder.parent) for folder in PACKAGES.values()), str(BENCHMARKS)])
    done = subprocess.run(
        [sys.executable, __file__, f"--trace={what}", *({"--show"} & set(sys.argv))],
        env={**os.environ, **settings, "PYTHONPATH": path},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)  # type: ignore[no-any-return]


class Tracer:
    """Notes which functions of the product are called."""

    def __init__(self) -> None:
        """Trace this thread, and those that it starts."""
        self._called: set[tuple[str, str]] = set()
        self._folders = tuple(str(folder) + os.sep for folder in PACKAGES.values())
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on
        if event == "call" and code.co_filename.startswith(self._folders) and name[0] != "<":
            self._called.add((code.co_filename, name))

    def take(self) -> list[int]:
        """Return the numbers of functions and files since the last call."""
        called = self._called.copy()
        self._called.clear()
        if "--show" in sys.argv:
            listed = sorted(f"{os.path.relpath(file, ROOT)}: {name}" for file, name in called)
            print(*listed, "", sep="\n", file=sys.stderr)
        return [len(called), len({file for file, _ in called})]


def trace_launch() -> None:
    """Launch a kernel with three configs, and print how many functions and files that passed."""
    import torch
    import triton
    import triton.language as tl

    from dejavu_cache import Pow2, cached_autotune

    @cached_autotune(
        configs=[triton.Config({"BLOCK": block}) for block in (64, 128, 256)],
        key=["n"],
        buckets={"n": Pow2(min=256)},
    )
    @triton.jit
    def add_kernel(x: Any, y: Any, out: Any, n: Any, BLOCK: tl.constexpr) -> None:
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        total = tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n)
        tl.store(out + at, total, mask=at < n)

    x, out = torch.ones(1000), torch.empty(1000)
    tracer = Tracer()
    # The default has the most programs: another config wins, and its results are compared.
    add_kernel[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, x, out, 1000)
    print(json.dumps({"": tracer.take()}))


async def trace_requests() -> None:
    """Send a server two requests, and print how many functions and files each passed."""
    import httpx
    from dejavu_service.app import create_app
    from dejavu_service.services import tokens
    from dejavu_service.services.access import ANYBODY
    from dejavu_service.settings import ServerSettings
    from dejavu_service.storage import schema
    from dejavu_service.storage.database import Database
    from server_benchmark.made_up_records import make_context, make_record

    from dejavu_cache.model.record import RecordSet

    url = f"sqlite:///{os.environ['DEJAVU_CACHE_URL']}/server.sqlite3"
    database = Database(url)
    schema.upgrade(database)
    token = tokens.issue(database, ANYBODY, "tracer", {"*": "admin"}).token
    database.close()
    record_set = RecordSet(context=make_context("a.kernel"), records=(make_record(1),))
    body = record_set.model_dump(mode="json", exclude_none=True)
    where = f"/v1/main/contexts/{record_set.context.digest}/records"
    figures = {}
    tracer = Tracer()  # before the app starts the threads that are traced
    app = create_app(ServerSettings(database=url))
    transport, headers = httpx.ASGITransport(app), {"Authorization": f"Bearer {token}"}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://server", headers=headers) as client,
    ):
        await client.get("/v1/main/contexts")  # from here on, the token is known
        tracer.take()
        (await client.post("/v1/main/records", json=body)).raise_for_status()
        figures["a POST"] = tracer.take()
        (await client.get(where)).raise_for_status()
        tracer.take()
        (await client.get(where)).raise_for_status()
        figures["a cached read"] = tracer.take()
    print(json.dumps(figures))


if __name__ == "__main__":
    if "--trace=launch" in sys.argv:
        trace_launch()
    elif "--trace=requests" in sys.argv:
        asyncio.run(trace_requests())
    else:
        main()
