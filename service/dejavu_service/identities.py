"""Identity tokens (OpenID Connect) of other issuers, exchanged for tokens of this server.

The rules say whose tokens get which rights. PyJWT fetches and caches an issuer's public keys, and
verifies signatures and claims; each exchange leaves a token in the database.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import httpx
import jwt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dejavu_cache.errors import SettingsError, describe_problems

from .errors import AccessDeniedError, InvalidRequestError, UnauthenticatedError, UnavailableError
from .services import tokens
from .services.access import EVERYWHERE, NAMESPACE_PATTERN, Principal, Role
from .services.retention import TOKENS_DAYS
from .services.tokens import Issued
from .storage.database import Database

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
"""Signatures by a private key; with a shared secret, whoever can check one can also make one."""
_LEEWAY = 30.0
"""Seconds by which clocks may differ."""
_FRESH = 3600.0
"""Seconds for which keys are used without asking again, so for which a withdrawn one may count."""
_PAUSE = 10.0
"""Seconds for which no key with an unknown id is asked for: anybody can name one."""
_TIMEOUT, _MOST_BYTES = 5.0, 2**20
"""Limits of an issuer's whole answer, however it comes."""
_KEYS_URL = r"^(https://|http://(localhost|127\.0\.0\.1|\[::1\])[:/])"
"""Keys are read over HTTPS, but for an issuer on this machine."""

_Text = Annotated[str, Field(min_length=1, max_length=1000)]
_PLACEHOLDER = re.compile(r"\{([a-z_]{1,40})\}")
_PART = "[A-Za-z0-9]{1,41}"
"""What a placeholder stands for: a part of a namespace's name, which no claim can widen, and which
ends where the name goes on with another character: `{a}-{b}` is never the name of other claims."""


class ClaimRule(BaseModel):
    """Rights for the identity tokens whose claims match.

    A `{word}` in a claim stands for letters and digits, and for the same ones in `grants` and
    `name`, so that each pull request gets rights in a namespace of its own.

    Attributes:
        claims: The text that each claim must have; with a star at the end, how it must begin.
        grants: The roles by namespace, as a token has them.
        name: The name of the token that is issued; by default the claim `sub`.
        minutes: How long that token lives.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    claims: dict[_Text, _Text] = Field(min_length=1)
    grants: dict[_Text, Role] = Field(min_length=1, max_length=100)
    name: _Text | None = None
    minutes: float = Field(default=60.0, gt=0, le=24 * 60, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_placeholders(self) -> ClaimRule:
        placeholders = {
            word for text in self.claims.values() for word in _PLACEHOLDER.findall(text)
        }
        for text in (*self.grants, self.name or ""):
            if unknown := set(_PLACEHOLDER.findall(text)) - placeholders:
                raise ValueError(f"{text!r}: no claim of the rule has {{{min(unknown)}}}")
        for namespace in self.grants:
            example = _fill(namespace, dict.fromkeys(placeholders, "x"))
            if not re.fullmatch(NAMESPACE_PATTERN, example):
                raise ValueError(f"{namespace!r} names no namespace")
            if re.search(r"\}[A-Za-z0-9]*[*{]", namespace):
                raise ValueError(f"{namespace!r} would reach the namespaces of other claims")
        return self

    def match(self, claims: Mapping[str, Any]) -> tuple[str, dict[str, Role]] | None:
        """Return the name and the grants of a token for some claims.

        None unless all claims of the rule match as texts.
        """
        words: dict[str, str] = {}
        for name, wanted in self.claims.items():
            found = _match(claims.get(name), wanted)
            if found is None or any(words.get(word, text) != text for word, text in found.items()):
                return None
            words |= found
        grants = {_fill(namespace, words): role for namespace, role in self.grants.items()}
        if not all(re.fullmatch(NAMESPACE_PATTERN, namespace) for namespace in grants):
            return None  # what the placeholders stand for makes a name too long
        name = str(claims["sub"]) if self.name is None else _fill(self.name, words)
        return name, grants


def _match(claim: Any, wanted: str) -> dict[str, str] | None:
    """Return what the placeholders of a pattern stand for in a claim; None if it does not match."""
    if not isinstance(claim, str):
        return None
    parts = _PLACEHOLDER.split(wanted.removesuffix("*"))
    pattern = re.escape(parts[0])
    for word, text in zip(parts[1::2], parts[2::2], strict=True):
        # The second of two equal words stands for the same text as the first.
        pattern += f"(?P={word})" if f"(?P<{word}>" in pattern else f"(?P<{word}>{_PART})"
        pattern += re.escape(text)
    pattern += ".*" if wanted.endswith("*") else ""
    matched = re.fullmatch(pattern, claim, re.DOTALL)
    return matched.groupdict() if matched else None


def _fill(template: str, words: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda found: words[found[1]], template)


class TrustedIssuer(BaseModel):
    """An issuer of identity tokens that this server accepts.

    Attributes:
        issuer: The claim `iss`.
        audience: What the claim `aud` must have, so that tokens for other services do not count.
        jwks: The URL of the issuer's keys.
        rules: Rights; the first rule that matches counts.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: _Text
    audience: _Text
    jwks: str = Field(pattern=_KEYS_URL)
    rules: tuple[ClaimRule, ...] = Field(min_length=1)


class _IssuerFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    issuers: tuple[TrustedIssuer, ...] = Field(min_length=1)


