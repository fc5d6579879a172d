"""`export`, `import` and `merge`: copies of records between stores and files."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from dejavu_cache.errors import SettingsError
from dejavu_cache.integrations.foreign_files import read_foreign_files, report_matches
from dejavu_cache.model.foreign_result import ForeignResult
from dejavu_cache.model.record import record_set_line
from dejavu_cache.model.scenario import Context
from dejavu_cache.stores import Store
from dejavu_cache.system.notices import counted
from dejavu_cache.triton_internals.environment import triton_version

from ..chosen_store import open_chosen_store, open_complete_store
from ..errors import NothingFoundError
from ..options import KernelOption, StoreOption, refuse_empty
from ..output import note, say, say_indented
from ..output_file import open_output
from ..record_copy import merge_acknowledged
from ..record_files import RecordText, read_record_texts
from ..record_queries import contexts_of
from ..table_export import export_tables

__all__ = ["register"]


def _folder_option(text: str) -> Any:
    return typer.Option(metavar="DIR", help=text, callback=refuse_empty)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("export")(export_records)
    app.command("import")(import_records)
    app.command()(merge)


def export_records(
    file: Annotated[
        str, typer.Argument(help="Where to; - is standard output.", callback=refuse_empty)
    ] = "-",
    vllm: Annotated[str, _folder_option("Write tables for VLLM_TUNED_CONFIG_FOLDER.")] = "",
    sglang: Annotated[str, _folder_option("Write tables for SGLANG_MOE_CONFIG_DIR.")] = "",
    hf: Annotated[str, _folder_option("Write tables for kernels-community/moe.")] = "",
    triton: Annotated[
        str,
        typer.Option(metavar="VERSION", help="Of the tables; any: the newest. Default: installed."),
    ] = "",
    kernel: KernelOption = "",
    store: StoreOption = "",
) -> None:
    """Write all records as JSON lines: a context and its records per line, in a fixed order.

    An earlier FILE is replaced once the new one is complete. With --vllm, --sglang or --hf, the
    winners become tuned tables in the engine's own format, also those that were imported.
    """
    engines = {"vllm": vllm, "sglang": sglang, "hf": hf}
    folders = {engine: Path(folder) for engine, folder in engines.items() if folder}
    if folders:
        if file != "-" or kernel:
            raise SettingsError(
                "--vllm, --sglang and --hf write all tables: leave out FILE and --kernel"
            )
        with open_complete_store(store) as source:
            for engine, folder in folders.items():
                export_tables(source, engine, folder, triton)
        return
    with open_output(file) as out, open_complete_store(store) as source:
        contexts = contexts_of(source, kernel)
        for context in contexts:
            out.writelines(record_set_line(context, source.records(context)))
    if file != "-":
        note(f"{_count_kernels(contexts)} of {source.url} written to {file}")


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
    vllm: Annotated[str, _folder_option("Tuned tables of vLLM or SGLang.")] = "",
    rename: Annotated[
        list[str] | None,
        typer.Option(metavar="OLD=NEW", help="What your kernel calls fused_moe_kernel, E, N or M."),
    ] = None,
    store: StoreOption = "",
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
            texts = read_record_texts(file)
            if not texts:
                raise NothingFoundError(f"{file} holds no records")
            merge_acknowledged(map(RecordText.parse, texts), target)
        for origin, folder in folders.items():
            results = _rename_results(read_foreign_files(origin, Path(folder)), rename or [])
            if not results:
                raise NothingFoundError(f"{folder} has no results of {origin}")
            target.put_imported(results)
            functions = ", ".join(sorted({result.function for result in results}))
            amount = counted(len(results), "result")
            say(f"{amount} of {origin} for {functions} kept in {target.url}")
            for line in report_matches(results, triton_version() or ""):
                say_indented(line)


def merge(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE…", help="Stores to read.", callback=refuse_empty),
    ],
    into: Annotated[
        str,
        typer.Option("--into", metavar="URL", help="The store to write.", callback=refuse_empty),
    ],
) -> None:
    """Merge stores into one; prints how many records were new, and how many known already.

    All stores must be readable before anything is written.
    """
    with ExitStack() as stack:
        opened = [stack.enter_context(open_complete_store(url)) for url in sources]
        empty = [source for source in opened if next(source.contexts(), None) is None]
        if len(empty) == len(opened):
            raise NothingFoundError(f"{', '.join(source.url for source in opened)}: no records")
        for source in empty:
            note(f"{source.url} holds no records")
        target = stack.enter_context(open_chosen_store(into))
        merge_acknowledged(chain.from_iterable(map(Store.record_sets, opened)), target)


def _count_kernels(contexts: list[Context]) -> str:
    kernels = len({context.kernel.name for context in contexts})
    return f"{counted(len(contexts), 'context')} of {counted(kernels, 'kernel')}"


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
