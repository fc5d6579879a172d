"""Objects that live as long as the server and that all requests share."""

from __future__ import annotations

from dataclasses import dataclass

from .bulk_read.answers import RecordReader
from .metrics import Metrics
from .middleware.principal_cache import PrincipalCache
from .settings import ServerSettings
from .storage.database import Database

__all__ = ["Server"]


@dataclass(frozen=True)
class Server:
    """The settings, the database and the caches of one server.

    Attributes:
        settings: The server's settings.
        database: The database and its connections.
        principals: The cache of tokens' principals.
        reader: The reads of records and their cache.
        metrics: The counters for Prometheus.
    """

    settings: ServerSettings
    database: Database
    principals: PrincipalCache
    reader: RecordReader
    metrics: Metrics

    @classmethod
    def open(cls, settings: ServerSettings) -> Server:
        """Create the server's objects without connecting to the database."""
        database = Database(settings.database, settings.pool)
        return cls(
            settings=settings,
            database=database,
            principals=PrincipalCache(database, settings.token_ttl),
            reader=RecordReader(database, settings.cache_bytes),
            metrics=Metrics(database),
        )

    async def close(self) -> None:
        """Close all connections to the database."""
        await self.reader.close()
        self.database.close()