class _Keys(jwt.PyJWKClient):  # type: ignore[misc]
    """The keys of an issuer, which may drip, or never end: a socket's timeout bounds neither."""

    def fetch_data(self) -> Any:
        """Return what the issuer says its keys are; the pause begins also without an answer."""
        try:
            return json.loads(asyncio.run(asyncio.wait_for(self._fetch(), _TIMEOUT)))
        except BaseException:
            self._last_successful_fetch = time.monotonic()  # of `PyJWKClient`
            raise

    async def _fetch(self) -> bytes:
        text = b""
        async with httpx.AsyncClient() as client, client.stream("GET", self.uri) as answer:
            answer.raise_for_status()
            async for piece in answer.aiter_bytes():
                text += piece
                if len(text) > _MOST_BYTES:
                    raise ValueError(f"over {_MOST_BYTES} bytes")
        return text


class IdentityExchange:
    """Verification of identity tokens, and the issue of tokens by the rules."""

    def __init__(self, path: Path) -> None:
        """Trust the issuers that a TOML file names.

        Raises:
            SettingsError: The file cannot be read or says something that is not understood.
        """
        try:
            text = path.read_text(encoding="utf-8")
            issuers = _IssuerFile.model_validate(tomllib.loads(text)).issuers
        except ValidationError as error:
            raise SettingsError(f"{path}: {describe_problems(error.errors())}") from None
        except (OSError, ValueError) as error:
            raise SettingsError(f"{path} cannot be read: {error}") from None
        self._issuers = {issuer.issuer: issuer for issuer in issuers}
        if len(self._issuers) < len(issuers):
            raise SettingsError(f"{path} names an issuer twice: put its rules together")
        self._keys = {
            name: _Keys(issuer.jwks, lifespan=_FRESH, cooldown_duration=_PAUSE)
            for name, issuer in self._issuers.items()
        }

    def exchange(self, database: Database, presented: str) -> Issued:
        """Issue a token for an identity token.

        Raises:
            AccessDeniedError: No rule matches the claims.
            UnauthenticatedError: The token is not valid here, or was exchanged before; the message
                does not repeat it.
            UnavailableError: The keys of its issuer cannot be read now.
        """
        claims, issuer = self._verify(presented)
        for rule in issuer.rules:
            if (rights := rule.match(claims)) is not None:
                name = "".join(char if char.isprintable() else "?" for char in rights[0])[:200]
                granter = Principal(f"issuer {issuer.issuer}", {EVERYWHERE: "admin"})
                ttl, identity = rule.minutes * 60, _token_id(presented, claims)
                try:
                    return tokens.issue(database, granter, name, rights[1], ttl, identity)
                except InvalidRequestError:
                    raise UnauthenticatedError(
                        "the identity token was exchanged before: ask its issuer for another one"
                    ) from None
        raise AccessDeniedError(
            f"no rule of this server matches the claims of {claims['sub'][:200]!r}: ask its admin"
        )

    def _verify(self, presented: str) -> tuple[Mapping[str, Any], TrustedIssuer]:
        try:
            text = presented.encode("ascii")
            unverified = jwt.decode_complete(text, options={"verify_signature": False})
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise UnauthenticatedError("this is no identity token") from None
        header, name = unverified["header"], unverified["payload"].get("iss")
        issuer = self._issuers.get(name) if isinstance(name, str) else None
        if issuer is None:
            raise UnauthenticatedError("this server does not trust the issuer of the token")
        key = self._find_key(issuer, header.get("kid"))
        if header.get("alg") not in _ALGORITHMS or key is None:
            raise UnauthenticatedError("the token is not signed by a key of its issuer")
        try:
            claims = jwt.decode(
                presented,
                key,
                algorithms=[key.algorithm_name],
                audience=issuer.audience,
                issuer=issuer.issuer,
                leeway=_LEEWAY,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )
        except (jwt.PyJWTError, ValueError, OverflowError, TypeError) as error:
            # The errors of PyJWT name a claim and not the token.
            raise UnauthenticatedError(f"the identity token is not valid: {error}") from None
        # PyJWT takes the text of a number for a number.
        if not isinstance(claims["sub"], str) or not isinstance(claims["exp"], (int, float)):
            raise UnauthenticatedError(
                "the identity token is not valid: sub is a text, exp a number"
            )
        return claims, issuer

    def _find_key(self, issuer: TrustedIssuer, key_id: Any) -> jwt.PyJWK | None:
        """Return a key for signatures, or None if the issuer has none of this id.

        Raises:
            UnavailableError: The issuer does not answer, or not with keys.
        """
        client = self._keys[issuer.issuer]
        try:
            known = client.get_signing_keys()
        except Exception as error:  # an issuer may answer anything
            raise UnavailableError(
                f"the keys of {issuer.issuer} cannot be read ({error!r:.200})"
            ) from None
        key = client.match_kid(known, key_id)  # does not wait for questions about other ids
        with suppress(Exception):  # it has no such key, also where it was asked anew
            key = key or client.get_signing_key(key_id)
        return key if key and key.algorithm_name in _ALGORITHMS else None


def _token_id(presented: str, claims: Mapping[str, Any]) -> str:
    """Return the id of the token that is issued for an identity token.

    It tells all replicas that the identity token was exchanged, until the token's row is pruned.

    Raises:
        UnauthenticatedError: The identity token outlives the row.
    """
    if claims["exp"] - time.time() > TOKENS_DAYS * 86400.0:
        raise UnauthenticatedError(
            f"the identity token lives for more than {TOKENS_DAYS:.0f} days: ask for a shorter one"
        )
    # Without the signature, of which there may be several for one content.
    return hashlib.sha256(presented.rpartition(".")[0].encode()).hexdigest()[:16]
