"""`doctor`: what is configured, what is wrong, and how to mend it."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, NamedTuple

import typer

import dejavu_cache
from dejavu_cache.errors import DejavuError, StoreError
from dejavu_cache.policy import Policy
from dejavu_cache.settings import PREFIX, Settings, policy_file
from dejavu_cache.stores import FileStore, Store, TieredStore, open_store

from ..output import JsonOption, StoreOption, say, show_json

__all__ = ["register"]


class Finding(NamedTuple):
    """One thing that was looked at."""

    state: Literal["ok", "note", "wrong"]
    about: str
    text: str


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(doctor)


def doctor(store: StoreOption = "", as_json: JsonOption = False) -> None:
    """Say what is configured, reachable and writable, what is wrong, and how to mend it; exits 1 if something is."""
    findings = [*_versions(), *_settings(store)]
    if as_json:
        show_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            say(f"{finding.state:6}{finding.about}: {finding.text}")
    if any(finding.state == "wrong" for finding in findings):
        raise typer.Exit(1)


def _versions() -> Iterator[Finding]:
    yield Finding(
        "ok", "dejavu-cache", f"{dejavu_cache.__version__} on Python {platform.python_version()}"
    )
    for package, need in (
        ("pydantic", True),
        ("triton", False),
        ("torch", False),
        ("sqlalchemy", False),
    ):
        try:
            yield Finding("ok", package, version(package))
        except PackageNotFoundError:
            remedy = (
                "pip install 'dejavu-cache[server]'"
                if package == "sqlalchemy"
                else "pip install 'dejavu-cache[gpu]'"
            )
            yield Finding("wrong" if need else "note", package, f"not installed ({remedy})")
    yield _device()


def _device() -> Finding:
    try:
        from dejavu_cache.triton_internals.environment import (
            INTERPRETER_INDEX,
            current_device,
            current_environment,
            is_interpreting,
        )

        environment = current_environment(
            INTERPRETER_INDEX if is_interpreting() else current_device()
        )
    except Exception as error:  # whatever a driver may say
        return Finding(
            "note",
            "device",
            f"none that Triton can use ({error}); records can be read and moved all the same",
        )
    device = environment.device
    return Finding(
        "ok",
        "device",
        f"{device.name}, {device.arch}, {device.units} units, {device.memory_gib} GiB, {environment.codegen}",
    )


def _settings(url: str) -> Iterator[Finding]:
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in known:
            yield Finding("wrong", name, f"no such setting; known are {', '.join(sorted(known))}")
    try:
        settings = Settings.from_environment()
        store = open_store(url or settings.url or settings.default_url)
    except DejavuError as error:
        yield Finding("wrong", "settings", str(error))
        return
    yield Finding("ok", "mode", settings.mode.value)
    yield from _policy(store)
    for tier in store.tiers if isinstance(store, TieredStore) else [store]:
        yield from _store(tier)


def _policy(store: Store) -> Iterator[Finding]:
    path = policy_file()
    if path is None:
        return
    policy = Policy.read(path)
    yield from (Finding("wrong", "policy", problem) for problem in policy.problems)
    try:
        kernels = {context.kernel.name for context in store.contexts()}
    except (StoreError, OSError):
        return
    for kernel in kernels:
        policy.rule_for(kernel)
    for rule in policy.rules:
        state: Literal["ok", "note"] = "note" if rule.match in policy.unmatched else "ok"
        said = (
            "matches no kernel that has records" if state == "note" else "matches recorded kernels"
        )
        yield Finding(state, f"policy {path}", f"{rule.match!r} {said}")


def _store(store: Store) -> Iterator[Finding]:
    try:
        contexts = list(store.contexts())
        records = sum(1 for context in contexts for _ in store.records(context))
        yield Finding("ok", store.url, f"readable, {len(contexts)} contexts, {records} records")
    except (StoreError, OSError) as error:
        yield Finding("wrong", store.url, str(error))
    if isinstance(store, FileStore):
        yield _writable(store)
        for path, reason in store.unreadable().items():
            yield Finding("wrong", str(path), f"passed over: {reason}")
        for path in store.set_aside():
            yield Finding(
                "wrong",
                str(path),
                "was damaged and set aside; mend it and `dejavu-cache import` it, or delete it",
            )


def _writable(store: FileStore) -> Finding:
    if store.read_only:
        return Finding("note", store.url, "opened for reading only")
    folder = next(path for path in (store.root, *store.root.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x" * 4096)
    except OSError as error:
        remedy = f"make {folder} writable, or set {PREFIX}URL to a folder that is"
        return Finding("wrong", store.url, f"cannot be written: {error.strerror}; {remedy}")
    return Finding(
        "ok",
        store.url,
        "writable" if folder == store.root else f"writable; made in {folder} by the first tune",
    )
