"""`export`, `import`, `merge` and `freeze`: copies of records between stores and files."""

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
from dejavu_cache.safe_files import open_to_write
from dejavu_cache.stores import Store, open_store
from dejavu_cache.stores.file_layout import Page
from dejavu_cache.stores.snapshot import freeze as write_snapshot

from ..options import StoreOption, open_chosen_store
from ..output import say

__all__ = ["register"]

ConflictOption = Annotated[
    str,
    typer.Option(
        "--on-conflict",
        metavar="RULE",
        help="newest, fastest or fail: for two timings of one config.",
    ),
]


def _folder_option(text: str) -> Any:
    return typer.Option(metavar="DIR", help=text)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("export")(export_records)
    app.command("import")(import_records)
    app.command()(merge)
    app.command()(freeze)


def export_records(
    file: Annotated[str, typer.Argument(help="Where to; - is standard output.")] = "-",
    kernel: Annotated[str, typer.Option(help="Only this kernel.")] = "",
    store: StoreOption = "",
) -> None:
    """Write all records as JSON lines: a context and its records per line, in a fixed order."""
    with (
        open_chosen_store(store) as source,
        nullcontext(sys.stdout) if file == "-" else _open_for_writing(file) as out,
    ):
        for record_set in source.record_sets(kernel or None):
            out.write(canonical_json(record_set) + "\n")


def import_records(
    file: Annotated[
        str,
        typer.Argument(help="An export, a record file, or a folder of them; - is standard input."),
    ] = "",
    triton_cache: Annotated[
        str, _folder_option("Triton's cache folder: results of TRITON_CACHE_AUTOTUNING.")
    ] = "",
    triton_dejavu: Annotated[str, _folder_option("A folder of triton-dejavu.")] = "",
    fla: Annotated[str, _folder_option("flash-linear-attention's configs.")] = "",
    vllm: Annotated[str, _folder_option("vLLM's fused-MoE configs.")] = "",
    rename: Annotated[
        list[str] | None,
        typer.Option(metavar="OLD=NEW", help="What your kernel calls fused_moe_kernel, E, N or M."),
    ] = None,
    store: StoreOption = "",
    on_conflict: ConflictOption = "newest",
) -> None:
    """Merge records from a file into a store, or take over another autotuner's results.

    All input is read before anything is written. Triton's own results count as measured by a
    kernel of the same code, configs and compiler. Those of other tools stand in for scenarios that
    are not tuned, as `imported`.
    """
    options = {"triton": triton_cache, "triton-dejavu": triton_dejavu, "fla": fla, "vllm": vllm}
    folders = {origin: folder for origin, folder in options.items() if folder}
    if len(folders) + bool(file) != 1:
        raise SettingsError(
            "name one thing to import: a FILE, --triton-cache, --triton-dejavu, --fla or --vllm"
        )
    with open_chosen_store(store) as target:
        if file:
            _merge_into(target, list(_read_record_sets(file)), _parse_rule(on_conflict))
        for origin, folder in folders.items():
            results = _rename_results(read_foreign_files(origin, Path(folder)), rename or [])
            target.put_imported(results)
            functions = ", ".join(sorted({result.function for result in results}))
            say(
                f"{len(results)} results of {origin} for {functions or 'nothing'} "
                f"kept in {target.url}"
            )


def merge(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE…", help="Stores to read.")],
    into: Annotated[str, typer.Option("--into", metavar="URL", help="The store to write.")],
    on_conflict: ConflictOption = "newest",
) -> None:
    """Merge stores into one."""
    with open_store(into) as target:
        for url in sources:
            with open_store(url) as source:
                _merge_into(target, source.record_sets(), _parse_rule(on_conflict))


def freeze(
    folder: Annotated[Path, typer.Argument(help="Where the snapshot is written.")],
    kernel: Annotated[str, typer.Option(help="Only this kernel.")] = "",
    store: StoreOption = "",
) -> None:
    """Write a snapshot of a store, named by its content; prints the URL by which a job uses it."""
    with open_chosen_store(store) as source:
        say(write_snapshot(source, folder, kernel or None).url)


def _rename_results(results: list[ForeignResult], changes: list[str]) -> list[ForeignResult]:
    if not all(change.count("=") == 1 for change in changes):
        raise SettingsError(f"--rename takes OLD=NEW, not {', '.join(changes)}")
    names = dict(change.split("=") for change in changes)
    return [
        result.model_copy(
            update={
                "function": names.get(result.function, result.function),
                "named": {names.get(name, name): value for name, value in result.named.items()},
            }
        )
        for result in results
    ]


def _merge_into(store: Store, record_sets: Iterable[RecordSet], rule: OnConflict) -> None:
    count = 0
    for record_set in record_sets:
        try:
            store.put(record_set.context, record_set.records, rule)
        except MergeConflictError as error:
            say(f"stopped at {record_set.context.kernel.name}: {error}")
            raise typer.Exit(1) from None
        count += len(record_set.records)
    say(f"{count} records merged into {store.url}")


def _parse_rule(text: str) -> OnConflict:
    rules: dict[str, OnConflict] = {"newest": "newest", "fastest": "fastest", "fail": "fail"}
    if text not in rules:
        raise SettingsError(f"--on-conflict {text!r}: choose newest, fastest or fail")
    return rules[text]


def _read_record_sets(file: str) -> Iterator[RecordSet]:
    path = Path(file)
    if file != "-" and path.is_dir():
        for member in sorted(path.rglob("*.json")):
            yield from _read_record_sets(str(member))
        return
    try:
        text = sys.stdin.read() if file == "-" else path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DamagedRecordsError(f"{file} is damaged: {error}; nothing was imported") from None
    # A store's own file begins with its format, and a line of an export with its context.
    if text.startswith('{"format"') and "\n" in text.strip():
        page = Page.parse(text, file)
        yield RecordSet(context=page.context, records=tuple(page.records(file)))
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield _parse_line(line, f"{file}, line {number}")


def _parse_line(line: str, position: str) -> RecordSet:
    try:
        record_set = RecordSet.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise DamagedRecordsError(
            f"{position}: {field}: {first['msg']}; nothing was imported"
        ) from None
    if record_set.format > FORMAT:
        raise NewerFormatError(position, record_set.format, FORMAT)
    return record_set


def _open_for_writing(file: str):  # type: ignore[no-untyped-def]
    try:
        return open(open_to_write(Path(file)), "w", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{file} cannot be written: {error.strerror}") from None
