"""Completion of kernels, GPUs and namespaces in shells, from the stores that a command would ask.

Nothing is printed but candidates: a store that does not answer completes nothing. What a store
holds may be a stranger's, and the user's shell runs the line that a candidate becomes part of.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable

import typer

from dejavu_cache.model.scenario import Context
from dejavu_cache.settings import current_settings

from .kernel_names import shorten_kernels

__all__ = ["complete_devices", "complete_kernels", "complete_namespaces"]


def complete_kernels(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the kernels whose name or shortest end begins as the word does."""
    names = _safe_names(context.kernel.name for context in _contexts(ctx))
    ends = filter(_SAFE_NAME.fullmatch, shorten_kernels(names))
    fitting = [end for end in ends if end.startswith(incomplete)]
    return _as_words(fitting or [name for name in names if name.startswith(incomplete)])


def complete_devices(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the GPUs whose name contains the word."""
    names = _safe_names(context.environment.device.name for context in _contexts(ctx))
    return _as_words([name for name in names if incomplete.lower() in name.lower()])


def complete_namespaces(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return `main` and the namespaces that the settings name, if they begin as the word does."""
    from urllib.parse import parse_qs, urlsplit

    settings = current_settings()
    urls = [*settings.url.split(","), *str(ctx.params.get("store") or "").split(",")]
    named = (name for url in urls for name in parse_qs(urlsplit(url).query).get("namespace", ()))
    names = {"main", settings.namespace, *named}
    return sorted(name for name in names if name.startswith(incomplete))


_SAFE_NAME = re.compile(r"[\w.,:/@%+=<>()][\w.,:/@%+=<>() -]*")
"""A name in which no shell finds a command, an option or a pattern: zsh evaluates candidates."""


def _safe_names(names: Iterable[str]) -> list[str]:
    return sorted(filter(_SAFE_NAME.fullmatch, {*names}))


def _as_words(names: list[str]) -> list[str]:
    """Return each name as one word of bash, which takes candidates as they are; others quote."""
    if os.environ.get("_DEJAVU_CACHE_COMPLETE") != "complete_bash":
        return names
    return [re.sub(r"[<>() ]", r"\\\g<0>", name) for name in names]


def _contexts(ctx: typer.Context) -> Iterable[Context]:
    from dejavu_cache.stores import open_store

    logging.disable()  # a warning would stand among the candidates
    try:
        settings = current_settings()
        named = ctx.params.get("store")
        with open_store(str(named or settings.url or settings.default_url)) as store:
            return list(store.contexts())
    except Exception:  # whatever is wrong, the command itself will say it
        return []
    finally:
        logging.disable(logging.NOTSET)
