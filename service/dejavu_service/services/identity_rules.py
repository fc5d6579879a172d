"""Rules of which identity tokens of other issuers are exchanged, and for what rights."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError

from dejavu_cache.errors import SettingsError

from .access import NAMESPACE_PATTERN, Role

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["ClaimRule", "TrustedIssuer", "read_issuers"]

_Text = Annotated[str, Field(min_length=1, max_length=1000)]
_Pattern = Annotated[str, Field(pattern=NAMESPACE_PATTERN)]


class ClaimRule(BaseModel):
    """Rights for the identity tokens whose claims match.

    Attributes:
        claims: The text that each claim must have; with a star at the end, how it must begin.
        grants: The roles by namespace, as a token has them.
        minutes: How long the token that is issued lives.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    claims: dict[_Text, _Text] = Field(min_length=1)
    grants: dict[_Pattern, Role] = Field(min_length=1, max_length=100)
    minutes: float = Field(default=60.0, gt=0, le=24 * 60, allow_inf_nan=False)

    def matches(self, claims: Mapping[str, Any]) -> bool:
        """Return whether all claims of the rule are there, as texts, and match."""
        return all(_matches(claims.get(name), wanted) for name, wanted in self.claims.items())


def _matches(claim: Any, wanted: str) -> bool:
    if not isinstance(claim, str):
        return False
    return claim.startswith(wanted[:-1]) if wanted.endswith("*") else claim == wanted


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
