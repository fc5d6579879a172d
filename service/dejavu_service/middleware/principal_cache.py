"""Cache of the principals of tokens, and of whether any token exists."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import NamedTuple

from starlette.concurrency import run_in_threadpool

from ..services import tokens
from ..services.access import Principal
from ..services.single_flight import SingleFlight
from ..storage.database import Database
from ..storage.tokens import any_issued

__all__ = ["PrincipalCache"]

_MAX_TOKENS = 1000
"""Tokens that are cached."""


class _CachedPrincipal(NamedTuple):
    principal: Principal
    refresh_at: float
    """When a request starts a new look-up in the background."""
    expires_at: float
    """When the entry is no longer used."""


class PrincipalCache:
    """Principals of tokens, as the database had them at most `ttl` seconds ago.

    A token in use is looked up again in the background after half of that time, once for all
    requests. Otherwise all of them would find the entry expired together, take a connection each,
    and wait.
    """

    def __init__(self, database: Database, ttl: float) -> None:
        """Cache look-ups in a database for `ttl` seconds."""
        self._database = database
        self._ttl = ttl
        self._principals: OrderedDict[str, _CachedPrincipal] = OrderedDict()
        self._verifying: SingleFlight[str, Principal | None] = SingleFlight()
        self._checking_tokens: SingleFlight[None, bool] = SingleFlight()
        self._tokens_exist = False
        self._tokens_checked_at = float("-inf")

    def cached_principal(self, presented: str) -> Principal | None:
        """Return the cached principal of a token, or None."""
        entry, now = self._principals.get(presented), time.monotonic()
        if entry is None or entry.expires_at <= now:
            return None
        if entry.refresh_at <= now:
            self._verifying.start(presented, lambda: self._verify(presented))
        return entry.principal

    async def find(self, presented: str) -> Principal | None:
        """Return the principal of a token; None if it is wrong, expired or revoked."""
        return self.cached_principal(presented) or await self._verifying.get(
            presented, lambda: self._verify(presented)
        )

    async def tokens_exist(self) -> bool:
        """Return whether any token was ever issued; once true, this is never asked again."""
        if not self._tokens_exist and time.monotonic() - self._tokens_checked_at > self._ttl:
            self._tokens_exist = await self._checking_tokens.get(None, self._check_tokens)
        return self._tokens_exist

    def clear(self) -> None:
        """Drop all entries, and the results of look-ups in progress."""
        self._principals, self._verifying = OrderedDict(), SingleFlight()
        self._tokens_checked_at = float("-inf")

    async def _verify(self, presented: str) -> Principal | None:
        # `clear` replaces the dict: a look-up that began before it must not write to the new one.
        principals, started = self._principals, time.monotonic()
        verified = await run_in_threadpool(tokens.verify, self._database, presented)
        if verified is None:
            principals.pop(presented, None)
            return None
        ttl = self._ttl if verified.expires_in is None else min(self._ttl, verified.expires_in)
        principals[presented] = _CachedPrincipal(
            verified.principal, refresh_at=started + ttl / 2, expires_at=started + ttl
        )
        while len(principals) > _MAX_TOKENS:
            principals.popitem(last=False)
        return verified.principal

    async def _check_tokens(self) -> bool:
        started = time.monotonic()
        issued = await run_in_threadpool(self._any_issued)
        self._tokens_checked_at = started
        return issued

    def _any_issued(self) -> bool:
        with self._database.read() as connection:
            return any_issued(connection)
