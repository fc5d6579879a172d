"""Arguments and options that several commands share, and the parser of their values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from dejavu_cache.errors import SettingsError

from .completion import complete_devices, complete_kernels

__all__ = [
    "KERNEL_HELP",
    "DeviceOption",
    "JsonOption",
    "KernelArgument",
    "KernelOption",
    "LimitOption",
    "OptionalKernelArgument",
    "ScenarioOption",
    "ServerOption",
    "SortOption",
    "StoreOption",
    "TritonOption",
    "WhereOption",
    "parse_assignments",
    "refuse_empty",
    "require_moments",
]


def refuse_empty(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """Refuse an empty text that the user gave: it would mean all kernels, or another store.

    A shell makes one of a variable that is not set, as in `clear "$KERNEL" --yes`.
    """
    given = context.get_parameter_source(str(parameter.name))
    if given is not None and given.name == "COMMANDLINE" and "" in (value, *(value or ())):
        raise typer.BadParameter("it is empty")
    return value


KERNEL_HELP = "A kernel: its full name, the end of it, or a glob such as '*attention*'."

KernelArgument = Annotated[
    str,
    typer.Argument(help=KERNEL_HELP, autocompletion=complete_kernels, callback=refuse_empty),
]
OptionalKernelArgument = Annotated[
    str,
    typer.Argument(
        help=f"{KERNEL_HELP} Else all.", autocompletion=complete_kernels, callback=refuse_empty
    ),
]
KernelOption = Annotated[
    str,
    typer.Option(
        "--kernel",
        metavar="NAME",
        help="Only this kernel, or a glob.",
        autocompletion=complete_kernels,
        callback=refuse_empty,
    ),
]
StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        help="A folder or a URL; else DEJAVU_CACHE_URL, else your own cache.",
        callback=refuse_empty,
    ),
]
ServerOption = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        help="A server's URL; else the first server in DEJAVU_CACHE_URL.",
        callback=refuse_empty,
    ),
]
ScenarioOption = Annotated[
    list[str] | None,
    typer.Option("--scenario", metavar="NAME=VALUE", help="A value of the launch; may repeat."),
]
WhereOption = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="CONDITION",
        help="Only scenarios for which it holds, such as 'num_seqs>=64'; may repeat.",
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="TEXT",
        help="Only GPUs whose name contains this.",
        autocompletion=complete_devices,
        callback=refuse_empty,
    ),
]
TritonOption = Annotated[
    str,
    typer.Option(
        "--triton",
        metavar="VERSION",
        help="Only this version of Triton.",
        callback=refuse_empty,
    ),
]
SortOption = Annotated[
    str, typer.Option("--sort", metavar="COLUMN", help="Sort by it; -COLUMN: descending.")
]
LimitOption = Annotated[
    int, typer.Option("--limit", min=0, help="How many lines at most; 0 is all.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def parse_assignments(texts: Iterable[str] | None, option: str) -> dict[str, str]:
    """Parse the `NAME=VALUE` texts of a repeated option.

    Args:
        texts: the option's values; None if it was not given.
        option: the option's name, for the error message.

    Raises:
        SettingsError: a text has no `=`.
    """
    assignments = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"{option} {text!r}: write NAME=VALUE")
        assignments[name] = value
    return assignments


def require_moments(**times: str) -> None:
    """Check that options of these names have a moment each, as the server reads it, or nothing.

    Raises:
        SettingsError: a text is no moment.
    """
    from pydantic import TypeAdapter, ValidationError

    from dejavu_cache.model.scenario import Moment

    for name, text in times.items():
        if not text:
            continue
        try:
            TypeAdapter(Moment).validate_python(text)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise SettingsError(f"--{name} {text!r}: {reason}") from None
