"""`rename`: give a kernel, or all kernels of a module, their records back after they moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from pydantic import ValidationError

from dejavu_cache.errors import SettingsError, StoreError
from dejavu_cache.model.decision_tree import Tree
from dejavu_cache.model.merge import merge_records
from dejavu_cache.model.record import Record, first_problem
from dejavu_cache.model.scenario import Context, Kernel
from dejavu_cache.stores import Store, tiers_of
from dejavu_cache.system.notices import counted

from ..chosen_store import open_existing_store
from ..errors import PartlyDoneError
from ..options import StoreOption
from ..output import say
from ..queries import matching_kernels

__all__ = ["KernelRename", "RenameCounts", "apply_rename", "register"]

_ATTEMPTS = 5
"""How often a context is copied again because another process wrote to it in the meantime."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(rename)


def rename(
    old: Annotated[
        str, typer.Argument(metavar="OLD", help="The kernel's old name, or a module's: pkg.old.*")
    ],
    new: Annotated[
        str, typer.Argument(metavar="NEW", help="Its new name, or the module's: pkg.new.*")
    ],
    store: StoreOption = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Rename; else only count.")] = False,
) -> None:
    """Rename a kernel, or all kernels of a module, in a store.

    It need not be tuned again. Records keep their timings, winners and pins; decision trees move
    with them. An interrupted run is completed by the next.
    """
    names = KernelRename.parse(old, new)
    with open_existing_store(store, write=yes) as chosen:
        tiers, renamed = tiers_of(chosen), False
        if yes and len(tiers) > 1:  # a single store that is read-only raises
            tiers = tuple(tier for tier in tiers if not tier.read_only)
        for tier in tiers:
            counts = RenameCounts()
            try:
                apply_rename(tier, names, counts, preview=not yes)
            except StoreError as error:
                if not (counts or renamed):
                    raise
                raise PartlyDoneError(
                    f"only {_summary(tier, names, counts, renamed=True)}: {error}"
                ) from None
            say(_summary(tier, names, counts, renamed=yes))
            renamed = renamed or bool(counts)
        if not renamed:
            _require_new_name(chosen, names)


def _require_new_name(store: Store, names: KernelRename) -> None:
    """Raise `NothingFoundError` unless kernels have the new name already."""
    kernels = {context.kernel.name for context in store.contexts()}
    if not any((name + ".").startswith(names.new.rstrip(".") + ".") for name in kernels):
        matching_kernels(
            kernels, f"{names.old}*" if names.old.endswith(".") else names.old, store.url
        )


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


@dataclass(frozen=True)
class KernelRename:
    """A kernel's old and new name, or the old and new prefix of all kernels in a module.

    Attributes:
        old: the module-qualified name, or a prefix that ends in a dot.
        new: likewise.
    """

    old: str
    new: str

    @classmethod
    def parse(cls, old: str, new: str) -> KernelRename:
        """Parse two names, or two prefixes that end in `.` or `.*`.

        Raises:
            SettingsError: one is a name and the other a prefix, or they are equal or empty.
        """
        old, new = (name.removesuffix("*") if name.endswith(".*") else name for name in (old, new))
        if old.endswith(".") != new.endswith("."):
            raise SettingsError(
                f"{old!r} and {new!r} must both be kernels, or both be prefixes that end in a dot"
            )
        if old == new or not old.strip(".") or not new.strip("."):
            raise SettingsError(f"{old!r} cannot be renamed to {new!r}: give two different names")
        return cls(old, new)

    def new_name(self, kernel: str) -> str | None:
        """Return a kernel's new name, or None if it keeps its name.

        Where the new prefix begins with the old one, kernels that already have the new prefix keep
        their names, so that a second run changes nothing.
        """
        if not self.old.endswith("."):
            return self.new if kernel == self.old else None
        if not kernel.startswith(self.old):
            return None
        if self.new.startswith(self.old) and kernel.startswith(self.new):
            return None
        return self.new + kernel.removeprefix(self.old)

    def renamed_context(self, context: Context) -> Context | None:
        """Return a context under the kernel's new name, or None if the kernel keeps its name.

        Raises:
            SettingsError: no kernel can have the new name.
        """
        name = self.new_name(context.kernel.name)
        if name is None:
            return None
        try:
            kernel = Kernel(name=name, source=context.kernel.source)
        except ValidationError as error:
            raise SettingsError(
                f"no kernel has a name like {name!r}: {first_problem(error)}"
            ) from None
        return Context(kernel=kernel, environment=context.environment, problem=context.problem)


