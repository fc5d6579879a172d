"""The ASGI application, the checks at its start, and running it in this process."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import re
import resource
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.staticfiles import StaticFiles

from dejavu_cache import __version__
from dejavu_cache.errors import SettingsError
from dejavu_cache.system.safe_files import data_folder

from . import pages
from .monitoring import configure_log
from .problems import HANDLERS
from .server import SETS, Gate, Server, is_loopback
from .services import health, leases, log, misses, quarantines, reads, records, tokens, transfer
from .services.access import ANYBODY, EVERYWHERE
from .settings import ServerSettings
from .storage import schema
from .storage.database import Database

_logger = logging.getLogger(__name__)

_FLUSH_SECONDS = 60.0
"""Seconds between two writes of which contexts were read."""
_SHUTDOWN_SECONDS = 10
"""Seconds that requests have to end after a signal to stop."""
_DRAIN_STEP = 0.1
"""Seconds after which a draining server notices that it is to stop at once."""
_IDLE_SECONDS = 75
"""Seconds for which an idle connection is kept: longer than proxies keep theirs to a server."""
_STARTUP_FAILURE = 3
"""Exit code if the server could not start to listen, as of uvicorn since 0.50."""
_ARENA_MAX = -8
"""Number of `M_ARENA_MAX` among the parameters of glibc's `mallopt`."""
_ARENAS = 2
"""Arenas from which all threads allocate."""


class _SignedSets(StaticFiles):
    """The files of a folder's signed sets; a key that lies beside them is not served."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        """Return where a file is, and None if there is none."""
        is_of_a_set = re.fullmatch(r"(.*/)?(index\.signed|[0-9a-f]{64}\.json)", path)
        return super().lookup_path(path) if is_of_a_set else ("", None)


def create_app(settings: ServerSettings) -> FastAPI:
    """Create the application of one server, whose database must have the current schema."""
    server = Server(settings)
    app = health.DescribedApp(
        title="dejavu-cache",
        exception_handlers=HANDLERS,
        version=__version__,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
        separate_input_output_schemas=False,
        # `/metrics` has what there is to know; otherwise each request looks for tracers.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.server = server
    # Reads are the most frequent requests.
    routed = (reads, records, leases, misses, quarantines, transfer, tokens, log, health, pages)
    for module in routed:
        # Routes keep nothing of a request or an app, and analysing them anew would take a while.
        app.router.routes.extend(module.router.routes)
    if settings.sets is not None:
        app.mount(SETS, _SignedSets(directory=settings.sets))
    app.add_middleware(Gate, server=server)
    app.add_middleware(pages.ErrorPagesMiddleware)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    server: Server = app.state.server
    flushing = asyncio.create_task(_flush_periodically(server))
    try:
        yield
    finally:
        flushing.cancel()
        with suppress(asyncio.CancelledError):
            await flushing
        with suppress(SQLAlchemyError):
            server.reader.flush()
        await server.close()


async def _flush_periodically(server: Server) -> None:
    while True:
        await asyncio.sleep(_FLUSH_SECONDS)
        try:
            await run_in_threadpool(server.reader.flush)
        except SQLAlchemyError as error:
            _logger.warning(
                "use was not noted", extra={"fields": {"error": str(error).partition("\n")[0]}}
            )


def prepare(settings: ServerSettings, database: Database) -> str:
    """Check that the server may start with these settings, and make the first token if none is.

    Returns:
        What to say of it; an empty text if there is nothing.

    Raises:
        SchemaError: The database must be upgraded first.
        SettingsError: The server would listen beyond loopback without tokens.
    """
    schema.require_current(database)
    command = f"dejavu-cache token create --role admin --name ops {database.option}"
    if tokens.any_issued(database):
        ignored = "--without-tokens has no effect: there are tokens, so every request needs one."
        return ignored if settings.without_tokens else ""
    if not is_loopback(settings.host):
        raise SettingsError(
            f"{settings.host} can be reached by others, and there is no token yet: run  {command}"
        )
    if settings.without_tokens:
        return (
            f"Without tokens: {settings.host} answers this machine only, and everybody on it, "
            f"until a token is created.\nTo serve others:  {command}"
        )
    try:
        path = _make_first_token(settings, database)
    except OSError as error:
        raise SettingsError(
            f"the first token cannot be written ({error}): name another file in "
            f"DEJAVU_SERVER_FIRST_TOKEN_FILE, or run  {command}"
        ) from None
    return (
        f"The first start made an admin token, in {path}. Programs use it by:\n"
        f"  export DEJAVU_CACHE_TOKEN_FILE={path}"
    )


def _make_first_token(settings: ServerSettings, database: Database) -> Path:
    """Issue an admin token, and write it to a new file that only this user can read."""
    path = settings.first_token_file
    if path is None:
        folder = database.file.parent if database.file else data_folder()
        path = folder / f"{database.file.name if database.file else 'server'}.token"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o600, exist_ok=False)
    try:
        issued = tokens.issue(database, ANYBODY, "first admin", {EVERYWHERE: "admin"})
        path.write_text(f"{issued.token}\n")
    except BaseException:
        path.unlink()  # an empty file would keep the next start from writing one
        raise
    return path


def run(settings: ServerSettings) -> None:
    """Serve until a signal to stop."""
    _share_arenas()
    configure_log(settings.log_level)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    server = make_server(settings)
    # Exclude the objects of start-up from garbage collection: they stay, and a full collection
    # that went through them would delay every request meanwhile.
    gc.collect()
    gc.freeze()
    with suppress(KeyboardInterrupt, SystemExit):  # a signal's, raised again; a failed start's
        server.run()
    if not server.started:
        raise SystemExit(_STARTUP_FAILURE)


def _share_arenas() -> None:
    """Let threads allocate from a few arenas, if the C library is glibc.

    By default up to eight arenas a core keep what was freed in them: pages that SQLite caches and
    drops are allocated by any of 40 threads, and resident memory would grow for hours.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, _ARENAS)


def make_server(settings: ServerSettings) -> StoppingServer:
    """Make a server that `run` starts."""
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        ws="none",
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        # Trust nobody's X-Forwarded-For by default, loopback included.
        forwarded_allow_ips=settings.trusted_proxies,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    return StoppingServer(config)


class StoppingServer(uvicorn.Server):
    """A server that stops without a failed request.

    For a while it serves and says that it is not ready, so that a load balancer sends no more.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, and close the connections."""
        server: Server = self.config.app.state.server  # type: ignore[union-attr]
        server.stopping.set()
        # A client that keeps its connection would otherwise send on it when it is closed.
        self.server_state.default_headers.append((b"connection", b"close"))
        deadline = time.monotonic() + server.settings.drain
        while time.monotonic() < deadline and not self.force_exit:
            await asyncio.sleep(_DRAIN_STEP)
        await super().shutdown(sockets)
