"""The server's commands, which `dejavu-cache` finds by an entry point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dejavu_cache.errors import DejavuError, ExitCode, SettingsError
from dejavu_cache.system.notices import counted, printable

if TYPE_CHECKING:
    from .services.tokens import Token
    from .settings import ServerSettings
    from .storage.database import Database

_URL = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="sqlite:///FILE or postgresql://…; else DEJAVU_SERVER_DATABASE, else a file.",
    ),
]
_Role = Annotated[
    str,
    typer.Option(
        metavar="ROLE", help="read, write or admin: each may do what those before it may."
    ),
]
_Namespaces = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Where it has this role, or the beginning of several (pr-*); may repeat; else all.",
    ),
]
_Grants = Annotated[
    list[str] | None,
    typer.Option(metavar="NAMESPACE=ROLE", help="Another role in another namespace (main=read)."),
]

database_app = typer.Typer(
    no_args_is_help=True, help="The server's database: its schema and its size."
)
token_app = typer.Typer(no_args_is_help=True, help="Who may use the server.")


def register(app: typer.Typer) -> None:
    """Add the server's commands to the main command."""
    app.command()(serve)
    app.command()(pages)
    app.add_typer(database_app, name="db")
    app.add_typer(token_app, name="token")


def serve(
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where to listen [127.0.0.1].")
    ] = None,
    port: Annotated[int | None, typer.Option(metavar="NUMBER", help="The port [8765].")] = None,
    database: _URL = None,
    without_tokens: Annotated[
        bool | None,
        typer.Option(
            "--without-tokens", help="Everybody on this machine may do everything, and nobody else."
        ),
    ] = None,
) -> None:
    """Run the team's cache server."""
    flags = {"host": host, "port": port, "without_tokens": without_tokens}
    with _open_database(database, flags) as (settings, opened):
        from . import app

        if said := app.prepare(settings, opened):
            typer.echo(said, err=True)
        app.run(settings)


def pages(
    store: Annotated[
        str,
        typer.Option(
            metavar="URL", help="A folder or a URL; else DEJAVU_CACHE_URL, else your own cache."
        ),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the overview to a file instead."),
    ] = None,
    port: Annotated[int, typer.Option(metavar="NUMBER", min=0, max=65535, help="0: any.")] = 0,
) -> None:
    """Show a store's records in a browser, by the server's pages.

    The records are copied to a temporary database first; nothing is written to the store.
    """
    with _reported_errors():
        from .store_pages import serve_pages, write_overview

        if output is None:
            serve_pages(store, port)
        else:
            write_overview(store, output)
            typer.echo(f"{output} shows what is tuned.")


@database_app.command("upgrade")
def upgrade(database: _URL = None) -> None:
    """Bring the schema up to date.

    Any number of processes may do so at once.
    """
    with _open_database(database) as (_, opened):
        from .storage import schema

        schema.upgrade(opened)
        typer.echo(f"{opened.public_url} is up to date.")


@database_app.command("prune")
def prune(
    unused_days: Annotated[
        float,
        typer.Option(metavar="DAYS", min=1, help="Delete records that nobody used for so long."),
    ],
    misses_days: Annotated[
        float, typer.Option(metavar="DAYS", min=1, help="Forget misses not seen for so long.")
    ] = 30,
    database: _URL = None,
) -> None:
    """Delete unused records; pinned and promoted ones stay."""
    with _open_database(database, ready=True, existing=True) as (_, opened):
        from .services import retention

        pruned = retention.prune(opened, unused_days, misses_days)
        typer.echo(
            f"Deleted {counted(pruned.records, 'record')}, "
            f"{counted(pruned.misses, 'miss', 'misses')} "
            f"and {counted(pruned.contexts, 'empty context')}."
        )


