"""The one place that reads the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from .errors import SettingsError

__all__ = ["Mode", "Settings", "current_settings", "policy_file"]

PREFIX = "DEJAVU_CACHE_"


class Mode(str, Enum):
    """What a launch may do when it meets a scenario without a record."""

    TUNE = "tune"
    """Benchmark it, once in the fleet, and keep the record."""
    REUSE = "reuse"
    """Never benchmark: nearest scenario, then a decision tree, then the default config."""
    STRICT = "strict"
    """Raise `ScenarioNotTuned`."""
    OFF = "off"
    """Behave as `triton.autotune`."""


class Settings(BaseModel):
    """What a process was told, frozen. Every field is the variable `DEJAVU_CACHE_<FIELD>`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = ""
    """Stores in the order they are asked, separated by commas; empty: the user's cache directory."""
    mode: Mode = Mode.TUNE
    namespace: str = Field(default="main", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    token: str = Field(default="", repr=False)
    wait: float = Field(default=0.25, ge=0, allow_inf_nan=False)
    """Seconds a launch may wait for a remote store, once, before its circuit opens."""
    tune_wait: float = Field(default=120.0, ge=0, allow_inf_nan=False)
    """Seconds to wait for whoever tunes the same scenario, before running a fallback."""
    consensus: Literal["none", "ranks"] = "none"
    """`ranks`: all ranks of a torch.distributed job run the config that one of them decided for."""
    tune_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Seconds that one tune may take; the next process goes on from there. Unset: as long as it takes."""
    tune_configs: int | None = Field(default=None, gt=0)
    """With how many measured configs a scenario counts as tuned. Unset: with all."""
    check: bool = True
    """Whether a config's results are compared with the default config's before it may win."""
    max_distance: float = Field(default=2.0, ge=0, allow_inf_nan=False)
    """How far, in powers of two summed over the key arguments, a nearest scenario may be."""
    toolchain: Literal["strict", "loose"] = "strict"
    """`loose` lets records of another Triton version serve as a labelled fallback."""
    family: bool = False
    """Lets records of another GPU of the same architecture serve as a labelled fallback."""
    progress: bool = True
    """Whether a tune that takes over two seconds shows a bar, where standard error is a terminal."""
    shipped: bool = True
    """Whether records shipped inside installed packages are read."""
    report: str = ""
    """A folder in which every process notes what it benchmarked, compiled and missed: for `dejavu-cache verify`."""

    policy: str = ""
    """The policy file; empty: `dejavu.toml` in the working directory, if there is one."""
    install: bool = False
    """Whether plugins of other programs, such as vLLM's, replace `triton.autotune`."""

    @field_validator("mode", "toolchain", "consensus", mode="before")
    @classmethod
    def _lower(cls, value: Any) -> Any:
        return (
            value.strip().lower()
            if isinstance(value, str) and not isinstance(value, Mode)
            else value
        )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Reads `DEJAVU_CACHE_*`; an empty variable counts as unset.

        Raises:
            SettingsError: a value does not fit; the message names the variable and what it accepts.
        """
        environ = os.environ if environ is None else environ
        given = {name: environ.get(PREFIX + name.upper(), "") for name in cls.model_fields}
        try:
            return cls.model_validate({name: text for name, text in given.items() if text})
        except ValidationError as error:
            problems = "; ".join(
                f"{PREFIX}{str(part['loc'][0]).upper()}={part['input']!r}: {part['msg']}"
                for part in error.errors()
            )
            raise SettingsError(problems) from None

    @property
    def default_url(self) -> str:
        """The user's own file store."""
        from platformdirs import user_cache_dir

        return (Path(user_cache_dir("dejavu-cache", appauthor=False)) / "records").as_uri()


@cache
def current_settings() -> Settings:
    """This process's settings, read at first use."""
    return Settings.from_environment()


def policy_file() -> Path | None:
    """Where this process's policy lies, or None. Asked when kernels are decorated, before the settings are read."""
    named = os.environ.get(PREFIX + "POLICY", "")
    path = Path(named or "dejavu.toml")
    return path if named or path.is_file() else None
