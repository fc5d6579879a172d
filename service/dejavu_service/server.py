"""The parts that one server is made of."""

from __future__ import annotations

from dataclasses import dataclass

from .auth import Identities
from .database import Database
from .metrics import Metrics
from .reads import Reads
from .settings import Settings

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
