"""Objects that live as long as the server and that all requests share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .metrics import Metrics
from .middleware.authentication import PrincipalCache
from .middleware.bodies import BodyTurns
from .middleware.limits import Turns
from .services.reads import RecordReader
from .services.single_flight import SingleFlight
from .settings import ServerSettings
from .storage.database import Database
from .storage.schema import SchemaState

if TYPE_CHECKING:
    from .identities import IdentityExchange

__all__ = ["Server"]

_EXCHANGES = 8
"""Identity tokens that are exchanged at a time: each takes one of the threads of all requests."""
_RENDERED = 4
"""Pages, and answers with records, made at a time: each may take long and much memory."""
_EXPORTS = 16
"""Exports at a time, of which one principal has two: each takes memory until it was read."""


class Server:
    """The settings, the database and the caches of one server."""

    def __init__(self, settings: ServerSettings) -> None:
        """Create the server's objects without connecting to the database.

        Raises:
            SettingsError: The rules of issuers are wrong.
        """
        self.settings = settings
        self.database = Database(settings.database, settings.pool)
        self.principals = PrincipalCache(self.database, settings.token_ttl)
        self.bodies = BodyTurns(settings.max_body, settings.pool)
        self.identities = _open_exchange(settings)
        self.exchanging = asyncio.Semaphore(_EXCHANGES)
        self.page_turns = Turns(_RENDERED, _RENDERED - 1)
        self.render_turns = Turns(_RENDERED, _RENDERED - 1)
        self.export_turns = Turns(_EXPORTS)
        self.reader = RecordReader(self.database, settings.cache_bytes)
        self.metrics = Metrics(self.database)
        self.readiness: SingleFlight[None, SchemaState] = SingleFlight()
        self.stopping = asyncio.Event()
        """Set once the server shall get no more requests."""

    async def close(self) -> None:
        """Close all connections to the database."""
        await self.reader.close()
        self.database.close()


def _open_exchange(settings: ServerSettings) -> IdentityExchange | None:
    if settings.oidc is None:
        return None
    # What verifies signatures takes time and memory, which other servers need not spend.
    from .identities import IdentityExchange, read_issuers

    return IdentityExchange(read_issuers(settings.oidc))
