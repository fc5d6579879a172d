"""The policy file `dejavu.toml`: buckets, modes and defaults for kernels by their name.

    [[kernel]]
    match = "fla.ops.*"                    # pattern of module.function; the last match counts
    mode = "reuse"
    buckets = { T = "pow2", H = { kind = "edges", edges = [1, 8, 32] } }
    default = { BV = 64, num_warps = 4 }   # the declared config with these values

The decorator's arguments override the policy, and the policy overrides the environment variables. A
mistake in a policy never stops a program: the rule is left out, with one warning, and
`dejavu-cache doctor` lists it.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from .errors import SettingsError, did_you_mean, problem_text
from .model.buckets import Bucket, parse_bucket
from .settings import Mode, policy_file
from .system.notices import logger, warn_once

__all__ = ["Policy", "Rule", "config_with", "current_policy"]


class Rule(BaseModel):
    """Settings of the kernels whose name matches a pattern."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    match: str = Field(min_length=1)
    """Shell pattern for the kernel's module and qualified name."""
    install: bool = True
    """Whether `install()` replaces the autotuners of these kernels."""
    mode: Mode | None = None
    buckets: dict[str, Bucket] = Field(default_factory=dict)
    default: dict[str, Any] = Field(default_factory=dict)
    """Values that select one of the declared configs as the default."""
    max_distance: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    tune_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    tune_configs: int | None = Field(default=None, gt=0)

    @field_validator("buckets", mode="before")
    @classmethod
    def _parse_buckets(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        parsed = {}
        for name, spec in value.items():
            try:
                parsed[name] = parse_bucket(spec)
            except SettingsError as error:
                raise ValueError(f"{name}: {error}") from None
        return parsed


def config_with(wanted: Mapping[str, Any], configs: Iterable[Any]) -> Any | None:
    """Return the first `triton.Config` that has some values among its own, or None."""
    for config in configs:
        values = config.all_kwargs()
        if all(name in values and values[name] == value for name, value in wanted.items()):
            return config
    return None


class Policy:
    """The rules of one file.

    Attributes:
        rules: the valid rules, in the file's order.
        problems: a message for every part of the file that is left out.
        matched: the patterns that matched a kernel of this process.
    """

    def __init__(self, rules: Sequence[Rule] = (), problems: Sequence[str] = ()) -> None:
        """Combine rules, of which the last one that matches a kernel counts."""
        self.rules = tuple(rules)
        self.problems = tuple(problems)
        self.matched: set[str] = set()

    @classmethod
    def read(cls, path: Path) -> Policy:
        """Read a policy file; its mistakes are listed in `problems`."""
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            return cls(
                problems=[f"{path}: {getattr(error, 'strerror', None) or error}; no policy applies"]
            )
        entries = tables.pop("kernel", [])
        problems = [
            f"{path}: {name!r} is no part of a policy, which is a list of [[kernel]]"
            for name in tables
        ]
        rules = []
        for number, entry in enumerate(entries if isinstance(entries, list) else [entries], 1):
            rule, mistakes = _parse_rule(entry)
            problems += [f"{path}, kernel {number}: {mistake}" for mistake in mistakes]
            rules += [rule] if rule else []
        return cls(rules, problems)

    def rule_for(self, kernel: str) -> Rule:
        """Return the last rule that matches a kernel's name, or an empty rule."""
        matching = [rule for rule in self.rules if fnmatchcase(kernel, rule.match)]
        self.matched.update(rule.match for rule in matching)
        return matching[-1] if matching else Rule(match=kernel)

    @property
    def unmatched(self) -> list[str]:
        """Patterns that matched no kernel of this process."""
        return [rule.match for rule in self.rules if rule.match not in self.matched]


def _parse_rule(entry: Any) -> tuple[Rule | None, list[str]]:
    """Return a rule without its unknown keys, or None if it is invalid, and all mistakes."""
    if not isinstance(entry, dict):
        return None, [f"{entry!r} is no table; it is left out"]
    fields = {name: value for name, value in entry.items() if name in Rule.model_fields}
    mistakes = [
        f"{name!r} is unknown: {did_you_mean(name, Rule.model_fields)}"
        for name in entry
        if name not in fields
    ]
    try:
        return Rule.model_validate(fields), mistakes
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            position = ".".join(map(str, problem["loc"]))
            mistakes.append(f"{position}: {problem_text(problem)}; the rule is left out")
        return None, mistakes


@cache
def current_policy() -> Policy:
    """Return this process's policy, read once.

    Its file is named by `DEJAVU_CACHE_POLICY`, or is `dejavu.toml` in the working directory.
    """
    path = policy_file()
    if path is None:
        return Policy()
    policy = Policy.read(path)
    for problem in policy.problems:
        warn_once(problem, problem)
    if policy.rules:
        atexit.register(_warn_of_unmatched, policy, path)
    return policy


def _warn_of_unmatched(policy: Policy, path: Path) -> None:
    if policy.unmatched and policy.matched:
        logger.warning(
            "%s: no kernel of this process matched %s", path, ", ".join(policy.unmatched)
        )
