"""Exchange of identity tokens (OpenID Connect) for short-lived tokens of this server."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from dejavu_cache.errors import SettingsError

from ..errors import (
    AccessDeniedError,
    TokenExistsError,
    TooManyError,
    UnauthenticatedError,
)
from ..storage import tokens as stored_tokens
from ..storage.database import Database
from . import tokens
from .access import EVERYWHERE, Principal
from .identity_rules import TrustedIssuer
from .retention import TOKENS_DAYS
from .tokens import Issued

__all__ = ["ALGORITHMS", "MOST_TOKENS", "IdentityExchange"]

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
"""Signatures by a private key; with a shared secret, whoever can check one can also make one."""
_LEEWAY = 30.0
"""Seconds by which clocks may differ."""
_LONGEST = 16 * 1024
"""Characters of an identity token."""
MOST_TOKENS = 1000
"""Valid tokens at a time that were issued for one identity token."""
_ID_DIGITS = 8
"""Digits that the ids of an identity token's tokens begin with."""


class IdentityExchange:
    """Verification of identity tokens, and the issue of tokens by the rules.

    Args:
        issuers: The trusted issuers by name.
        find_key: Returns an issuer's public key by its id, as `jwt.PyJWK`; None if it has none.
    """

    def __init__(
        self,
        issuers: Mapping[str, TrustedIssuer],
        find_key: Callable[[TrustedIssuer, str], Any],
    ) -> None:
        """Trust these issuers.

        Raises:
            SettingsError: The library that verifies signatures is not installed.
        """
        try:
            import jwt
        except ImportError:
            raise SettingsError(
                "identity tokens need PyJWT: run  pip install 'dejavu-cache[server]'"
            ) from None
        self._jwt = jwt
        self._issuers = issuers
        self._find_key = find_key

    def exchange(self, database: Database, presented: str) -> Issued:
        """Issue a token for an identity token.

        Raises:
            AccessDeniedError: No rule matches the claims.
            UnauthenticatedError: The token is not valid here, or was exchanged before; the message
                does not repeat it.
            TooManyError: There are `MOST_TOKENS` valid tokens for the identity token.
        """
        claims, issuer = self._verify(presented)
        digest = _content_digest(presented)
        identity = _single_use_id(digest, claims) if issuer.once else _next_id(digest, database)
        subject = claims["sub"]
        for rule in issuer.rules:
            if (rights := rule.match(claims)) is not None:
                name = "".join(char if char.isprintable() else "?" for char in rights.name)[:200]
                granter = Principal(f"issuer {issuer.issuer}", {EVERYWHERE: "admin"})
                ttl = rule.minutes * 60
                try:
                    return tokens.issue(
                        database, granter, name, "read", (), ttl, rights.grants, identity
                    )
                except TokenExistsError:
                    raise UnauthenticatedError(
                        "the identity token was exchanged before: ask its issuer for another one"
                    ) from None
        raise AccessDeniedError(
            f"no rule of this server matches the claims of {subject[:200]!r}: ask its admin"
        )

    def _verify(self, presented: str) -> tuple[Mapping[str, Any], TrustedIssuer]:
        if len(presented) > _LONGEST or not presented.isascii():
            raise UnauthenticatedError("this is no identity token")
        try:
            header = self._jwt.get_unverified_header(presented)
            unverified = self._jwt.decode(presented, options={"verify_signature": False})
        except (self._jwt.PyJWTError, ValueError, RecursionError):
            raise UnauthenticatedError("this is no identity token") from None
        name, key_id = unverified.get("iss"), header.get("kid")
        issuer = self._issuers.get(name) if isinstance(name, str) else None
        if issuer is None:
            raise UnauthenticatedError("this server does not trust the issuer of the token")
        if header.get("alg") not in ALGORITHMS or not isinstance(key_id, str):
            raise UnauthenticatedError("the token is not signed by a key of its issuer")
        key = self._find_key(issuer, key_id)
        if key is None or key.algorithm_name not in ALGORITHMS:
            raise UnauthenticatedError("the token is not signed by a key of its issuer")
        try:
            claims = self._jwt.decode(
                presented,
                key,
                algorithms=[key.algorithm_name],
                audience=issuer.audience,
                issuer=issuer.issuer,
                leeway=_LEEWAY,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )
        except (self._jwt.PyJWTError, ValueError, OverflowError, TypeError) as error:
            # The errors of PyJWT name a claim and not the token.
            raise UnauthenticatedError(f"the identity token is not valid: {error}") from None
        # PyJWT takes the text of a number for a number.
        if not isinstance(claims["sub"], str) or not isinstance(claims["exp"], (int, float)):
            raise UnauthenticatedError(
                "the identity token is not valid: sub is a text, exp a number"
            )
        return claims, issuer


def _single_use_id(digest: str, claims: Mapping[str, Any]) -> str:
    """Return the id of the only token that is issued for an identity token.

    Its row tells all replicas that the identity token was exchanged, until the row is pruned.

    Raises:
        UnauthenticatedError: The identity token outlives the row.
    """
    if claims["exp"] - time.time() > TOKENS_DAYS * 86400.0:
        raise UnauthenticatedError(
            f"the identity token lives for more than {TOKENS_DAYS:.0f} days: ask for a shorter one"
        )
    return digest[:16]


def _next_id(digest: str, database: Database) -> str:
    """Return an id for one more token that is issued for an identity token.

    All of them begin alike, so that they can be counted.

    Raises:
        TooManyError: There are `MOST_TOKENS` valid ones.
    """
    beginning = digest[:_ID_DIGITS]
    with database.read() as connection:
        if stored_tokens.count_valid(connection, beginning) >= MOST_TOKENS:
            raise TooManyError(
                f"{MOST_TOKENS} tokens for this identity token are valid: use one of them"
            )
    return beginning + secrets.token_hex(8 - _ID_DIGITS // 2)


def _content_digest(presented: str) -> str:
    """Return a digest without the signature, of which there may be several for one content."""
    content = presented.rpartition(".")[0]
    return hashlib.sha256(content.encode()).hexdigest()
