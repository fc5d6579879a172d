"""`export` and `import`: copies of records between stores and files, and tables for engines."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Annotated

import typer

from dejavu_cache.engines.tuned_tables import TABLE_FILES, collect_tables, write_table
from dejavu_cache.errors import DamagedRecordsError, NewerFormatError, SettingsError, StoreError
from dejavu_cache.model.record import RecordSet, record_set_line
from dejavu_cache.model.scenario import Context
from dejavu_cache.stores import PATIENCE, FileStore, Store, TieredStore, tiers_of
from dejavu_cache.stores.file_layout import read_set
from dejavu_cache.system.notices import counted
from dejavu_cache.system.safe_files import MAX_BYTES, read_file
from dejavu_cache.triton_internals.environment import triton_version

from ..application import app
from ..chosen_store import open_chosen_store, open_complete_store
from ..errors import NothingFoundError, PartlyDoneError
from ..options import DeviceOption, KernelOption, StoreOption, text_argument, text_option
from ..output import note, open_output, say
from ..queries import contexts_of
from ..record_copy import for_strangers, merge_acknowledged


@app.command("export")
def export_records(
    file: Annotated[str, text_argument("FILE", "- is standard output.")] = "-",
    sign: Annotated[str, typer.Option(metavar="PEM", help="Write a folder for strangers.")] = "",
    new_key: Annotated[bool, typer.Option("--new-key", help="Make the key of --sign.")] = False,
    recall_all: Annotated[
        bool, typer.Option("--recall-all", help="Recall all that --sign signed.")
    ] = False,
    vllm: Annotated[str, text_option("DIR", "Write tables for VLLM_TUNED_CONFIG_FOLDER.")] = "",
    sglang: Annotated[str, text_option("DIR", "Write tables for SGLANG_MOE_CONFIG_DIR.")] = "",
    triton: Annotated[
        str,
        typer.Option(
            metavar="VERSION", help="The tables' version of Triton; else the installed one."
        ),
    ] = "",
    kernel: KernelOption = "",
    device: DeviceOption = "",
    store: StoreOption = "",
) -> None:
    """Write all records as JSON lines, a signed set for strangers, or tables for engines.

    A line is a context and its records, in the same order always; no stranger's beside your own. An
    earlier FILE is replaced once the new one is complete. With --vllm or --sglang, the winners of
    fused experts become tuned tables in the engine's own format. With --sign, FILE is a folder for
    a web server, or oci://host/repository:tag; the set has no names of users, hosts and folders.
    """
    engines = {"vllm": vllm, "sglang": sglang}
    folders = {engine: Path(folder) for engine, folder in engines.items() if folder}
    if folders:
        if file != "-" or kernel or device or sign:
            raise SettingsError("--vllm and --sglang write all tables, and take --triton alone")
        with open_complete_store(store) as source:
            for engine, folder in folders.items():
                _export_tables(source, engine, folder, triton)
        return
    if sign or new_key or recall_all or "://" in file:
        if recall_all and (kernel or device or store):
            raise SettingsError("--recall-all recalls all: leave out --kernel, --device, --store")
        with open_complete_store("memory://" if recall_all else store) as source:
            contexts = [] if recall_all else contexts_of(source, kernel, device)
            if not (contexts or recall_all):
                raise NothingFoundError(f"{source.url} has no such records, so {file} stays as is")
            _export_signed(source, contexts, file, sign, new_key)
        return
    with open_output(file) as out, open_complete_store(store) as opened:
        own = [tier for tier in tiers_of(opened) if not tier.keeps_copies]  # and no stranger's
        source = TieredStore(own, strict=True) if len(own) > 1 else next(iter(own), opened)
        contexts = contexts_of(source, kernel, device)
        if not contexts:
            raise NothingFoundError(f"{source.url} has no such records, so {file} stays as is")
        for context in contexts:
            out.writelines(record_set_line(context, source.records(context)))
    if file != "-":
        note(f"{_count_kernels(contexts)} of {source.url} written to {file}")


def _export_signed(
    source: Store, contexts: list[Context], folder: str, key_file: str, is_new: bool
) -> None:
    """Publish the records of some contexts, and print who may read them how."""
    is_artifact = folder.startswith("oci://")
    if folder == "-" or not key_file or ("://" in folder and not is_artifact):
        raise SettingsError("a signed set needs a folder and a key: export FOLDER --sign PEM")
    place = None if is_artifact else Path(folder).resolve()
    for tier in tiers_of(source):
        if tier.keeps_copies:
            raise SettingsError(f"{source.url} has a stranger's set: name your own by --store")
        if place and isinstance(tier, FileStore) and place.is_relative_to(tier.root.resolve()):
            raise SettingsError(f"{folder} is in {tier.url}: name a folder outside of that store")
    # It imports httpx, which `export` else does not need.
    from ...static_sets import make_key, publish
    from ...static_sets.registry import Registry

    if is_new and not Path(key_file).resolve().is_relative_to(Path(folder).resolve()):
        make_key(Path(key_file))  # one that would be served is refused below
    sets = (
        RecordSet(context=context, records=tuple(map(for_strangers, source.records(context))))
        for context in contexts
    )
    if is_artifact:
        public = Registry(folder, PATIENCE).publish(sets, Path(key_file))
    else:
        public = publish(sets, Path(folder).absolute(), Path(key_file))
    amount = f"{_count_kernels(contexts)} of {source.url}" if contexts else "a recall of all"
    note(f"{amount} signed in {folder}")
    say(f"dejavu-cache use {folder if is_artifact else 'https://…'} --key {public}")


@app.command("import")
def import_records(
    sources: Annotated[
        list[str],
        text_argument(
            "SOURCE…", "Exports, record files, stores by folder or URL; - is standard input."
        ),
    ],
    store: StoreOption = "",
) -> None:
    """Merge files and stores into a store.

    Prints how many records were new, and how many known. Of two timings of a config, the newer one
    stands; a server keeps the first. All sources must be readable before anything is written.
    """
    with ExitStack() as stack:
        target = stack.enter_context(open_chosen_store(store))
        readers: list[Callable[[], Iterator[RecordSet]]] = []
        for source in sources:
            if "://" in source or Path(source).is_dir():
                readers.append(stack.enter_context(open_complete_store(source)).record_sets)
            else:
                readers.append(partial(starmap, _parse, _record_texts(source)))
        pairs = zip(sources, readers, strict=True)
        empty = [source for source, reader in pairs if next(reader(), None) is None]
        if len(empty) == len(sources):
            raise NothingFoundError(f"{', '.join(sources)}: no records")
        for source in empty:
            note(f"{source} holds no records")
        merge_acknowledged((one for reader in readers for one in reader()), target)


def _record_texts(file: str) -> list[tuple[bytes, str]]:
    """Return the texts of a file's record sets, or of standard input's (`-`), and their places.

    It is an export, or a store's own file. All texts can be parsed; they take a fraction of their
    records' memory. Those without records are left out.
    """
    try:
        if file == "-":
            content = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            content = read_file(Path(os.path.realpath(file)))
        if len(content) > MAX_BYTES:
            raise OSError(0, "File too large")
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror}") from None
    # A line of an export is a whole object; a store's own file, also if reformatted, has several.
    if content.lstrip().partition(b"\n")[0].rstrip().endswith(b"}") or b"\n" not in content.strip():
        lines = enumerate(content.split(b"\n"), 1)
        texts = [(line, f"{file}, line {number}") for number, line in lines if line.strip()]
    else:
        texts = [(content, file)]
    try:
        return [(text, place) for text, place in texts if _parse(text, place).records]
    except NewerFormatError as error:
        raise StoreError(f"{error}, and nothing was imported") from None


def _parse(text: bytes, place: str) -> RecordSet:
    """Parse a record set; one damaged record makes it an error, unlike in a store."""
    try:
        return read_set(text, place)
    except DamagedRecordsError as error:
        raise DamagedRecordsError(
            f"{place} is damaged, so nothing was imported; repair it, get it again or leave it "
            f"out: {str(error).removeprefix(f'{place} is damaged: ')}"
        ) from None


def _count_kernels(contexts: list[Context]) -> str:
    kernels = len({context.kernel.name for context in contexts})
    return f"{counted(len(contexts), 'context')} of {counted(kernels, 'kernel')}"


def _export_tables(source: Store, engine: str, folder: Path, version: str) -> None:
    """Write a store's tuned tables into a folder, in the format of an engine of `TABLE_FILES`.

    Other files in it stay. They are for a version of Triton; empty is the installed one, and all
    versions where the engine keeps a folder for each.
    """
    tables = collect_tables(source)
    wanted = version or ("" if engine == "sglang" else triton_version() or "")
    files = TABLE_FILES[engine](tables, wanted)
    for name, count in sum((table.unknown for table in tables), Counter()).items():
        note(f"{counted(count, 'config')} left out: {engine}'s tables set no {name}")
    if not tables:
        raise NothingFoundError(f"{source.url} has no records of an engine's fused experts")
    if not files:
        versions = ", ".join(sorted({table.subject.triton for table in tables}))
        raise NothingFoundError(
            f"no table of {source.url} is for Triton {wanted}, but for {versions}: choose one by "
            "--triton"
        )
    for count, (name, content) in enumerate(files.items()):
        try:
            write_table(name, content, folder)
        except OSError as error:
            message = f"{folder / name} cannot be written: {error.strerror or error}"
            if count:
                message += f"; {counted(count, 'table')} of {len(files)} written before it"
                raise PartlyDoneError(message) from None
            raise StoreError(message) from None
    note(f"{counted(len(files), 'table')} of {source.url} written to {folder}")
    uncompared = sum(table.uncompared for table in tables)
    if uncompared:
        note(
            f"{counted(uncompared, 'config')} in the store's tables won without a comparison of "
            "results: `dejavu-cache sweep` compares them"
        )
