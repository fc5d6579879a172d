"""`doctor`: diagnosis of the installation, the settings and the stores."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import typer

import dejavu_cache
from dejavu_cache.errors import DejavuError, StoreError, UnsupportedTritonError
from dejavu_cache.policy import Policy
from dejavu_cache.settings import Settings, policy_file, unknown_variables
from dejavu_cache.stores import FileStore, Store, prewarmed_folders, tiers_of
from dejavu_cache.stores.file import describe_failure
from dejavu_cache.stores.manifest import BINARIES, find_differences, read_manifest
from dejavu_cache.system.notices import counted
from dejavu_cache.triton_internals.environment import triton_version

from ..application import app
from ..chosen_store import open_chosen_store
from ..errors import require_triton
from ..options import JsonOption, StoreOption
from ..output import say, show_json
from .sync import describe_set_aside, describe_waiting

if TYPE_CHECKING:
    from ...http.sender import Spool


class Finding(NamedTuple):
    """Result of one check: its verdict, its subject and the explanation."""

    state: Literal["ok", "note", "wrong"]
    about: str
    text: str


@app.command()
def doctor(store: StoreOption = "", as_json: JsonOption = False) -> None:
    """Check settings, stores and packages, and say how to repair them.

    A finding is ok, a note, or wrong. Exits with 1 if any is wrong.
    """
    findings = [*_check_versions(), *_check_settings(store)]
    if as_json:
        show_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            say(f"{finding.state:6}{finding.about}: {finding.text}")
    if any(finding.state == "wrong" for finding in findings):
        raise typer.Exit(1)


def _check_versions() -> Iterator[Finding]:
    yield Finding(
        "ok", "dejavu-cache", f"{dejavu_cache.__version__} on Python {platform.python_version()}"
    )
    for package in ("pydantic", "triton", "torch", "sqlalchemy"):
        try:
            found = triton_version() if package == "triton" else version(package)
            if found is None:
                raise PackageNotFoundError(package)
            yield Finding("ok", package, found)
        except PackageNotFoundError:
            extra = "server" if package == "sqlalchemy" else "gpu"
            remedy = f"pip install 'dejavu-cache[{extra}]'"
            yield Finding("note", package, f"not installed ({remedy})")
    yield _check_device()


def _check_device() -> Finding:
    try:
        require_triton()
        from dejavu_cache.triton_internals.environment import environment_here

        environment = environment_here()
    except UnsupportedTritonError as error:
        return Finding("wrong", "triton", str(error))
    except Exception as error:  # drivers raise errors of many kinds
        return Finding(
            "note",
            "device",
            f"none that Triton can use ({error}); records can be read and moved all the same",
        )
    device = environment.device
    hardware = f", {device.units} units, {device.memory_gib} GiB" if device.memory_gib else ""
    return Finding("ok", "device", f"{device.name}, {device.arch}{hardware}, {environment.codegen}")


def _check_settings(url: str) -> Iterator[Finding]:
    for problem in unknown_variables(os.environ):
        yield Finding("wrong", "settings", problem)
    try:
        settings = Settings.from_environment()
        store = open_chosen_store(url)
    except DejavuError as error:
        yield Finding("wrong", "settings", str(error))
        return
    yield Finding("ok", "mode", settings.mode.value)
    yield from _check_policy()
    for tier in tiers_of(store):
        if isinstance(tier, FileStore):
            try:
                yield from _check_folder(tier, named=bool(url))
            except (StoreError, OSError) as error:
                remedy = "give this user access to it, or name another in DEJAVU_CACHE_URL"
                yield Finding("wrong", tier.url, f"{error}; {remedy}")
        else:
            yield _check_answer(tier, settings.wait)
            if (spool := getattr(tier, "spool", None)) is not None:
                yield from _check_spool(spool)
    for folder in prewarmed_folders(url or settings.url):
        yield from _check_prewarmed(folder)


def _check_prewarmed(folder: Path) -> Iterator[Finding]:
    """Tell what of a prewarmed folder this machine would not use; without a GPU, any will do.

    Without Triton, its files are compared alone.
    """
    from dejavu_cache.runtime.prewarmed_binaries import loadable_manifest, problem_of
    from dejavu_cache.triton_internals.compilation import wheel
    from dejavu_cache.triton_internals.environment import current_device, current_environment

    about, has_triton = f"prewarmed {folder}", triton_version() is not None
    try:
        manifest = (loadable_manifest if has_triton else read_manifest)(folder.resolve())
    except DejavuError as error:
        yield Finding("wrong", about, f"its binaries are not used: {error}")
        return
    problems = list(find_differences(folder, manifest))
    problems += filter(None, map(problem_of, sorted(folder.joinpath(BINARIES).rglob("*"))))
    if has_triton and manifest.wheel != wheel():
        problems.append(f"its binaries are those of {manifest.wheel}, and this is {wheel()}")
    with suppress(Exception):  # drivers raise errors of many kinds
        device = current_environment(current_device()).device
        if device not in manifest.devices:
            names = ", ".join(device.name for device in manifest.devices)
            problems.append(f"it is for {names}, and this GPU is a {device.name}")
    yield from (Finding("wrong", about, problem) for problem in problems)
    if not problems:
        yield Finding("ok", about, f"{counted(len(manifest.files), 'file')}, as it was made")


def _check_policy() -> Iterator[Finding]:
    path = policy_file()
    if path is not None:
        policy = Policy.read(path)
        yield from (Finding("wrong", "policy", problem) for problem in policy.problems)
        if policy.rules or not policy.problems:
            yield Finding("ok", f"policy {path}", counted(len(policy.rules), "rule"))


def _check_answer(store: Store, wait: float) -> Finding:
    """Check a server, or another store that is no folder, with a command's patience."""
    from ...static_sets import StaticStore

    started = time.monotonic()
    try:
        amount = counted(sum(1 for _ in store.contexts()), "context")
    except (StoreError, OSError) as error:
        return Finding("wrong", store.url, str(error))
    seconds, doubt = time.monotonic() - started, ""
    if store.remote and seconds > wait:
        doubt = f"; listing them took {seconds:.2f} s, and a launch waits {wait:g} s for records"
    if isinstance(store, StaticStore):  # whose copy may serve
        try:
            store.entries(fresh=True)
        except StoreError as error:
            doubt = f", from copies: {error}"
    return Finding("note" if doubt else "ok", store.url, f"readable, {amount}{doubt}")


