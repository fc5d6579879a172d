"""`prewarm`: folders of compiled kernels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dejavu_cache.settings import PREFIX, current_settings
from dejavu_cache.system.notices import counted, size_text

from ..application import app
from ..chosen_store import open_existing_store
from ..errors import require_triton
from ..options import JsonOption, StoreOption
from ..output import note, say, show_json, show_progress

if TYPE_CHECKING:
    from dejavu_cache.prewarm.build import PrewarmResult


@app.command()
def prewarm(
    modules: Annotated[
        list[str],
        typer.Argument(metavar="MODULE…", help="The kernels' modules; a package is all in it."),
    ],
    device: Annotated[
        list[str],
        typer.Option(
            "--device",
            metavar="TEXT",
            help="GPUs whose name in the records contains this; may repeat.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to make.")],
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs", metavar="NUMBER", min=0, help="Compilers at once; 0 is one per CPU."
        ),
    ] = 0,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make a folder to run from without tuning and compiling.

    This needs no GPU. Name it in DEJAVU_CACHE_URL as prewarmed:///DIR; it may be moved and mounted
    read-only.
    """
    require_triton()
    settings = current_settings()
    with open_existing_store(store) as records:
        names = {context.environment.device.name for context in records.contexts()}

    from dejavu_cache.prewarm.build import PrewarmSpec
    from dejavu_cache.prewarm.build import prewarm as build

    spec = PrewarmSpec(
        modules=tuple(modules),
        store=store or settings.url or settings.default_url,
        devices=_devices(device, names),
    )
    show_progress()
    result = build(spec, out, processes=jobs or None)
    for text in result.notes:
        note(text)
    if as_json:
        manifest = result.manifest.model_dump(mode="json", exclude={"files"})
        show_json({"notes": result.notes, **manifest})
    else:
        _say_result(result, out)


def _devices(texts: list[str], recorded: set[str]) -> tuple[str, ...]:
    """Return the GPUs of the records whose names contain a text; without any, the text itself.

    Records that packages ship may be for a GPU that the store knows nothing of.
    """
    found = {text: [name for name in recorded if text.lower() in name.lower()] for text in texts}
    chosen = (name for text in texts for name in sorted(found[text]) or [text])
    return tuple(dict.fromkeys(chosen))


def _say_result(result: PrewarmResult, out: Path) -> None:
    manifest = result.manifest
    size = sum(file.size for file in manifest.files.values())
    binaries = counted(sum(kernel.binaries for kernel in manifest.kernels), "binary", "binaries")
    scenarios = sum(kernel.scenarios for kernel in manifest.kernels)
    say(
        f"{out}: {counted(scenarios, 'scenario')} of "
        f"{counted(len(manifest.kernels), 'kernel')}, {binaries}, "
        f"for {', '.join(manifest.targets)}"
    )
    say(f"{size_text(size)} by {manifest.wheel}")
    say(f"run with {PREFIX}URL=prewarmed://{out.absolute()}")
