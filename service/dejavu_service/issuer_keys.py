"""Public keys of the issuers of identity tokens, fetched and cached."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from .errors import IssuerUnavailableError
from .services.identity_rules import TrustedIssuer

__all__ = ["IssuerKeys"]

_FRESH = 3600.0
"""Seconds for which keys are used without asking again, so for which a withdrawn one may count."""
_STALE = 24 * 3600.0
"""Seconds for which keys are used while their issuer does not answer."""
_PAUSE = 10.0
"""Seconds between two requests to an issuer, whatever key ids are asked for."""
_TIMEOUT = 5.0
"""Seconds that an issuer may be silent."""
_LONGEST = 8.0
"""Seconds that asking an issuer may take as a whole, however it drips."""
_LARGEST = 2**20
"""Bytes of an issuer's answer."""
_FAILURES = (
    httpx.HTTPError, httpx.InvalidURL, asyncio.TimeoutError, ImportError, OSError, RecursionError,
    ValueError,
)  # fmt: skip
"""Errors of an issuer that does not answer, or answers what are no keys."""
_KEY_TYPES = {"RSA", "EC", "OKP"}
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


@dataclass
class _KeySet:
    keys: dict[str, Any] = field(default_factory=dict)
    fetched_at: float = float("-inf")
    asked_at: float = float("-inf")
    lock: threading.Lock = field(default_factory=threading.Lock)


class IssuerKeys:
    """The keys of issuers, asked for again when they are old or a key's id is new."""

    def __init__(self) -> None:
        """Begin without keys."""
        self._sets: dict[str, _KeySet] = {}
        self._lock = threading.Lock()

    def find(self, issuer: TrustedIssuer, key_id: str) -> Any:
        """Return a key as `jwt.PyJWK`, or None if the issuer has none of this id.

        Raises:
            IssuerUnavailableError: The issuer does not answer, and there are no keys of it.
        """
        with self._lock:
            cached = self._sets.setdefault(issuer.issuer, _KeySet())
        with cached.lock:
            age = time.monotonic() - cached.fetched_at
            is_wanted = age > _FRESH or key_id not in cached.keys
            if is_wanted and time.monotonic() - cached.asked_at > _PAUSE:
                _refresh(cached, issuer)
            if time.monotonic() - cached.fetched_at > _STALE:
                raise IssuerUnavailableError(f"the keys of {issuer.issuer} cannot be read")
            return cached.keys.get(key_id)


def _refresh(cached: _KeySet, issuer: TrustedIssuer) -> None:
    """Ask an issuer for its keys; keys that are not too old stay if it does not answer."""
    try:
        cached.keys = _fetch_keys(issuer)
        cached.fetched_at = time.monotonic()
    except _FAILURES as error:
        if time.monotonic() - cached.fetched_at > _STALE:
            raise IssuerUnavailableError(
                f"the keys of {issuer.issuer} cannot be read: {type(error).__name__}"
            ) from error
    finally:
        cached.asked_at = time.monotonic()  # only now: an issuer may take long not to answer


def _fetch_keys(issuer: TrustedIssuer) -> dict[str, Any]:
    import jwt

    if issuer.jwks is not None and "://" not in issuer.jwks:
        document = json.loads(Path(issuer.jwks).read_text(encoding="utf-8"))
    else:
        document = asyncio.run(asyncio.wait_for(_fetch_document(issuer), _LONGEST))
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError("these are no keys")
    keys = {}
    for item in listed:
        if not isinstance(item, dict) or item.get("kty") not in _KEY_TYPES:
            continue
        if item.get("use", "sig") == "sig" and isinstance(item.get("kid"), str):
            try:
                keys[item["kid"]] = jwt.PyJWK(item)
            except jwt.PyJWTError:  # a kind of key that this library does not know
                continue
    return keys


async def _fetch_document(issuer: TrustedIssuer) -> Any:
    context = ssl.create_default_context(cafile=issuer.ca)
    async with httpx.AsyncClient(
        timeout=_TIMEOUT, verify=context, follow_redirects=False
    ) as client:
        url = issuer.jwks
        if url is None:
            described = await _get(
                client, f"{issuer.issuer.rstrip('/')}/.well-known/openid-configuration", issuer
            )
            if not isinstance(described, dict) or described.get("issuer") != issuer.issuer:
                raise ValueError("the description is of another issuer")
            url = str(described.get("jwks_uri"))
        return await _get(client, url, issuer)


async def _get(client: httpx.AsyncClient, url: str, issuer: TrustedIssuer) -> Any:
    address = urlsplit(url)
    if address.scheme != "https" and not (
        address.scheme == "http" and address.hostname in _LOOPBACK
    ):
        raise ValueError("keys are read over https only")
    headers = {}
    # Only the issuer's own host gets the token, wherever it says that its keys are.
    if (
        issuer.bearer is not None
        and address.netloc == urlsplit(issuer.jwks or issuer.issuer).netloc
    ):
        headers["Authorization"] = f"Bearer {issuer.bearer.read_text(encoding='ascii').strip()}"
    async with client.stream("GET", url, headers=headers) as answer:
        if answer.status_code != 200:
            raise ValueError(f"the issuer answered {answer.status_code}")
        body = bytearray()
        async for chunk in answer.aiter_bytes():
            body += chunk
            if len(body) > _LARGEST:
                raise ValueError("the issuer's answer is too long")
    return json.loads(body)
