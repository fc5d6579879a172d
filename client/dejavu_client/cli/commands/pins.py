"""`pin`: choose a scenario's config by hand, and take the choice back."""

from collections.abc import Mapping
from itertools import groupby
from operator import itemgetter
from typing import Annotated

import typer

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.record import Pin, Record
from dejavu_cache.model.scenario import Config, Context
from dejavu_cache.stores import Store
from dejavu_cache.system.notices import counted, whoami

from .. import options
from ..application import app
from ..chosen_store import open_existing_store
from ..output import say
from ..queries import has_settings, last_measured, matching_records, newest_versions
from ..tables import settings_text


@app.command()
def pin(
    kernel: options.KernelArgument,
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting of the config to run; may repeat."),
    ] = None,
    where: options.WhereOption = None,
    device: options.DeviceOption = "",
    triton: options.TritonOption = "",
    remove: Annotated[
        bool, typer.Option("--remove", help="Take pins back: the measurements decide again.")
    ] = False,
    store: options.StoreOption = "",
) -> None:
    """Make scenarios run one config, whatever was measured.

    It must have run when they were tuned. Of several versions of the kernel's code, the one that
    was tuned last is meant. --remove takes back the pins of all versions.
    """
    values = options.parse_assignments(config, "--config")
    if remove == bool(values):
        raise SettingsError("pin: give --config for the config to run, or --remove")
    with open_existing_store(store, write=True) as target:
        matches = list(matching_records(target, kernel, where or (), device, triton))
        newest = newest_versions((context, last_measured([record])) for context, record in matches)
        chosen = [
            (context, record, None if remove else _choose(record, values))
            for context, record in matches
            if (record.pinned if remove else context in newest)
        ]
        for context, group in groupby(chosen, key=itemgetter(0)):
            _set_pins(target, context, [(record, pinned) for _, record, pinned in group])
    if not chosen:
        say("nothing was pinned")


def _set_pins(store: Store, context: Context, pins: list[tuple[Record, Config | None]]) -> None:
    """Set or remove the pins of a context by one write, and print each."""
    author = whoami()
    pinned = [
        Record(scenario=record.scenario, pin=Pin.after(record.pin, config, author))
        for record, config in pins
    ]
    store.put(context, pinned)
    environment, source = context.environment, context.kernel.source[:8]
    origin = f"{environment.device.name}, Triton {environment.triton}, source {source}"
    for record, config in pins:
        say(f"{context.kernel.name}{record.scenario} ({origin}): {_state(record, config)}")


def _choose(record: Record, values: Mapping[str, str]) -> Config:
    """Return the only config that has some values, of those that ran when they were measured."""
    candidates = [
        config
        for config, measured in record.by_config.items()
        if measured.failure is None and has_settings(config, values)
    ]
    if len(candidates) != 1:
        raise SettingsError(
            f"{record.scenario}: "
            f"{counted(len(candidates), 'config that ran has', 'configs that ran have')} "
            f"{settings_text(values)}; name one, or choose other scenarios by --where and --device"
        )
    return candidates[0]


def _state(record: Record, pinned: Config | None) -> str:
    """Return what a scenario runs now, and what a pin to a slower config costs."""
    if pinned is None:
        return "no longer pinned"
    timed = [own for own in record.measurements if own.median]
    fastest = min(timed, key=lambda own: own.median or 0.0, default=None)
    median = record.by_config[pinned].median
    text = f"pinned to {pinned}"
    if fastest and fastest.median and median and median > fastest.median:
        text += f", {median / fastest.median:.2f}x the time of the fastest, {fastest.config}"
    return text
