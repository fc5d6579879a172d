"""`pin` and `unpin`: choose a scenario's config by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import typer

from dejavu_cache.errors import SettingsError, StoreError
from dejavu_cache.model.record import Pin, Record
from dejavu_cache.model.scenario import Config, Context
from dejavu_cache.stores import Store
from dejavu_cache.system.notices import counted, whoami

from ..chosen_store import open_existing_store
from ..errors import PartlyDoneError
from ..options import KernelArgument, ScenarioOption, StoreOption, parse_assignments
from ..output import say
from ..record_queries import current_records, has_settings, matching_records

__all__ = ["register"]


class _ChosenPin(NamedTuple):
    """A record and the config to pin it to; None takes its pin back."""

    context: Context
    record: Record
    config: Config | None


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (pin, unpin):
        app.command()(command)


def pin(
    kernel: KernelArgument,
    config: Annotated[
        list[str], typer.Option("--config", metavar="NAME=VALUE", help="Of the config; may repeat.")
    ],
    scenario: ScenarioOption = None,
    store: StoreOption = "",
) -> None:
    """Make scenarios run one config, whatever was measured; it must have been measured for them.

    Of several versions of the kernel's code, the one that was tuned last is meant.
    """
    values = parse_assignments(config, "--config")
    with open_existing_store(store, write=True) as target:
        pins: list[_ChosenPin] = []
        for context, record in current_records(
            list(matching_records(target, kernel, scenario or ()))
        ):
            candidates = [
                measured for measured in record.by_config if has_settings(measured, values)
            ]
            if len(candidates) != 1:
                raise SettingsError(
                    f"{record.scenario}: "
                    f"{counted(len(candidates), 'measured config has', 'measured configs have')} "
                    f"{', '.join(config)}; name one"
                )
            pins.append(_ChosenPin(context, record, candidates[0]))
        _set_pins(target, pins)


def unpin(
    kernel: KernelArgument,
    scenario: ScenarioOption = None,
    store: StoreOption = "",
) -> None:
    """Take pins back: the measurements decide again."""
    with open_existing_store(store, write=True) as target:
        matches = matching_records(target, kernel, scenario or ())
        pins = [_ChosenPin(*match, None) for match in matches if match[1].pinned]
        _set_pins(target, pins)


def _set_pins(store: Store, pins: Sequence[_ChosenPin]) -> None:
    """Set or remove pins and print each; an error names how many are done."""
    if not pins:
        say("nothing was pinned")
    is_alone = len({chosen.context for chosen in pins}) == 1
    done = 0
    for context, group in _groups(store, pins):
        try:
            _put_pins(store, context, group)
            for chosen in group:
                _check_pin(store, chosen)
                state = f"pinned to {chosen.config}" if chosen.config else "no longer pinned"
                where = "" if is_alone else f" ({_origin(context)})"
                say(f"{context.kernel.name}{chosen.record.scenario}{where}: {state}")
                done += 1
        except StoreError as error:
            if not done:
                raise
            raise PartlyDoneError(
                f"only {done} of {counted(len(pins), 'scenario')} done: {error}"
            ) from None


def _groups(
    store: Store, pins: Sequence[_ChosenPin]
) -> Iterator[tuple[Context, Sequence[_ChosenPin]]]:
    """Yield the pins to put together: all of a context, whose file is written as a whole.

    A server takes pins one by one, and may refuse one of them.
    """
    if store.remote:
        yield from ((chosen.context, [chosen]) for chosen in pins)
        return
    by_context: dict[Context, list[_ChosenPin]] = {}
    for chosen in pins:
        by_context.setdefault(chosen.context, []).append(chosen)
    yield from by_context.items()


def _origin(context: Context) -> str:
    """Return what tells a context from others of its kernel."""
    environment = context.environment
    source = f"source {context.kernel.source[:8]}"
    return f"{environment.device.name}, Triton {environment.triton}, {source}"


def _put_pins(store: Store, context: Context, group: Sequence[_ChosenPin]) -> None:
    author = whoami()
    store.put(
        context,
        [
            Record(scenario=record.scenario, pin=Pin.after(record.pin, config, author))
            for _, record, config in group
        ],
    )


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
        "change: change the pin in the namespace that this one reads through to, or repeat the "
        "command if somebody else pinned it at this moment"
    )