@dataclass
class RenameCounts:
    """Numbers of what was, or would be, renamed in a store."""

    contexts: int = 0
    records: int = 0
    trees: int = 0

    def __bool__(self) -> bool:
        """Return whether there was anything to rename."""
        return any((self.contexts, self.records, self.trees))


def apply_rename(
    store: Store,
    rename: KernelRename,
    counts: RenameCounts | None = None,
    *,
    preview: bool = False,
) -> RenameCounts:
    """Rename kernels in one store.

    Each context is written under its new name, read back and compared before it is removed under
    its old name. An interrupted run leaves a context under both names, and the next run completes
    it. What the store already holds under the new name is merged as `put` does.

    Args:
        store: the store.
        rename: the old and the new name.
        counts: what was renamed is added to it, also before an error.
        preview: whether to count what would be renamed, and to write nothing.

    Raises:
        ReadOnlyStoreError: the store may only be read.
        StoreError: the store cannot be written, or does not return what was written to it; the
            records are still there under their old name.
    """
    counts = RenameCounts() if counts is None else counts
    for context, renamed in _affected_contexts(store, rename):
        counts.records += (
            len(list(store.records(context))) if preview else _move_records(store, context, renamed)
        )
        counts.contexts += 1
    for tree in _affected_trees(store, rename):
        if not preview:
            _move_tree(store, tree, rename)
        counts.trees += 1
    return counts


def _affected_contexts(store: Store, rename: KernelRename) -> list[tuple[Context, Context]]:
    contexts = list(store.contexts(None if rename.old.endswith(".") else rename.old))
    pairs = [(context, rename.renamed_context(context)) for context in contexts]
    return [(context, renamed) for context, renamed in pairs if renamed is not None]


def _affected_trees(store: Store, rename: KernelRename) -> list[Tree]:
    trees = store.trees(None if rename.old.endswith(".") else rename.old)
    return [found.tree for found in trees if rename.renamed_context(found.tree.context)]


def _move_records(store: Store, context: Context, renamed: Context) -> int:
    """Copy a context's records to another context, verify the copy and remove the originals."""
    records = list(store.records(context))
    for _ in range(_ATTEMPTS):
        store.put(renamed, records, now=True)
        pins = [
            Record(scenario=record.scenario, pin=record.pin) for record in records if record.pinned
        ]
        if pins:  # a server takes pins apart from measurements, in `put` only
            store.put(renamed, pins)
        written = {record.scenario: record for record in store.records(renamed)}
        for record in records:
            if not _holds(written.get(record.scenario), record):
                raise StoreError(
                    f"{store.url} does not return all of {renamed.kernel.name}{record.scenario} as "
                    "it was written; the records stay under their old name"
                )
        latest = list(store.records(context))
        if latest == records:
            store.delete(context, [record.scenario for record in records])
            return len(records)
        records = latest
    raise StoreError(
        f"{context.kernel.name} is being tuned: its records are under both names; "
        "stop its tuning, and rename again"
    )


def _holds(written: Record | None, record: Record) -> bool:
    """Return whether a written record has everything of the record it was copied from."""
    return (
        written is not None
        and record.by_config.keys() <= written.by_config.keys()
        and (record.winner is None or written.winner is not None)
        and (record.pinned is None or written.pinned is not None)
        and merge_records(written, record).launches == written.launches
    )


def _move_tree(store: Store, tree: Tree, rename: KernelRename) -> None:
    """Write a tree under its new name, unless a newer one is there, and remove the old one."""
    renamed = rename.renamed_context(tree.context)
    assert renamed is not None
    rivals = [found.tree for found in store.trees(renamed.kernel.name)]
    if not any(rival.context == renamed and rival.at > tree.at for rival in rivals):
        store.put_tree(tree.model_copy(update={"context": renamed}))
    store.delete_tree(tree.context)
