"""`use`: what a stranger's signed record set has for this machine, and the line that reads it."""

import shlex
from operator import attrgetter
from typing import Annotated

import typer

from dejavu_cache.model.scenario import Device
from dejavu_cache.settings import current_settings
from dejavu_cache.stores import PATIENCE
from dejavu_cache.system.notices import counted, size_text
from dejavu_cache.triton_internals import environment

from ..application import app
from ..chosen_store import split_urls
from ..errors import NothingFoundError
from ..options import DeviceOption, TritonOption
from ..output import note, say, show_table
from ..queries import context_matches


@app.command()
def use(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where the set's files are.")],
    key: Annotated[str, typer.Option(metavar="KEY", help="The publisher's public key.")],
    device: DeviceOption = "",
    triton: TritonOption = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Fetch no records yet.")] = False,
) -> None:
    """Fetch a signed record set, verify it, and print how launches read it.

    Lists what matches this machine's GPU and Triton, or those that are named. Nothing is written
    but a copy in your own cache: launches read the set once DEJAVU_CACHE_URL names it, which the
    last line does. Exits with 1 if nothing matches.
    """
    from ...static_sets import open_static, static_url

    store = open_static(static_url(url, key))
    store.wait = PATIENCE
    here, triton = None if device else _this_device(), triton or environment.triton_version() or ""
    present = store.entries(fresh=True)
    entries = [item for item in present if context_matches(item.context, "", device, triton)]
    if here:  # whose name may begin another GPU's
        entries = [item for item in entries if item.context.environment.device == here]
    about = f"{device or (here.name if here else 'any GPU')}, Triton {triton or 'of any version'}"
    if not entries:
        remedy = "--device and --triton choose" if present else "all of it is recalled"
        raise NothingFoundError(f"{url} has no records for {about}: {remedy}")
    describe = attrgetter("kernel.name", "environment.device.name", "environment.triton")
    rows = [(*describe(entry.context), entry.records, size_text(entry.size)) for entry in entries]
    same = ("device", "triton")
    show_table(("kernel", *same, "records", "size"), rows, constant=same)
    total = sum(entry.size for entry in entries)
    note(f"{counted(len(entries), 'context')}, {size_text(total)}, for {about}")
    if not dry_run:
        store.fetch(entries)
    settings = current_settings()
    named, place = split_urls(settings.url or settings.default_url), store.url.partition("?")[0]
    urls = [each for each in named if each.partition("?")[0] != place]  # with an earlier key
    say(f"export DEJAVU_CACHE_URL={shlex.quote(','.join([*urls, store.url]))}")


def _this_device() -> Device | None:
    """Return this machine's GPU; None without one."""
    if environment.triton_version() is None or not environment.has_device():
        return None
    return environment.environment_here().device
