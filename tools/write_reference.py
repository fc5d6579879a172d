"""Write the reference of commands, settings, protocol and file formats from the code.

python tools/write_reference.py            writes docs/reference/
python tools/write_reference.py --check    exits with 1 if a page is not what the code says
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import typer
from dejavu_client.cli.application import EXAMPLES, GROUPS
from dejavu_client.cli.main import all_commands
from dejavu_client.static_sets.signed_index import SignedIndex
from dejavu_service.app import create_app
from dejavu_service.settings import ServerSettings
from pydantic import BaseModel, TypeAdapter

import dejavu_cache
from dejavu_cache.errors import ExitCode
from dejavu_cache.model.record import RecordSet
from dejavu_cache.policy import Rule
from dejavu_cache.runtime.options import CacheOptions
from dejavu_cache.settings import Settings
from dejavu_cache.stores.manifest import Manifest

FOLDER = Path(__file__).parent.parent / "docs/reference"
FROZEN = FOLDER / "frozen.txt"
MODULES: dict[str, Sequence[str]] = {
    "dejavu_cache": dejavu_cache.__all__,
    "dejavu_cache.attention": ("NewTokens", "Plan", "paged_attention", "plan"),
    "dejavu_cache.installation.inductor_pass": ("install_inductor_pass",),
    "dejavu_cache.stores": ("Found", "Store", "open_store"),
    "dejavu_cache.sweep.suite": ("Case", "Suite"),
    "dejavu_cache.testing": ("StoreContract",),
}
"""What others may import."""
MEMBERS: dict[str, Sequence[str]] = {
    "CachedAutotuner": ("benchmarked", "explain"),  # and what Triton's has
    "Settings": (),  # named by their variables
    "StoreContract": (),
}
"""Members of classes of which others are not for them."""
FILES = {
    "record": RecordSet.model_json_schema(),
    "set": SignedIndex.model_json_schema(),
    "prewarmed": Manifest.model_json_schema(),
    "policy": TypeAdapter(dict[str, list[Rule]]).json_schema(),
}
"""Schemas of the files that others keep."""
NOTE = "<!-- Written by tools/write_reference.py: change the code and run it again. -->\n\n"


def main() -> None:
    """Write the pages, or compare them."""
    pages = render_pages()
    if "--check" in sys.argv[1:]:
        stale = stale_pages(pages)
        print("\n".join(f"{name} is not what the code says" for name in stale) or "up to date")
        raise SystemExit(bool(stale))
    if gone := sorted(set(frozen_lines(FROZEN.read_text("utf-8"))) - set(frozen_names())):
        raise SystemExit("\n".join([*gone, "these are kept until 0.2: see compatibility.md"]))
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
    return {
        "api.md": render_api(),
        "commands.md": render_commands(),
        "settings.md": render_settings(),
        "http.md": render_protocol(describe_protocol()),
        "frozen.txt": "\n".join([f"Of {minor_version()}", *frozen_names(), ""]),
        "records.schema.json": to_json(RecordSet.model_json_schema()),
        "policy.schema.json": to_json(TypeAdapter(dict[str, list[Rule]]).json_schema()),
    }


def describe_protocol() -> dict[str, Any]:
    """Return the server's OpenAPI description."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/server.sqlite3"
        return create_app(ServerSettings(database=url)).openapi()


def minor_version() -> str:
    """Return the version without the number of its last part."""
    return dejavu_cache.__version__.rpartition(".")[0]


def frozen_lines(text: str) -> list[str]:
    """Return the names that a list of this minor version has, which may not go."""
    first, *names = text.splitlines()
    return names if first == f"Of {minor_version()}" else []


def frozen_names() -> list[str]:
    """Return a line for each name that others rely on, as docs/reference/compatibility.md says."""
    names = {f"setting DEJAVU_CACHE_{name.upper()}" for name in Settings.model_fields}
    names |= {f"setting DEJAVU_SERVER_{name.upper()}" for name in ServerSettings.model_fields}
    names |= {f"exit {int(code)} {code.name}" for code in ExitCode}
    names |= {
        f"python dejavu_cache.cached_autotune({name})" for name in CacheOptions.__annotations__
    }
    return sorted(names.union(command_names(), model_names(), *map(python_names, MODULES)))


def command_names() -> Iterator[str]:
    """Yield the commands with their arguments and options."""
    application: Any = typer.main.get_command(all_commands())
    for name in application.commands:
        for full, command in leaves(application.commands[name], name):
            yield f"command {full}"
            for item in command.params:
                for text in [*item.opts, *item.secondary_opts]:
                    yield f"command {full} {text if text[0] == '-' else text.upper()}"


def model_names() -> Iterator[str]:
    """Yield the fields of files and of the protocol, those of a model once, and the routes."""
    described = describe_protocol()
    known: set[str] = set()
    schemas = {**FILES, "protocol": {"$defs": described["components"]["schemas"]}}
    for kind, schema in schemas.items():
        fields = set(schema_fields(schema)) - known
        known |= fields
        yield from (f"{kind} {field}" for field in fields)
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            call = f"protocol {method.upper()} {path}"
            yield f"{call} {body_of(route)} -> {answer_of(route)}".replace("`", "")
            for item in route.get("parameters", ()):
                if item["in"] == "query":
                    yield f"{call} ?{item['name']}"


def schema_fields(schema: dict[str, Any]) -> Iterator[str]:
    """Yield each field of a schema's models, with a question mark where it may be left out."""
    for name, model in {schema.get("title", ""): schema, **schema.get("$defs", {})}.items():
        for field in model.get("properties", ()):
            yield f"{name}.{field}{'' if field in model.get('required', ()) else '?'}"
        for value in model.get("enum", ()):
            yield f"{name} = {value}"


def python_names(module: str) -> Iterator[str]:
    """Yield what others may import from a module, with parameters and members."""
    for name in MODULES[module]:
        value, full = getattr(importlib.import_module(module), name), f"python {module}.{name}"
        yield full
        if name in MEMBERS:
            yield from (f"{full}.{member}" for member in MEMBERS[name])
        elif inspect.isclass(value):
            own = [each for each in value.__mro__ if each.__module__.startswith("dejavu_cache")]
            members = set().union(*map(vars, own), *map(inspect.get_annotations, own))
            kept = (member for member in members if not member.startswith(("_", "model_")))
            yield from (f"{full}.{member}" for member in kept)
        elif inspect.isfunction(value):
            yield from (f"{full}({parameter})" for parameter in inspect.signature(value).parameters)


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
    name = (argument.metavar or argument.name.upper()).removeprefix("[")
    name = name if "[" in name else name.removesuffix("]")
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
