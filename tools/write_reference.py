"""Write the reference of commands, settings, protocol and file formats from the code.

python tools/write_reference.py            writes docs/reference/
python tools/write_reference.py --check    exits with 1 if a page is not what the code says
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import tempfile
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer
from dejavu_client.cli.application import EXAMPLES, GROUPS
from dejavu_client.cli.main import all_commands
from dejavu_service.app import create_app
from dejavu_service.settings import ServerSettings
from pydantic import BaseModel, TypeAdapter

import dejavu_cache
from dejavu_cache.errors import ExitCode
from dejavu_cache.model.record import RecordSet
from dejavu_cache.policy import Rule
from dejavu_cache.settings import Settings

FOLDER = Path(__file__).parent.parent / "docs/reference"
NOTE = "<!-- Written by tools/write_reference.py: change the code and run it again. -->\n\n"


def main() -> None:
    """Write the pages, or compare them."""
    pages = render_pages()
    if "--check" in sys.argv[1:]:
        stale = stale_pages(pages)
        print("\n".join(f"{name} is not what the code says" for name in stale) or "up to date")
        raise SystemExit(bool(stale))
    for name, text in pages.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def stale_pages(pages: dict[str, str]) -> list[str]:
    """Return the names of the pages whose file differs."""
    return [
        name
        for name, text in pages.items()
        if not (FOLDER / name).is_file() or (FOLDER / name).read_text(encoding="utf-8") != text
    ]


def render_pages() -> dict[str, str]:
    """Return the text of all pages by the name of their file."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/server.sqlite3"
        described = create_app(ServerSettings(database=url)).openapi()
    return {
        "api.md": render_api(),
        "commands.md": render_commands(),
        "settings.md": render_settings(),
        "http.md": render_protocol(described),
        "records.schema.json": to_json(RecordSet.model_json_schema()),
        "policy.schema.json": to_json(TypeAdapter(dict[str, list[Rule]]).json_schema()),
    }


def to_json(value: Any) -> str:
    """Return a JSON document in a stable form."""
    return json.dumps(value, indent=1, sort_keys=True, default=str) + "\n"


