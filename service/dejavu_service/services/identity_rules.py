"""Rules of which identity tokens of other issuers are exchanged, and for what rights."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError, model_validator

from dejavu_cache.errors import SettingsError

from .access import NAMESPACE_PATTERN, Role

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["ClaimRule", "TrustedIssuer", "read_issuers"]

_Text = Annotated[str, Field(min_length=1, max_length=1000)]
_PLACEHOLDER = re.compile(r"\{([a-z_]{1,40})\}")
_PART = "[A-Za-z0-9][A-Za-z0-9-]{0,40}"
"""What a placeholder stands for: a part of a namespace's name, which no claim can widen."""


class ClaimRule(BaseModel):
    """Rights for the identity tokens whose claims match.

    A `{word}` in a claim stands for letters, digits and dashes, and for the same ones in `grants`
    and `name`, so that each pull request gets rights in a namespace of its own.

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
        known = {word for text in self.claims.values() for word in _PLACEHOLDER.findall(text)}
        for text in (*self.grants, self.name or ""):
            if unknown := set(_PLACEHOLDER.findall(text)) - known:
                raise ValueError(f"{text!r}: no claim of the rule has {{{min(unknown)}}}")
        for namespace in self.grants:
            example = _fill(namespace, dict.fromkeys(known, "x"))
            if not re.fullmatch(NAMESPACE_PATTERN, example):
                raise ValueError(f"{namespace!r} names no namespace")
        return self

    def match(self, claims: Mapping[str, Any]) -> Rights | None:
        """Return the rights for some claims; None unless all claims of the rule match as texts."""
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
        return Rights(name, grants)


class Rights(NamedTuple):
    """The name of a token, and its roles by namespace."""

    name: str
    grants: Mapping[str, Role]


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
    found = re.fullmatch(pattern, claim, re.DOTALL)
    return found.groupdict() if found else None


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
