"""The parts that one server is made of."""

from __future__ import annotations

from dataclasses import dataclass

from .bulk_read.answers import Reads
from .metrics import Metrics
from .middleware.authentication import Identities
from .settings import Settings
from .storage.database import Database

__all__ = ["Server"]


@dataclass(frozen=True)
class Server:
    """Made once for an app; routes get it with the principal who asks."""

    settings: Settings
    database: Database
    identities: Identities
    reads: Reads
    metrics: Metrics

    @classmethod
    def open(cls, settings: Settings) -> Server:
        """A server on its database, which nothing has connected to yet."""
        database = Database(settings.database, settings.pool)
        return cls(
            settings=settings,
            database=database,
            identities=Identities(database, settings),
            reads=Reads(database, settings.cache_bytes),
            metrics=Metrics(database),
        )

    async def close(self) -> None:
        """Lets go of the database."""
        await self.reads.close()
        self.database.close()