def render_api() -> str:
    """Return the page of the public names, which the site fills from their docstrings."""
    lines = [
        "# Python\n",
        "All names are imported from `dejavu_cache`. On GitHub, see their docstrings.\n",
    ]
    for name in sorted(dejavu_cache.__all__, key=str.lower):
        value = getattr(dejavu_cache, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            module = value.__module__
            lines.append(f"## {name}\n\n::: {module}.{name}\n")
    return NOTE + "\n".join(lines)


def render_commands() -> str:
    """Return the page of the command line."""
    application: Any = typer.main.get_command(all_commands())
    lines = ["# Commands\n", "`dejavu-cache COMMAND --help` prints the same.\n"]
    for title, names in GROUPS.items():
        lines.append(f"## {title}\n")
        for name in names:
            for full, command in leaves(application.commands[name], name):
                lines += command_lines(full, command)
    lines.append("## Exit codes\n")
    lines.append("| code | meaning |\n|---|---|")
    lines += [f"| {int(code)} | `{code.name}` |" for code in ExitCode]
    return NOTE + "\n".join(lines) + "\n"


def leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the commands of a group with their full names, or the command itself."""
    if hasattr(command, "commands"):
        for child, below in command.commands.items():
            yield from leaves(below, f"{name} {child}")
    else:
        yield name, command


def command_lines(name: str, command: Any) -> list[str]:
    """Return the section of a command."""
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    usage = " ".join([name, *(metavar_of(item) for item in arguments), "[OPTIONS]"])
    lines = [f"### {name}\n", f"`dejavu-cache {usage}`\n", inspect.cleandoc(command.help), ""]
    lines += ["| argument or option | meaning | default |", "|---|---|---|"]
    for item in command.params:
        if item.name == "help":
            continue
        names = [metavar_of(item)] if item in arguments else [*item.opts, *item.secondary_opts]
        default = "" if item.default in (None, "", False) or item.required else f"`{item.default}`"
        lines.append(f"| {', '.join(f'`{cell(text)}`' for text in names)} | "
                     f"{cell(item.help or '')} | {cell(default)} |")  # fmt: skip
    lines.append("")
    lines += ["```sh", *(f"dejavu-cache {text}" for text in EXAMPLES[name]), "```", ""]
    return lines


def metavar_of(argument: Any) -> str:
    """Return how an argument is written in the usage."""
    name = argument.metavar or argument.name.upper()
    name = f"{name.removesuffix('…')}…" if argument.nargs == -1 else name
    return name if argument.required else f"[{name}]"


def render_settings() -> str:
    """Return the page of the environment variables."""
    lines = ["# Settings\n", "Environment variables, read once when a process first needs one.\n"]
    for title, prefix, model in (
        ("Of programs and commands", "DEJAVU_CACHE_", Settings),
        ("Of the server", "DEJAVU_SERVER_", ServerSettings),
    ):
        lines += [f"## {title}\n", "| variable | values | default | meaning |", "|---|---|---|---|"]
        texts = field_texts(model)
        for name, field in model.model_fields.items():
            default = field.get_default(call_default_factory=False)
            if isinstance(default, Enum):
                default = default.value
            shown = "" if default in (None, "") or field.default_factory else f"`{default}`"
            kind = values_of(model, name)
            lines.append(
                f"| `{prefix}{name.upper()}` | {cell(kind)} | {shown} | "
                f"{cell(' '.join(texts.get(name, '').split()))} |"
            )
        lines.append("")
    return NOTE + "\n".join(lines)


def values_of(model: type[BaseModel], name: str) -> str:
    """Return the values that a setting may have, from its schema."""
    schema = model.model_json_schema()
    field = schema["properties"][name]
    kinds = [part for part in field.get("anyOf", [field]) if part.get("type") != "null"]
    texts = []
    for part in kinds:
        if "$ref" in part:
            part = schema["$defs"][part["$ref"].rpartition("/")[2]]
        if "enum" in part:
            texts.append(", ".join(f"`{value}`" for value in part["enum"] if value != ""))
        else:
            texts.append(part.get("format") or part["type"])
    return " or ".join(texts)


def field_texts(model: type[BaseModel]) -> dict[str, str]:
    """Return the texts that stand below the fields of a model."""
    (definition,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            assert isinstance(text.value, ast.Constant)
            texts[field.target.id] = str(text.value.value)
    return texts


def render_protocol(description: dict[str, Any]) -> str:
    """Return the page of the routes; `protocol.md` says what they mean."""
    lines = [
        "# HTTP routes\n",
        "[The protocol](../protocol.md) says who may call what and what it means. A server sends "
        "the complete description, with all models, at `/v1/openapi.json`.\n",
        "| call | effect | query | body | answer |",
        "|---|---|---|---|---|",
    ]
    for path, methods in sorted(description["paths"].items()):
        for method, route in methods.items():
            query = [item["name"] for item in route.get("parameters", ()) if item["in"] == "query"]
            effect = " ".join(route.get("description", route["summary"]).split())
            lines.append(
                f"| `{method.upper()} {path}` | {cell(effect)} | "
                f"{', '.join(f'`{name}`' for name in query)} | {body_of(route)} | "
                f"{answer_of(route)} |"
            )
    return NOTE + "\n".join(lines) + "\n"


def body_of(route: dict[str, Any]) -> str:
    """Return the model of a route's body."""
    content = route.get("requestBody", {}).get("content", {})
    return model_of(next(iter(content.values()), {}))


def answer_of(route: dict[str, Any]) -> str:
    """Return the model of a route's answer, with its status where that is not 200."""
    status, answer = min(route["responses"].items())
    model = model_of(next(iter(answer.get("content", {}).values()), {}))
    return f"{'' if status == '200' else status} {model}".strip()


def model_of(content: dict[str, Any]) -> str:
    """Return the name of the model that a content refers to."""
    reference = str(content.get("schema", {}).get("$ref", ""))
    return f"`{reference.rpartition('/')[2]}`" if reference else ""


def cell(text: str) -> str:
    """Return a text as a cell of a table."""
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;")


if __name__ == "__main__":
    main()
