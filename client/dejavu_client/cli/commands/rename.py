"""`rename`: give a kernel, or all kernels of a module, their records back after they moved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer
from pydantic import ValidationError

from dejavu_cache.errors import SettingsError, StoreError
from dejavu_cache.model.merge import merge_records
from dejavu_cache.model.record import Record, first_problem
from dejavu_cache.model.scenario import Context, Kernel
from dejavu_cache.stores import Store, tiers_of
from dejavu_cache.system.notices import counted

from ..application import app
from ..chosen_store import open_existing_store
from ..options import StoreOption
from ..output import say
from ..queries import matching_kernels


@app.command()
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

    It need not be tuned again. Records keep their timings, winners and pins. An interrupted run is
    completed by the next.
    """
    names = KernelRename.parse(old, new)
    with open_existing_store(store, write=yes) as chosen:
        tiers, done = tiers_of(chosen), 0
        if yes and len(tiers) > 1:  # a single store that is read-only raises
            tiers = tuple(tier for tier in tiers if not tier.read_only)
        for tier in tiers:
            for line in apply_rename(tier, names, preview=not yes):
                say(f"{tier.url}: {line}")
                done += 1
        if not done:
            _require_new_name(chosen, names)
            say(f"nothing to rename: {chosen.url} has nothing of {names.old}")
        elif not yes:
            say("repeat with --yes to rename them")


def _require_new_name(store: Store, names: KernelRename) -> None:
    """Raise `NothingFoundError` unless kernels have the new name already."""
    kernels = {context.kernel.name for context in store.contexts()}
    if not any((name + ".").startswith(names.new.rstrip(".") + ".") for name in kernels):
        matching_kernels(
            kernels, f"{names.old}*" if names.old.endswith(".") else names.old, store.url
        )


@dataclass(frozen=True)
class KernelRename:
    """A kernel's old and new name, or a module's old and new prefix, each with its last dot."""

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
            problem = first_problem(error)
            raise SettingsError(f"no kernel has a name like {name!r}: {problem}") from None
        return Context(kernel=kernel, environment=context.environment, problem=context.problem)


def apply_rename(store: Store, rename: KernelRename, *, preview: bool = False) -> Iterator[str]:
    """Rename kernels in one store, and yield a line about each context; a preview writes nothing.

    Each context is written under its new name, read back and compared before it is removed under
    its old name. An interrupted run leaves a context under both names, and the next run completes
    it. What the store already holds under the new name is merged as `put` does.

    Raises:
        ReadOnlyStoreError: the store may only be read.
        StoreError: the store cannot be written, or does not return what was written to it; the
            records are still there under their old name.
    """
    state = "would be renamed to" if preview else "renamed to"
    contexts = list(store.contexts())
    present = {context.kernel.name for context in contexts}
    for context, renamed in [(context, rename.renamed_context(context)) for context in contexts]:
        if renamed is None:
            continue
        records = list(store.records(context))
        if not preview:
            _move_records(store, context, renamed, records)
        name, device = context.kernel.name, context.environment.device.name
        content = f"{name} on {device} ({counted(len(records), 'record')})"
        joined = ", which has records already" if renamed.kernel.name in present else ""
        yield f"{content} {state} {renamed.kernel.name}{joined}"


def _move_records(store: Store, context: Context, renamed: Context, records: list[Record]) -> None:
    """Copy a context's records to another context, verify the copy and remove the originals."""
    store.put(renamed, records, now=True)
    pins = [Record(scenario=record.scenario, pin=record.pin) for record in records if record.pinned]
    if pins:  # a server takes pins apart from measurements, in `put` only
        store.put(renamed, pins)
    written = {record.scenario: record for record in store.records(renamed)}
    for record in records:
        if not _holds(written.get(record.scenario), record):
            raise StoreError(
                f"{store.url} does not return all of {renamed.kernel.name}{record.scenario} as "
                "it was written; the records stay under their old name"
            )
    if list(store.records(context)) != records:
        raise StoreError(
            f"{context.kernel.name} is being tuned: its records are under both names; "
            "stop its tuning, and rename again"
        )
    store.delete(context, [record.scenario for record in records])


def _holds(written: Record | None, record: Record) -> bool:
    """Return whether a written record has everything of the record it was copied from."""
    return (
        written is not None
        and record.by_config.keys() <= written.by_config.keys()
        and (record.winner is None or written.winner is not None)
        and (record.pinned is None or written.pinned is not None)
        and merge_records(written, record).launches == written.launches
    )
