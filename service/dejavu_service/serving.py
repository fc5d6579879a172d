"""Running the server in this process."""

from __future__ import annotations

import gc

import uvicorn

from dejavu_cache.errors import SettingsError

from .app import create_app
from .logs import configure
from .middleware.authentication import is_loopback
from .settings import Settings
from .storage import schema
from .storage.database import Database
from .storage.tokens import any_issued

__all__ = ["prepare", "run"]

_GRACE = 10
"""Seconds that requests have to end when the server is told to."""


def prepare(settings: Settings, database: Database) -> bool:
    """Checks that the server may start; says whether it will answer without tokens.

    Raises:
        SchemaError: the database must be upgraded first.
        SettingsError: without tokens, only loopback may be served; or half of the TLS settings is missing.
    """
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise SettingsError("TLS needs both --tls-cert and --tls-key")
    schema.require(database)
    with database.read() as connection:
        issued = any_issued(connection)
    if not issued and not is_loopback(settings.host):
        raise SettingsError(
            f"{settings.host} can be reached by others, and there is no token yet: "
            "run  dejavu-cache token create --role admin --name ops"
        )
    return not issued


def run(settings: Settings) -> None:
    """Serves until told to stop."""
    configure(settings.log_level)
    app = create_app(settings)
    # What is there now stays: a full collection that went through all of it would hold up every request meanwhile.
    gc.collect()
    gc.freeze()
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
    )
