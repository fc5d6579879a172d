"""`export`, `import` and `merge`: records from store to store."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from dejavu_cache.errors import (
    DamagedRecordsError,
    MergeConflictError,
    NewerFormatError,
    SettingsError,
)
from dejavu_cache.integrations.foreign_files import read_foreign_files
from dejavu_cache.model.foreign_result import ForeignResult
from dejavu_cache.model.merge import OnConflict
from dejavu_cache.model.record import FORMAT, RecordSet
from dejavu_cache.model.scenario import canonical_json
from dejavu_cache.stores import Store, open_store
from dejavu_cache.stores.file_layout import Page

from ..output import StoreOption, open_chosen_store, say

__all__ = ["register"]

ConflictOption = Annotated[
    str,
    typer.Option(
        "--on-conflict",
        metavar="RULE",
        help="newest, fastest or fail: for two timings of one config.",
    ),
]


def _other(text: str) -> Any:
    return typer.Option(metavar="DIR", help=text)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("export")(export_records)
    app.command("import")(import_records)
    app.command()(merge)


def export_records(
    file: Annotated[str, typer.Argument(help="Where to; - is standard output.")] = "-",
    kernel: Annotated[str, typer.Option(help="Only this kernel.")] = "",
    store: StoreOption = "",
) -> None:
    """Write all records as JSON lines: a context and its records a line, always in the same order."""
    with (
        open_chosen_store(store) as held,
        nullcontext(sys.stdout) if file == "-" else _writing(file) as out,
    ):
        for whole in held.record_sets(kernel or None):
            out.write(canonical_json(whole) + "\n")


def import_records(
    file: Annotated[
        str,
        typer.Argument(help="An export, a record file, or a folder of them; - is standard input."),
    ] = "",
    triton_cache: Annotated[
        str, _other("Triton's cache folder: results of TRITON_CACHE_AUTOTUNING.")
    ] = "",
    triton_dejavu: Annotated[str, _other("A folder of triton-dejavu.")] = "",
    fla: Annotated[str, _other("flash-linear-attention's configs.")] = "",
    vllm: Annotated[str, _other("vLLM's fused-MoE configs.")] = "",
    rename: Annotated[
        list[str] | None,
        typer.Option(metavar="OLD=NEW", help="What your kernel calls fused_moe_kernel, E, N or M."),
    ] = None,
    store: StoreOption = "",
    on_conflict: ConflictOption = "newest",
) -> None:
    """Merge records from a file into a store, or take over what another tool found; all is read before any is written.

    Triton's own results count as measured by a kernel of the same code, configs and compiler. The others' stand in for
    scenarios that are not tuned, as `imported`.
    """
    folders = {"triton": triton_cache, "triton-dejavu": triton_dejavu, "fla": fla, "vllm": vllm}
    given = {origin: folder for origin, folder in folders.items() if folder}
    if len(given) + bool(file) != 1:
        raise SettingsError(
            "name one thing to import: a FILE, --triton-cache, --triton-dejavu, --fla or --vllm"
        )
    with open_chosen_store(store) as held:
        if file:
            _merge_into(held, list(_read(file)), _rule(on_conflict))
        for origin, folder in given.items():
            found = _renamed(read_foreign_files(origin, Path(folder)), rename or [])
            held.put_imported(found)
            functions = sorted({each.function for each in found})
            say(
                f"{len(found)} results of {origin} for {', '.join(functions) or 'nothing'} kept in {held.url}"
            )


def _renamed(found: list[ForeignResult], changes: list[str]) -> list[ForeignResult]:
    if not all(change.count("=") == 1 for change in changes):
        raise SettingsError(f"--rename takes OLD=NEW, not {', '.join(changes)}")
    new = dict(change.split("=") for change in changes)
    return [
        each.model_copy(
            update={
                "function": new.get(each.function, each.function),
                "named": {new.get(name, name): value for name, value in each.named.items()},
            }
        )
        for each in found
    ]


def merge(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE…", help="Stores to read.")],
    into: Annotated[str, typer.Option("--into", metavar="URL", help="The store to write.")],
    on_conflict: ConflictOption = "newest",
) -> None:
    """Merge stores into one."""
    with open_store(into) as held:
        for source in sources:
            with open_store(source) as other:
                _merge_into(held, other.record_sets(), _rule(on_conflict))


def _merge_into(store: Store, sets: Iterable[RecordSet], rule: OnConflict) -> None:
    count = 0
    for whole in sets:
        try:
            store.put(whole.context, whole.records, rule)
        except MergeConflictError as error:
            say(f"stopped at {whole.context.kernel.name}: {error}")
            raise typer.Exit(1) from None
        count += len(whole.records)
    say(f"{count} records merged into {store.url}")


def _rule(text: str) -> OnConflict:
    rules: dict[str, OnConflict] = {"newest": "newest", "fastest": "fastest", "fail": "fail"}
    if text not in rules:
        raise SettingsError(f"--on-conflict {text!r}: choose newest, fastest or fail")
    return rules[text]


def _read(file: str) -> Iterator[RecordSet]:
    path = Path(file)
    if file != "-" and path.is_dir():
        for each in sorted(path.rglob("*.json")):
            yield from _read(str(each))
        return
    try:
        text = sys.stdin.read() if file == "-" else path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}") from None
    if text.startswith('{"format"') and "\n" in text.strip():
        page = Page.parse(text, file)
        yield RecordSet(context=page.context, records=tuple(page.records(file)))
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield _read_line(line, f"{file}, line {number}")


def _read_line(line: str, where: str) -> RecordSet:
    try:
        whole = RecordSet.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise DamagedRecordsError(
            f"{where}: {place}: {first['msg']}; nothing was imported"
        ) from None
    if whole.format > FORMAT:
        raise NewerFormatError(where, whole.format, FORMAT)
    return whole


def _writing(file: str):  # type: ignore[no-untyped-def]
    try:
        return open(file, "w", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{file} cannot be written: {error.strerror}") from None
