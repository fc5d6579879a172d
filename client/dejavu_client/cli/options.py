"""Arguments and options that several commands share, and the functions that read their values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from dejavu_cache.errors import SettingsError
from dejavu_cache.stores import Store, TieredStore, open_store
from dejavu_cache.stores.default import default_store

__all__ = [
    "DeviceOption",
    "JsonOption",
    "KernelArgument",
    "ScenarioOption",
    "StoreOption",
    "TritonOption",
    "is_server_url",
    "open_chosen_store",
    "parse_assignments",
    "split_urls",
]

KernelArgument = Annotated[
    str, typer.Argument(help="The kernel's module and qualified name, or the end of it.")
]
StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        help="A folder or a URL; else DEJAVU_CACHE_URL, else your own cache.",
    ),
]
ScenarioOption = Annotated[
    list[str] | None,
    typer.Option(
        "--scenario", metavar="NAME=VALUE", help="Only scenarios with this value; may repeat."
    ),
]
DeviceOption = Annotated[
    str, typer.Option("--device", metavar="TEXT", help="Only GPUs whose name contains this.")
]
TritonOption = Annotated[
    str, typer.Option("--triton", metavar="VERSION", help="Only this version of Triton.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

COMMAND_WAIT = 30.0
"""Seconds that a command waits for a server; a launch waits less."""


def open_chosen_store(url: str) -> Store:
    """Open the store that `--store` names, or the user's default store if it is empty."""
    store = open_store(url) if url else default_store()
    for tier in store.tiers if isinstance(store, TieredStore) else [store]:
        if hasattr(tier, "wait"):
            tier.wait = COMMAND_WAIT
    return store


def split_urls(urls: str) -> list[str]:
    """Return the URLs of a comma-separated list, without empty ones."""
    return [url.strip() for url in urls.split(",") if url.strip()]


def is_server_url(url: str) -> bool:
    """Return whether a store's URL is a server's."""
    return url.startswith(("https://", "http://"))


def parse_assignments(texts: Iterable[str] | None, option: str) -> dict[str, str]:
    """Parse the `NAME=VALUE` texts of a repeated option.

    Args:
        texts: the option's values; None if it was not given.
        option: the option's name, for the error message.

    Raises:
        SettingsError: a text has no `=`.
    """
    assignments = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"{option} {text!r}: write NAME=VALUE")
        assignments[name] = value
    return assignments
