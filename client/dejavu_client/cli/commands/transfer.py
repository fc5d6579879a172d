"""`export`, `import` and `merge`: copies of records between stores and files."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.record import record_set_line
from dejavu_cache.model.scenario import Context
from dejavu_cache.stores import Store
from dejavu_cache.system.notices import counted

from ..chosen_store import open_chosen_store, open_complete_store
from ..errors import NothingFoundError
from ..options import KernelOption, StoreOption, refuse_empty
from ..output import note
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
    triton: Annotated[
        str, typer.Option(metavar="VERSION", help="Of the tables. Default: the installed one.")
    ] = "",
    kernel: KernelOption = "",
    store: StoreOption = "",
) -> None:
    """Write all records as JSON lines: a context and its records per line, in a fixed order.

    An earlier FILE is replaced once the new one is complete. With --vllm or --sglang, the winners
    of fused experts become tuned tables in the engine's own format.
    """
    engines = {"vllm": vllm, "sglang": sglang}
    folders = {engine: Path(folder) for engine, folder in engines.items() if folder}
    if folders:
        if file != "-" or kernel:
            raise SettingsError("--vllm and --sglang write all tables: leave out FILE and --kernel")
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
        typer.Argument(
            help="An export, a record file, or a folder of them; - is standard input.",
            callback=refuse_empty,
        ),
    ],
    store: StoreOption = "",
) -> None:
    """Merge records from a file into a store.

    All input is read before anything is written.
    """
    with open_chosen_store(store) as target:
        texts = read_record_texts(file)
        if not texts:
            raise NothingFoundError(f"{file} holds no records")
        merge_acknowledged(map(RecordText.parse, texts), target)


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
