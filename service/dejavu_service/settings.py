"""Settings of the server, read from the environment variables `DEJAVU_SERVER_*` only here."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, DirectoryPath, Field, ValidationError

from dejavu_cache.errors import SettingsError
from dejavu_cache.system.safe_files import data_folder

_logger = logging.getLogger(__name__)

ENVIRONMENT_PREFIX = "DEJAVU_SERVER_"


def default_database() -> str:
    """Return the URL of a SQLite file in the user's data folder.

    Raises:
        SettingsError: this user has none.
    """
    try:
        return f"sqlite:///{data_folder() / 'server.sqlite3'}"
    except SettingsError as error:
        raise SettingsError(f"{error}, or name a database in DEJAVU_SERVER_DATABASE") from None


class ServerSettings(BaseModel):
    """Settings of a server; each field is set by the variable `DEJAVU_SERVER_` plus its name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    database: str = Field(default_factory=default_database, min_length=1)
    """`sqlite:///FILE` or `postgresql://USER:PASSWORD@HOST/NAME`."""
    host: str = "127.0.0.1"
    port: int = Field(default=8765, ge=0, le=65535)
    trusted_proxies: str = ""
    """Addresses of reverse proxies, separated by commas, whose `X-Forwarded-For` counts."""
    without_tokens: bool = False
    """Whether everybody on this machine may do everything until the first token is created."""
    first_token_file: Path | None = None
    """File for the token that the first start makes; None for one beside the database."""
    open_read: bool = False
    """Whether requests without a token may read records, pages and metrics."""
    sets: DirectoryPath | None = None
    """Folder of signed sets that `/sets` serves to everybody, without a token; None for none."""
    oidc: Path | None = None
    """TOML file of the issuers whose identity tokens are exchanged, with rules; None for none."""
    max_body: int = Field(default=4 * 2**20, ge=1024)
    """Largest body of a request, in bytes."""
    max_import: int = Field(default=2 * 2**30, ge=1024)
    """Largest body of an import, in bytes."""
    max_concurrent_requests: int = Field(default=1000, ge=1)
    """Requests that may be in progress at a time, nine in ten of them of one token."""
    drain: float = Field(default=0.0, ge=0, le=3600)
    """Seconds for which a server that was told to stop still serves, and is not ready."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"


def read_settings(
    flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
) -> ServerSettings:
    """Read the settings from the environment, which those of `flags` override that are not None.

    Raises:
        SettingsError: A value is invalid.
    """
    known = {_variable(field): field for field in ServerSettings.model_fields}
    named = {name for name in environ if name.startswith(ENVIRONMENT_PREFIX) and environ[name]}
    if unknown := sorted(named - known.keys()):
        _logger.warning("no setting of a server: %s; it knows %s", unknown, ", ".join(known))
    values: dict[str, Any] = {known[name]: environ[name] for name in named & known.keys()}
    values |= {name: value for name, value in (flags or {}).items() if value is not None}
    try:
        return ServerSettings.model_validate(values)
    except ValidationError as error:
        wrong = "; ".join(f"{_variable(*item['loc'])}: {item['msg']}" for item in error.errors())
        raise SettingsError(wrong) from None


def _variable(*path: int | str) -> str:
    return ENVIRONMENT_PREFIX + "_".join(map(str, path)).upper()
