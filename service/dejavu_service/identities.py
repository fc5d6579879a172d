"""Identity tokens (OpenID Connect) of other issuers, exchanged for tokens of this server.

The rules say whose tokens get which rights. An issuer's public keys are fetched and cached here,
PyJWT verifies signatures and claims, and each exchange leaves a token in the database.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import ssl
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpx
import jwt
from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError, model_validator

from dejavu_cache.errors import SettingsError

from .errors import (
    AccessDeniedError,
    IssuerUnavailableError,
    TokenExistsError,
    TooManyError,
    UnauthenticatedError,
)
from .services import tokens
from .services.access import EVERYWHERE, NAMESPACE_PATTERN, Principal, Role
from .services.retention import TOKENS_DAYS
from .services.tokens import Issued
from .storage.database import Database

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["MOST_TOKENS", "ClaimRule", "IdentityExchange", "TrustedIssuer", "read_issuers"]

_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
"""Signatures by a private key; with a shared secret, whoever can check one can also make one."""
_LEEWAY = 30.0
"""Seconds by which clocks may differ."""
_LONGEST_TOKEN = 16 * 1024
"""Characters of an identity token."""
MOST_TOKENS = 1000
"""Valid tokens at a time that were issued for one identity token."""
_ID_DIGITS = 8
"""Digits that the ids of an identity token's tokens begin with."""
_FRESH = 3600.0
"""Seconds for which keys are used without asking again, so for which a withdrawn one may count."""
_PAUSE = 10.0
"""Seconds for which no key with an unknown id is asked for: anybody can name one."""
_TIMEOUT = 5.0
"""Seconds that an issuer may be silent."""
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}

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
        issuer: The claim `iss`; a URL, below which the issuer describes itself.
        audience: What the claim `aud` must have, so that tokens for other services do not count.
        jwks: The URL of the issuer's keys, or a file with them; by default as it describes itself.
        ca: File with the certificates that the issuer's own must come from.
        bearer: File with a token for reading the keys, as a Kubernetes cluster may want it.
        once: Whether each identity token is exchanged once alone.
        rules: Rights; the first rule that matches counts.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: _Text
    audience: _Text
    jwks: str | None = None
    ca: Path | None = None
    bearer: Path | None = None
    once: StrictBool = True
    rules: tuple[ClaimRule, ...] = Field(min_length=1)


class _IssuerFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    issuers: tuple[TrustedIssuer, ...] = Field(min_length=1)


def read_issuers(path: Path) -> dict[str, TrustedIssuer]:
    """Read a TOML file of issuers, and return them by name.

    Raises:
        SettingsError: The file cannot be read or says something that is not understood.
    """
    try:
        text = path.read_text(encoding="utf-8")
        issuers = _IssuerFile.model_validate(tomllib.loads(text)).issuers
    except (OSError, ValueError) as error:
        if isinstance(error, ValidationError):
            wrong = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
            raise SettingsError(f"{path}: {'; '.join(wrong)}") from None
        raise SettingsError(f"{path} cannot be read: {error}") from None
    by_name = {issuer.issuer: issuer for issuer in issuers}
    if len(by_name) < len(issuers):
        raise SettingsError(f"{path} names an issuer twice: put its rules together")
    return by_name


