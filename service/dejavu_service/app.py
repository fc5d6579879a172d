"""The ASGI application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from dejavu_cache import __version__

from . import pages
from .middleware.authentication import AuthenticationMiddleware
from .middleware.limits import RequestLimits
from .middleware.request_log import RequestLogMiddleware
from .problems import install_handlers
from .routes import (
    health,
    leases,
    log,
    misses,
    quarantines,
    reads,
    records,
    tokens,
    transfer,
)
from .server import Server
from .settings import ServerSettings

__all__ = ["create_app"]

_logger = logging.getLogger(__name__)

_FLUSH_SECONDS = 60.0
"""Seconds between two writes of which contexts were read."""


def create_app(settings: ServerSettings) -> FastAPI:
    """Create the application of one server, whose database must have the current schema."""
    server = Server(settings)
    app = FastAPI(
        title="dejavu-cache",
        version=__version__,
        openapi_url=None,
        lifespan=_lifespan,
        separate_input_output_schemas=False,
        # `/metrics` has what there is to know; otherwise each request looks for tracers.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.server = server
    install_handlers(app)
    # Reads are the most frequent requests. Tokens come next: otherwise `/v1/tokens` would match the
    # routes of a namespace.
    for module in (
        reads,
        tokens,
        records,
        leases,
        misses,
        quarantines,
        transfer,
        log,
        health,
        pages,
    ):
        # Routes keep nothing of a request or an app, and analysing them anew would take a while.
        app.router.routes.extend(module.router.routes)
    app.add_middleware(AuthenticationMiddleware, principals=server.principals, settings=settings)
    app.add_middleware(RequestLimits, most=settings.requests)
    app.add_middleware(RequestLogMiddleware, metrics=server.metrics)
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
