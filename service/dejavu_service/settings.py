"""What can be set about a server, read from `DEJAVU_SERVER_*` here and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dejavu_cache.errors import SettingsError

__all__ = ["PREFIX", "Settings", "default_database", "read_settings"]

PREFIX = "DEJAVU_SERVER_"


def default_database() -> str:
    """A SQLite file in the user's data directory."""
    return f"sqlite:///{Path(platformdirs.user_data_dir('dejavu-cache')) / 'server.sqlite3'}"


class Settings(BaseModel):
    """A server's settings; each field is also the variable `DEJAVU_SERVER_` and its name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    database: str = Field(default_factory=default_database, min_length=1)
    """`sqlite:///FILE` or `postgresql://USER:PASSWORD@HOST/NAME`."""
    host: str = "127.0.0.1"
    port: int = Field(default=8765, ge=0, le=65535)
    tls_cert: Path | None = None
    tls_key: Path | None = None
    open_read: bool = False
    """Whoever has no token may read: records, pages and metrics."""
    max_body: int = Field(default=32 * 2**20, ge=1024)
    """Bytes of a request's body."""
    max_import: int = Field(default=2 * 2**30, ge=1024)
    """Bytes of an import, all its lines together."""
    max_records: int = Field(default=10_000, ge=1)
    """Records, or misses, in one request."""
    rate: float = Field(default=500.0, ge=0)
    """Requests a second from one token, or from one address without; 0 sets no limit."""
    burst: int = Field(default=2000, ge=1)
    """Requests that may come at once before `rate` counts."""
    pool: int = Field(default=8, ge=1, le=100)
    """Connections to the database that a replica keeps, and as many again under load."""
    cache_bytes: int = Field(default=64 * 2**20, ge=0)
    """Compressed answers kept in memory."""
    token_ttl: float = Field(default=5.0, ge=0)
    """Seconds for which a replica trusts what it last saw of a token: how long a revoked one may live on."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"


def read_settings(
    flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """The settings of the environment, with the flags that are not None put over them.

    Raises:
        SettingsError: a variable has no meaning or a value that does not fit.
    """
    given: dict[str, Any] = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(PREFIX) and value
    }
    given |= {name: value for name, value in (flags or {}).items() if value is not None}
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        wrong = "; ".join(f"{PREFIX}{_name(each['loc'])}: {each['msg']}" for each in error.errors())
        known = ", ".join(f"{PREFIX}{field.upper()}" for field in Settings.model_fields)
        raise SettingsError(f"{wrong}; a server knows {known}") from None


def _name(place: tuple[int | str, ...]) -> str:
    return "_".join(map(str, place)).upper()