class IssuerKeys:
    """The keys of an issuer, read again when they are old or a key's id is new."""

    def __init__(self, issuer: TrustedIssuer) -> None:
        """Begin without keys."""
        self._issuer = issuer
        self._keys: dict[str, jwt.PyJWK] = {}
        self._read_at = float("-inf")
        self._lock = threading.Lock()

    def find(self, key_id: str) -> jwt.PyJWK | None:
        """Return a key, or None if the issuer has none of this id.

        Raises:
            IssuerUnavailableError: The issuer does not answer, or not with keys.
        """
        with self._lock:
            age = time.monotonic() - self._read_at
            if age > _FRESH or (age > _PAUSE and key_id not in self._keys):
                try:
                    self._keys = self._read()
                except Exception as error:  # an issuer may answer anything
                    raise IssuerUnavailableError(
                        f"the keys of {self._issuer.issuer} cannot be read ({error!r:.200})"
                    ) from None
                self._read_at = time.monotonic()
            return self._keys.get(key_id)

    def _read(self) -> dict[str, jwt.PyJWK]:
        issuer, jwks = self._issuer.issuer, self._issuer.jwks
        if jwks is None:
            described = self._get(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            if described["issuer"] != issuer:
                raise ValueError("the description is of another issuer")
            jwks = described["jwks_uri"]
        if "://" in jwks:
            document = self._get(jwks)
        else:
            document = json.loads(Path(jwks).read_text(encoding="utf-8"))
        listed = jwt.PyJWKSet.from_dict(document).keys
        return {key.key_id: key for key in listed if key.public_key_use in (None, "sig")}

    def _get(self, url: str) -> Any:
        address = urlsplit(url)
        if address.scheme != "https" and address.hostname not in _LOOPBACK:
            raise ValueError("keys are read over https only")
        headers, bearer = {}, self._issuer.bearer
        # Only the issuer's own host gets the token, wherever it says that its keys are.
        own = urlsplit(self._issuer.jwks or self._issuer.issuer).netloc
        if bearer is not None and address.netloc == own:
            headers["Authorization"] = f"Bearer {bearer.read_text(encoding='ascii').strip()}"
        context = ssl.create_default_context(cafile=self._issuer.ca)
        answer = httpx.get(url, headers=headers, timeout=_TIMEOUT, verify=context)
        return answer.raise_for_status().json()


class IdentityExchange:
    """Verification of identity tokens, and the issue of tokens by the rules."""

    def __init__(self, issuers: Mapping[str, TrustedIssuer]) -> None:
        """Trust these issuers, by name."""
        self._issuers = issuers
        self._keys = {name: IssuerKeys(issuer) for name, issuer in issuers.items()}

    def exchange(self, database: Database, presented: str) -> Issued:
        """Issue a token for an identity token.

        Raises:
            AccessDeniedError: No rule matches the claims.
            UnauthenticatedError: The token is not valid here, or was exchanged before; the message
                does not repeat it.
            TooManyError: There are `MOST_TOKENS` valid tokens for the identity token.
            IssuerUnavailableError: The keys of its issuer cannot be read now.
        """
        claims, issuer = self._verify(presented)
        identity = _token_id(presented, claims, issuer, database)
        for rule in issuer.rules:
            if (rights := rule.match(claims)) is not None:
                name = "".join(char if char.isprintable() else "?" for char in rights[0])[:200]
                granter = Principal(f"issuer {issuer.issuer}", {EVERYWHERE: "admin"})
                ttl = rule.minutes * 60
                try:
                    return tokens.issue(database, granter, name, rights[1], ttl, identity)
                except TokenExistsError:
                    raise UnauthenticatedError(
                        "the identity token was exchanged before: ask its issuer for another one"
                    ) from None
        raise AccessDeniedError(
            f"no rule of this server matches the claims of {claims['sub'][:200]!r}: ask its admin"
        )

    def _verify(self, presented: str) -> tuple[Mapping[str, Any], TrustedIssuer]:
        if len(presented) > _LONGEST_TOKEN or not presented.isascii():
            raise UnauthenticatedError("this is no identity token")
        try:
            unverified = jwt.decode_complete(presented, options={"verify_signature": False})
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise UnauthenticatedError("this is no identity token") from None
        header, name = unverified["header"], unverified["payload"].get("iss")
        key_id = header.get("kid")
        issuer = self._issuers.get(name) if isinstance(name, str) else None
        if issuer is None:
            raise UnauthenticatedError("this server does not trust the issuer of the token")
        key = None
        if header.get("alg") in _ALGORITHMS and isinstance(key_id, str):
            key = self._keys[issuer.issuer].find(key_id)
        if key is None or key.algorithm_name not in _ALGORITHMS:
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


def _token_id(
    presented: str, claims: Mapping[str, Any], issuer: TrustedIssuer, database: Database
) -> str:
    """Return the id of the token that is issued for an identity token.

    Of one that is exchanged once, it tells all replicas that it was, until its row is pruned. All
    tokens of one that is exchanged several times begin alike, so that they can be counted.

    Raises:
        UnauthenticatedError: The identity token outlives the row.
        TooManyError: There are `MOST_TOKENS` valid ones.
    """
    # Without the signature, of which there may be several for one content.
    digest = hashlib.sha256(presented.rpartition(".")[0].encode()).hexdigest()
    if issuer.once:
        if claims["exp"] - time.time() > TOKENS_DAYS * 86400.0:
            raise UnauthenticatedError(
                f"the identity token lives for more than {TOKENS_DAYS:.0f} days: "
                "ask for a shorter one"
            )
        return digest[:16]
    beginning = digest[:_ID_DIGITS]
    with database.read() as connection:
        if tokens.count_valid(connection, beginning) >= MOST_TOKENS:
            raise TooManyError(
                f"{MOST_TOKENS} tokens for this identity token are valid: use one of them"
            )
    return beginning + secrets.token_hex(8 - _ID_DIGITS // 2)
