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

from .middleware.authentication import Gate
from .middleware.request_log import Front
from .openapi import publish
from .problems import install_handlers
from .routes.bulk import quick_route
from .routes.health import health
from .routes.leases import leases
from .routes.misses import misses
from .routes.pages import pages
from .routes.pins import pins
from .routes.records import records
from .routes.tokens import tokens
from .routes.transfer import transfer
from .server_parts import Server
from .settings import Settings

__all__ = ["create_app"]

_logger = logging.getLogger(__name__)

_FLUSH = 60.0
"""Seconds between two notes of what was read."""


def create_app(settings: Settings) -> FastAPI:
    """The application of one server; its database must have the current schema."""
    server = Server.open(settings)
    app = FastAPI(
        title="dejavu-cache",
        version=__version__,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
        separate_input_output_schemas=False,
    )
    app.state.server = server
    install_handlers(app)
    # Tokens come first: their path would be a namespace's otherwise.
    for router in (tokens, records, leases, misses, pins, transfer, health, pages):
        app.include_router(router)
    app.router.routes.insert(0, quick_route(server))
    app.add_middleware(Gate, identities=server.identities, settings=settings)
    app.add_middleware(Front, metrics=server.metrics)
    publish(app)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    server: Server = app.state.server
    flushing = asyncio.create_task(_flush(server))
    try:
        yield
    finally:
        flushing.cancel()
        with suppress(asyncio.CancelledError):
            await flushing
        with suppress(SQLAlchemyError):
            server.reads.flush()
        await server.close()


async def _flush(server: Server) -> None:
    while True:
        await asyncio.sleep(_FLUSH)
        try:
            await run_in_threadpool(server.reads.flush)
        except SQLAlchemyError as error:
            _logger.warning(
                "use was not noted", extra={"fields": {"error": str(error).partition("\n")[0]}}
            )
