"""`rename`: give a kernel its records back after it moved."""

from __future__ import annotations

from typing import Annotated

import typer

from dejavu_cache.errors import StoreError
from dejavu_cache.stores import Store, tiers_of
from dejavu_cache.system.notices import counted

from ..chosen_store import open_existing_store
from ..errors import PartlyDoneError
from ..kernel_names import matching_kernels
from ..kernel_rename import KernelRename, RenameCounts, apply_rename, preview_rename
from ..options import StoreOption
from ..output import say

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(rename)


def rename(
    old: Annotated[str, typer.Argument(help="The kernel's old name, or a module's: pkg.old.*")],
    new: Annotated[str, typer.Argument(help="Its new name, or the module's: pkg.new.*")],
    store: StoreOption = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Rename; else only count.")] = False,
) -> None:
    """Rename a kernel, or all kernels of a module, in a store, so that it need not be tuned again.

    Records keep their timings, winners and pins; decision trees move with them. An interrupted
    run is completed by the next.
    """
    names = KernelRename.parse(old, new)
    with open_existing_store(store, write=yes) as chosen:
        tiers = _tiers_to_rename(chosen) if yes else tiers_of(chosen)
        renamed = False
        for tier in tiers:
            counts = _rename_in(tier, names, renamed) if yes else preview_rename(tier, names)
            say(_summary(tier, names, counts, renamed=yes))
            renamed = renamed or bool(counts)
        if not renamed:
            _require_new_name(chosen, names)


def _rename_in(tier: Store, names: KernelRename, has_begun: bool) -> RenameCounts:
    """Rename kernels in one store.

    Raises:
        StoreError: nothing was renamed.
        PartlyDoneError: some of it was, or something in another store before this one.
    """
    counts = RenameCounts()
    try:
        return apply_rename(tier, names, counts)
    except StoreError as error:
        if counts:
            summary = _summary(tier, names, counts, renamed=True)
            raise PartlyDoneError(f"only {summary}: {error}") from None
        if has_begun:
            raise PartlyDoneError(str(error)) from None
        raise


def _require_new_name(store: Store, names: KernelRename) -> None:
    """Raise `NothingFoundError` unless kernels have the new name already."""
    kernels = {context.kernel.name for context in store.contexts()}
    if not any((name + ".").startswith(names.new.rstrip(".") + ".") for name in kernels):
        matching_kernels(
            kernels, f"{names.old}*" if names.old.endswith(".") else names.old, store.url
        )


def _tiers_to_rename(store: Store) -> tuple[Store, ...]:
    """Return the writable tiers; a single store even if it is read-only, so that it raises."""
    tiers = tiers_of(store)
    return tuple(tier for tier in tiers if not tier.read_only) if len(tiers) > 1 else tiers


def _summary(store: Store, names: KernelRename, counts: RenameCounts, *, renamed: bool) -> str:
    if not counts:
        return f"nothing to rename: {store.url} has nothing of {names.old}"
    amounts = (
        f"{counted(counts.contexts, 'context')} with {counted(counts.records, 'record')} "
        f"and {counted(counts.trees, 'decision tree')}"
    )
    if renamed:
        return f"{amounts} renamed from {names.old} to {names.new} in {store.url}"
    return (
        f"{amounts} would be renamed from {names.old} to {names.new} in {store.url}; "
        "repeat with --yes to rename them"
    )
