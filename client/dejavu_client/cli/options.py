"""Arguments and options that several commands share, and the parser of their values."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

import typer

from dejavu_cache.errors import SettingsError


def _check_moment(text: str) -> str:
    """Refuse what is no moment as a server reads it."""
    try:
        has_offset = datetime.fromisoformat(text.replace("Z", "+00:00")).tzinfo is not None
    except ValueError:
        has_offset = False
    if text and not has_offset:
        raise typer.BadParameter(f"{text!r}: write a time like 2026-01-31T12:00:00Z")
    return text


def text_option(metavar: str, what: str) -> Any:
    """Return an option whose value is a text."""
    return typer.Option(metavar=metavar, help=what)


def text_argument(metavar: str, what: str) -> Any:
    """Return an argument whose value is a text."""
    return typer.Argument(metavar=metavar, help=what)


KERNEL_HELP = "A kernel: its full name, the end of it, or a glob such as '*attention*'."

KernelArgument = Annotated[str, text_argument("KERNEL", KERNEL_HELP)]
OptionalKernelArgument = Annotated[str, text_argument("KERNEL", f"{KERNEL_HELP} Else all.")]
KernelOption = Annotated[str, text_option("NAME", "Only this kernel, or a glob.")]
StoreOption = Annotated[
    str, text_option("URL", "A folder or a URL; else DEJAVU_CACHE_URL, else your own cache.")
]
ServerOption = Annotated[str, text_option("URL", "A server; else DEJAVU_CACHE_URL's first one.")]
WhereOption = Annotated[
    list[str] | None,
    typer.Option(metavar="CONDITION", help="Only scenarios with 'num_seqs>=64', say; may repeat."),
]
DeviceOption = Annotated[str, text_option("TEXT", "Only GPUs whose name contains this.")]
TritonOption = Annotated[str, text_option("VERSION", "Only this version of Triton.")]
SinceOption = Annotated[
    str,
    typer.Option(
        metavar="TIME", help="Only from then on: 2026-01-31T12:00:00Z.", callback=_check_moment
    ),
]
UntilOption = Annotated[
    str, typer.Option(metavar="TIME", help="Only before then.", callback=_check_moment)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def parse_assignments(texts: Iterable[str] | None, option: str) -> dict[str, str]:
    """Parse the `NAME=VALUE` texts of a repeated option.

    Raises:
        SettingsError: a text is none, or names what another one does; the message has the option.
    """
    assignments = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name and equals) or name in assignments:
            raise SettingsError(f"{option} {text!r}: write NAME=VALUE, each name once")
        assignments[name] = value
    return assignments
