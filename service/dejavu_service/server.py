"""Objects that live as long as the server and that all requests share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .metrics import Metrics
from .middleware.authentication import PrincipalCache
from .middleware.bodies import BodyTurns
from .middleware.limits import Turns
from .services.read_through import ReadThrough
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
_PAGES = 4
"""Pages that are made at a time."""


@dataclass(frozen=True)
class Server:
    """The settings, the database and the caches of one server.

    Attributes:
        settings: The server's settings.
        database: The database and its connections.
        principals: The cache of tokens' principals.
        bodies: The turns of requests with bodies.
        identities: The exchange of other issuers' tokens; None if there is none.
        exchanging: The turns to exchange a token, of which a hanging issuer may take all.
        page_turns: The turns to make a page, which may take long and much memory.
        read_through: The namespaces beneath others.
        reader: The reads of records and their cache.
        metrics: The counters for Prometheus.
        readiness: The look-up of the schema's state that concurrent requests share.
        stopping: Set once the server shall get no more requests.
    """

    settings: ServerSettings
    database: Database
    principals: PrincipalCache
    bodies: BodyTurns
    identities: IdentityExchange | None
    exchanging: asyncio.Semaphore
    page_turns: Turns
    read_through: ReadThrough
    reader: RecordReader
    metrics: Metrics
    readiness: SingleFlight[None, SchemaState]
    stopping: asyncio.Event

    @classmethod
    def open(cls, settings: ServerSettings) -> Server:
        """Create the server's objects without connecting to the database.

        Raises:
            SettingsError: The rules of which namespaces read through, or of issuers, are wrong.
        """
        database = Database(settings.database, settings.pool)
        return cls(
            settings=settings,
            database=database,
            principals=PrincipalCache(database, settings.token_ttl),
            bodies=BodyTurns(settings.max_body, settings.pool),
            identities=_open_exchange(settings),
            exchanging=asyncio.Semaphore(_EXCHANGES),
            page_turns=Turns(_PAGES, _PAGES),
            read_through=ReadThrough.parse(settings.read_through),
            reader=RecordReader(database, settings.cache_bytes),
            metrics=Metrics(database),
            readiness=SingleFlight(),
            stopping=asyncio.Event(),
        )

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