@token_app.command("create")
def create(
    name: Annotated[str, typer.Option(metavar="NAME", help="Who or what will use it.")],
    role: _Role = "read",
    namespace: _Namespaces = None,
    grant: _Grants = None,
    days: Annotated[
        float | None, typer.Option(metavar="DAYS", min=0.001, help="It expires after so many days.")
    ] = None,
    database: _URL = None,
) -> None:
    """Issue a token and show it, this once."""
    with _reported_errors():  # before there is a database
        from .services import tokens
        from .services.access import ANYBODY

        grants = _join_grants(role, namespace or [], grant or [])
        request = tokens.TokenRequest.model_validate({"name": name, "grants": grants, "days": days})
    with _open_database(database, ready=True) as (_, opened):
        ttl = request.days and request.days * 86400
        issued = tokens.issue(opened, ANYBODY, request.name, request.grants, ttl)
        typer.echo(issued.token)
        rights = f"{issued.id}: {_rights(issued)} in {opened.public_url}."
        typer.echo(f"{rights}\nKeep it: only a hash is stored.", err=True)


@token_app.command("list")
def list_(database: _URL = None) -> None:
    """List the tokens, without their secrets."""
    with _open_database(database, ready=True, existing=True) as (_, opened):
        from .services import tokens

        for token in tokens.list_tokens(opened):
            line = f"{token.id}  {_rights(token)}  {token.name}  {_end(token)}"
            typer.echo(printable(line.rstrip()))


@token_app.command("revoke")
def revoke(
    identity: Annotated[str, typer.Argument(metavar="ID", help="As `token list` shows it.")],
    database: _URL = None,
) -> None:
    """Revoke a token; running servers notice within seconds."""
    with _open_database(database, ready=True, existing=True) as (_, opened):
        from .services import tokens

        tokens.revoke(opened, identity)
        typer.echo(f"{identity} is revoked.")


def _join_grants(role: str, namespaces: list[str], grants: list[str]) -> dict[str, str]:
    if not namespaces and not grants:
        namespaces = ["*"]
    pairs = {(name, role) for name in namespaces}
    for grant in grants:
        pattern, equals, other = grant.partition("=")
        if not equals:
            raise SettingsError("--grant wants NAMESPACE=ROLE, such as main=read")
        pairs.add((pattern, other))
    if len(joined := dict(pairs)) < len(pairs):
        raise SettingsError("the token would have two roles in one namespace")
    return joined


def _rights(token: Token) -> str:
    return ",".join(f"{name}={role}" for name, role in token.grants.items())


def _end(token: Token) -> str:
    if token.revoked:
        return f"revoked {token.revoked:%F}"
    return f"until {token.expires:%F}" if token.expires else ""


@contextmanager
def _open_database(
    url: str | None,
    flags: Mapping[str, object] | None = None,
    *,
    ready: bool = False,
    existing: bool = False,
) -> Iterator[tuple[ServerSettings, Database]]:
    """Open the database of the settings, and report errors within the block in one line.

    A SQLite file is created unless it must be `existing`; if `ready`, the schema must be current.
    """
    from .settings import read_settings
    from .storage import schema
    from .storage.database import Database

    with _reported_errors():
        settings = read_settings({"database": url, **(flags or {})})
        with closing(Database(settings.database, create=not existing)) as opened:
            if ready:
                schema.require_current(opened)
            yield settings, opened


@contextmanager
def _reported_errors() -> Iterator[None]:
    """Report expected errors within the block in one line, and exit with their code."""
    from pydantic import ValidationError
    from sqlalchemy.exc import DBAPIError

    code = ExitCode.UNUSABLE
    try:
        yield
        return
    except ValidationError as error:
        wrong = [(" ".join(map(str, item["loc"][:2])), item["msg"]) for item in error.errors()]
        message, code = "; ".join(f"{what}: {said}" for what, said in wrong), ExitCode.USAGE
    except DBAPIError as error:
        message = f"the database does not work: {str(error.orig).strip().splitlines()[0]}"
    except DejavuError as error:
        message, code = str(error), error.exit_code
    except OSError as error:
        message = str(error)
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(code)
