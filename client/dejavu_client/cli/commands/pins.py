"""`pin`: choose a scenario's config by hand, and take the choice back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import typer

from dejavu_cache.errors import SettingsError, StoreError
from dejavu_cache.model.record import Pin, Record
from dejavu_cache.model.scenario import Config, Context
from dejavu_cache.stores import Store
from dejavu_cache.system.notices import counted, whoami

from ..chosen_store import open_existing_store
from ..options import KernelArgument, StoreOption, WhereOption, parse_assignments
from ..output import say, sum_of_steps
from ..queries import current_records, has_settings, matching_records
from ..tables import settings_text

__all__ = ["register"]


class _ChosenPin(NamedTuple):
    """A record and the config to pin it to; None takes its pin back."""

    context: Context
    record: Record
    config: Config | None


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(pin)


def pin(
    kernel: KernelArgument,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="NAME=VALUE", help="Of the config; may repeat."),
    ] = None,
    where: WhereOption = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Take pins back: the measurements decide again.")
    ] = False,
    store: StoreOption = "",
) -> None:
    """Make scenarios run one config, whatever was measured.

    It must have been measured for them. Of several versions of the kernel's code, the one that was
    tuned last is meant. --remove takes back the pins of all versions.
    """
    values = parse_assignments(config, "--config")
    if remove == bool(values):
        raise SettingsError("pin: give --config for the config to run, or --remove")
    with open_existing_store(store, write=True) as target:
        matches = list(matching_records(target, kernel, where or ()))
        if remove:
            pins = [_ChosenPin(*match, None) for match in matches if match[1].pinned]
        else:
            pins = [_choose(*match, values) for match in current_records(matches)]
        _set_pins(target, pins)


def _choose(context: Context, record: Record, values: Mapping[str, str]) -> _ChosenPin:
    """Return the pin to the only measured config that has some values."""
    candidates = [measured for measured in record.by_config if has_settings(measured, values)]
    if len(candidates) != 1:
        raise SettingsError(
            f"{record.scenario}: "
            f"{counted(len(candidates), 'measured config has', 'measured configs have')} "
            f"{settings_text(values)}; name one"
        )
    return _ChosenPin(context, record, candidates[0])


def _set_pins(store: Store, pins: Sequence[_ChosenPin]) -> None:
    """Set or remove pins, all of a context by one write, and print each."""
    if not pins:
        say("nothing was pinned")
    by_context: dict[Context, list[_ChosenPin]] = {}
    for chosen in pins:
        by_context.setdefault(chosen.context, []).append(chosen)
    author = whoami()

    def set_in(context: Context) -> int:
        group = by_context[context]
        changed = [
            Record(scenario=record.scenario, pin=Pin.after(record.pin, config, author))
            for _, record, config in group
        ]
        store.put(context, changed)
        for chosen in group:
            _check_pin(store, chosen)
            where = "" if len(by_context) == 1 else f" ({_origin(context)})"
            say(f"{context.kernel.name}{chosen.record.scenario}{where}: {_state(chosen)}")
        return len(group)

    sum_of_steps(by_context, set_in, lambda count: f"{counted(count, 'scenario')} done")


def _state(chosen: _ChosenPin) -> str:
    """Return what a scenario runs now, and what a pin to a slower config costs."""
    if chosen.config is None:
        return "no longer pinned"
    timed = [own for own in chosen.record.measurements if own.median]
    fastest = min(timed, key=lambda own: own.median or 0.0, default=None)
    pinned = chosen.record.by_config[chosen.config].median
    text = f"pinned to {chosen.config}"
    if fastest and fastest.median and pinned and pinned > fastest.median:
        text += f", {pinned / fastest.median:.2f}x the time of the fastest, {fastest.config}"
    return text


def _origin(context: Context) -> str:
    """Return what tells a context from others of its kernel."""
    environment = context.environment
    source = f"source {context.kernel.source[:8]}"
    return f"{environment.device.name}, Triton {environment.triton}, {source}"


def _check_pin(store: Store, chosen: _ChosenPin) -> None:
    """Read back that a pin is what the store has now.

    Raises:
        StoreError: the store has another pin.
    """
    context, record, config = chosen
    found = store.get(context, record.scenario, fresh=True)
    pin = found.record.pin if found else None
    pinned = pin.config if pin else None
    if pinned == config:
        return
    has = (
        f"is pinned to {pinned}, by {pin.by} at {pin.at:%F %T} UTC"
        if pin and pinned
        else "has no pin"
    )
    raise StoreError(
        f"{context.kernel.name}{record.scenario} {has} in {store.url}, which did not take the "
        "change: repeat the command if somebody else pinned it at this moment"
    )
