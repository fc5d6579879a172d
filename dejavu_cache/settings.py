"""Settings of a process, read from its environment variables in this module alone."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from .errors import SettingsError, did_you_mean, problem_text
from .system.notices import show_log, warn_once
from .system.safe_files import user_folder

PREFIX = "DEJAVU_CACHE_"

NAMESPACE = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Names of a server's namespaces."""
NAMESPACE_RULE = "a namespace has up to 64 letters, digits, '.', '_' and '-', such as team-1"


class Mode(str, Enum):
    """Action of a launch whose scenario has no record."""

    TUNE = "tune"
    """Benchmark it, once in the fleet, and keep the record."""
    REUSE = "reuse"
    """Never benchmark: run what stands in for the record, labelled, or else the default config."""
    STRICT = "strict"
    """Raise `ScenarioNotTuned`."""
    OFF = "off"
    """Behave as `triton.autotune`."""


LONGEST = 1e9
"""Limit of seconds in settings, some 30 years: the operating system waits for no longer ones."""


class Settings(BaseModel):
    """Settings of a process. Every field is read from the variable `DEJAVU_CACHE_<FIELD>`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = ""
    """URLs of stores in lookup order, separated by commas; empty: the user's cache folder."""
    mode: Mode = Mode.TUNE
    """Action of a launch whose scenario has no record."""
    namespace: str = "main"
    """Namespace on a server, unless the server's URL names one."""
    token: str = Field(default="", repr=False)
    """Token for a server."""
    token_file: str = ""
    """File with the token, read again whenever it changes; it precedes `token`."""
    wait: float = Field(default=0.25, ge=0, le=LONGEST, allow_inf_nan=False)
    """Seconds a launch may wait for a remote store in one look, whatever it asks."""
    refresh: float = Field(default=60.0, ge=0, le=LONGEST, allow_inf_nan=False)
    """Seconds between revalidations of local copies of a server's records; 0: never."""
    tune_wait: float = Field(default=120.0, ge=0, le=LONGEST, allow_inf_nan=False)
    """Seconds to wait for a process that tunes the same scenario, before running a fallback."""
    consensus: Literal["none", "ranks"] = "none"
    """`ranks`: all ranks of a torch.distributed job run the config that one of them chose."""
    check: bool = True
    """Whether a config's results are compared with the default config's before it may win."""
    log: Literal["", "debug", "info", "warning", "error"] = ""
    """Level from which on the library logs to standard error; empty: as the program's `logging`."""
    shipped: bool = True
    """Whether records shipped inside installed packages are read."""
    report: str = ""
    """Folder in which processes report configs, benchmarks and compilations; `verify` sets it."""

    policy: str = ""
    """Policy file; empty: `dejavu.toml` in the working directory, if there is one."""
    install: bool = False
    """Whether this package's plugins in other programs, such as vLLM, replace `triton.autotune`."""

    @field_validator("namespace")
    @classmethod
    def _check_namespace(cls, value: str) -> str:
        if not re.fullmatch(NAMESPACE, value):
            raise ValueError(NAMESPACE_RULE)
        return value

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the variables `DEJAVU_CACHE_*`; an empty one counts as unset.

        Raises:
            SettingsError: a value is invalid; the message names the variable and what it accepts.
        """
        environ = os.environ if environ is None else environ
        texts = {name: environ.get(PREFIX + name.upper(), "") for name in cls.model_fields}
        try:
            return cls.model_validate({name: text for name, text in texts.items() if text})
        except ValidationError as error:
            problems = "; ".join(
                f"{PREFIX}{str(part['loc'][0]).upper()}={part['input']!r}: {problem_text(part)}"
                for part in error.errors()
            )
            raise SettingsError(problems) from None

    @property
    def default_url(self) -> str:
        """URL of the store in the user's cache folder."""
        return user_folder("records").as_uri()


@cache
def current_settings() -> Settings:
    """Return this process's settings, read at the first call, from which on its log is shown."""
    for problem in unknown_variables(os.environ):
        warn_once(problem, problem)
    settings = Settings.from_environment()
    show_log(settings.log)
    return settings


_SERVICE_LINK = re.compile(r"SERVICE_(HOST|PORT)|PORT")
"""Variables that Kubernetes makes for a Service that is called `dejavu-cache`."""


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a message for each variable that looks like a setting and is none."""
    known = [PREFIX + field.upper() for field in Settings.model_fields]
    return [
        f"{name} is set, and no such setting exists: {did_you_mean(name, known, PREFIX)}"
        for name in sorted(environ)
        if name.startswith(PREFIX)
        and name.upper() not in known
        and not _SERVICE_LINK.match(name.removeprefix(PREFIX))
    ]


def policy_file() -> Path | None:
    """Return the path of this process's policy file, or None.

    No other setting is asked for: where one is wrong, a kernel can be decorated all the same.
    """
    variable = os.environ.get(PREFIX + "POLICY", "")
    path = Path(variable or "dejavu.toml")
    with suppress(OSError):  # the working directory may be one that nobody may enter
        return path if variable or path.is_file() else None
    return None