def _check_folder(store: FileStore, *, named: bool) -> Iterator[Finding]:
    if named and not store.root.is_dir():
        yield Finding("wrong", store.url, "no such folder: is the name right?")
        return
    if store.root.exists():
        os.scandir(store.root).close()  # raises where a search would find nothing
    problems = store.problems()
    contexts = list(store.contexts())
    records = sum(1 for context in contexts for _ in store.records(context))
    amounts = f"{counted(len(contexts), 'context')}, {counted(records, 'record')}"
    yield Finding("ok", store.url, f"readable, {amounts}")
    yield _check_writable(store)
    for path, found in problems.items():
        for problem in found:
            yield Finding("wrong", str(path), problem)
    for path in store.damaged_copies():
        text = "was damaged; mend it and `dejavu-cache import` it, or delete it"
        yield Finding("wrong", str(path), text)


def _check_spool(spool: Spool) -> Iterator[Finding]:
    """Tell what waits for a server."""
    for line in describe_waiting(spool):
        yield Finding("note", spool.server, f"{line}; `dejavu-cache sync` sends them")
    for line in describe_set_aside(spool):
        yield Finding("wrong", spool.server, f"{line}; import them elsewhere or delete them")


def _check_writable(store: FileStore) -> Finding:
    if store.read_only:
        return Finding("note", store.url, "opened for reading only")
    folder = next(path for path in (store.root, *store.root.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x" * 4096)
    except OSError as error:
        return Finding("wrong", store.url, str(describe_failure(error, folder, "written")))
    if (foreign := _find_unwritable(store.root)) is not None:
        remedy = "share the folder with a group and umask 002, or set a folder of your own"
        return Finding("wrong", store.url, f"{foreign} is another user's: {remedy}")
    return Finding(
        "ok",
        store.url,
        "writable" if folder == store.root else f"writable; made in {folder} by the first tune",
    )


def _find_unwritable(root: Path) -> str | None:
    """Return a folder below a store's, or a lock, that this user may not write."""
    for folder, _, names in os.walk(root):
        locks = [os.path.join(folder, name) for name in names if name.endswith((".lock", ".lease"))]
        for path in (folder, *locks):
            if not os.access(path, os.W_OK):
                return path
    return None
