"""`prewarm`: folders of compiled kernels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dejavu_cache.errors import SettingsError
from dejavu_cache.settings import PREFIX
from dejavu_cache.system.notices import counted, size_text

from ..application import app
from ..chosen_store import open_existing_store
from ..errors import require_triton
from ..options import JsonOption, StoreOption, parse_assignments, text_option
from ..output import note, say, show_json, show_progress
from .programs import end_in_order

if TYPE_CHECKING:
    from dejavu_cache.stores.manifest import Manifest


@app.command()
def prewarm(
    device: Annotated[
        list[str],
        typer.Option(
            metavar="TEXT", help="GPUs whose name in the records contains this; may repeat."
        ),
    ],
    out: Annotated[str, text_option("DIR", "The folder to make.")],
    modules: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODULE…", help="The kernels' modules; a package is all in it."),
    ] = None,
    engine: Annotated[
        Literal["vllm"] | None, typer.Option(help="Instead of modules: what this engine launches.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A setting of the engine, such as model=config.json; may repeat.",
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option(metavar="NUMBER", min=0, help="Compilers at once; 0 is one per CPU.")
    ] = 0,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make a folder to run from without tuning and compiling.

    This needs no GPU. Name it in DEJAVU_CACHE_URL as prewarmed:///DIR; it may be moved and mounted
    read-only.
    """
    if bool(modules) == bool(engine):
        raise SettingsError("name the modules of the kernels, or an --engine")
    if option and not engine:
        raise SettingsError("an --option is a setting of an --engine: name one")
    require_triton()
    with open_existing_store(store) as records:
        contexts, url = list(records.contexts()), records.url  # a module may change the folder

    from dejavu_cache.prewarm.build import PrewarmSpec
    from dejavu_cache.prewarm.build import prewarm as build

    in_store = {context.kernel.name.rpartition(".")[0] for context in contexts}
    spec = PrewarmSpec(
        modules=modules or ["dejavu_cache.attention"],
        recorded=sorted(name for name in in_store if engine and name.startswith(f"{engine}.")),
        store=url,
        devices=_devices(device, {context.environment.device.name for context in contexts}),
        engine=engine or "",
        options=parse_assignments(option, "--option"),
    )
    show_progress()
    end_in_order()
    manifest, notes = build(spec, Path(out), processes=jobs or None)
    for text in notes:
        note(text)
    if as_json:
        show_json({"notes": notes, **manifest.model_dump(mode="json", exclude={"files"})})
    else:
        _say_result(manifest, Path(out))


def _devices(texts: list[str], recorded: set[str]) -> tuple[str, ...]:
    """Return the GPUs of the records whose names contain a text; without any, the text itself.

    Records that packages ship may be for a GPU that the store knows nothing of.
    """
    found = {text: [name for name in recorded if text.lower() in name.lower()] for text in texts}
    chosen = (name for text in texts for name in sorted(found[text]) or [text])
    return tuple(dict.fromkeys(chosen))


def _say_result(manifest: Manifest, out: Path) -> None:
    size = sum(file.size for file in manifest.files.values())
    binaries = counted(sum(kernel.binaries for kernel in manifest.kernels), "binary", "binaries")
    scenarios = sum(kernel.scenarios for kernel in manifest.kernels)
    say(
        f"{out}: {counted(scenarios, 'scenario')} of "
        f"{counted(len(manifest.kernels), 'kernel')}, {binaries}, "
        f"for {', '.join(manifest.targets)}"
    )
    say(f"{size_text(size)} by {manifest.wheel}")
    say(f"run with {PREFIX}URL=prewarmed{out.absolute().as_uri().removeprefix('file')}")
