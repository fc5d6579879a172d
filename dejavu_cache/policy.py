"""The policy file `dejavu.toml`: buckets, modes and defaults for kernels by their name.

    [[kernel]]
    match = "fla.ops.*"                          # a shell pattern over module.function; the last match counts
    mode = "reuse"
    buckets = { T = "pow2", H = { kind = "edges", edges = [1, 8, 32] } }
    default = { BV = 64, num_warps = 4 }         # the declared config with these values

What the decorator says counts over the policy, and the policy over the environment. A policy is never the reason
that a program stops: what is wrong in it is left out, warned about once, and listed by `dejavu-cache doctor`.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from .model.buckets import Bucket, expand_bucket
from .notices import logger, warn_once
from .settings import Mode, policy_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Policy", "Rule", "current_policy"]


class Rule(BaseModel):
    """What the policy says of the kernels whose name matches."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    match: str = Field(min_length=1)
    """A shell pattern over the module and the qualified name."""
    install: bool = True
    """Whether `install()` takes these kernels over."""
    mode: Mode | None = None
    buckets: dict[str, Bucket] = Field(default_factory=dict)
    default: dict[str, Any] = Field(default_factory=dict)
    """Values by which one of the declared configs is chosen as the default."""
    max_distance: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    tune_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    tune_configs: int | None = Field(default=None, gt=0)

    @field_validator("buckets", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: expand_bucket(spec) for name, spec in value.items()}

    def default_among(self, configs: Sequence[Any]) -> Any | None:
        """The first declared config that has the default's values, or None."""
        for config in configs if self.default else ():
            held = config.all_kwargs()
            if all(name in held and held[name] == value for name, value in self.default.items()):
                return config
        return None


class Policy:
    """The rules of one file.

    Attributes:
        rules: those that make sense, in the file's order.
        problems: what does not, and why.
        matched: the patterns that a kernel of this process has matched.
    """

    def __init__(self, rules: Sequence[Rule] = (), problems: Sequence[str] = ()) -> None:
        self.rules = tuple(rules)
        self.problems = tuple(problems)
        self.matched: set[str] = set()

    @classmethod
    def read(cls, path: Path) -> Policy:
        """Reads a file; what is wrong with it is in `problems`."""
        try:
            held = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            return cls(
                problems=[f"{path}: {getattr(error, 'strerror', None) or error}; no policy applies"]
            )
        entries = held.pop("kernel", [])
        problems = [
            f"{path}: {name!r} is no part of a policy, which is a list of [[kernel]]"
            for name in held
        ]
        rules = []
        for number, entry in enumerate(entries if isinstance(entries, list) else [entries], 1):
            rule, wrong = _rule(entry)
            problems += [f"{path}, kernel {number}: {each}" for each in wrong]
            rules += [rule] if rule else []
        return cls(rules, problems)

    def rule_for(self, kernel: str) -> Rule:
        """The last rule that a kernel's name matches; else one that says nothing."""
        matching = [rule for rule in self.rules if fnmatchcase(kernel, rule.match)]
        self.matched.update(rule.match for rule in matching)
        return matching[-1] if matching else Rule(match=kernel)

    @property
    def unmatched(self) -> list[str]:
        """The patterns that no kernel of this process has matched."""
        return [rule.match for rule in self.rules if rule.match not in self.matched]


def _rule(entry: Any) -> tuple[Rule | None, list[str]]:
    """A rule without the keys that nobody knows; None if what it says makes no sense."""
    if not isinstance(entry, dict):
        return None, [f"{entry!r} is no table; it is left out"]
    known = {name: value for name, value in entry.items() if name in Rule.model_fields}
    wrong = [
        f"{name!r} is unknown; known are {', '.join(Rule.model_fields)}"
        for name in entry
        if name not in known
    ]
    try:
        return Rule.model_validate(known), wrong
    except ValidationError as error:
        said = (
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}"
            for each in error.errors(include_url=False)
        )
        return None, [*wrong, *(f"{each}; the rule is left out" for each in said)]


@cache
def current_policy() -> Policy:
    """This process's policy: what `DEJAVU_CACHE_POLICY` names, else `dejavu.toml` in the working directory."""
    path = policy_file()
    if path is None:
        return Policy()
    policy = Policy.read(path)
    for problem in policy.problems:
        warn_once(problem, problem)
    if policy.rules:
        atexit.register(_say_unmatched, policy, path)
    return policy


def _say_unmatched(policy: Policy, path: Path) -> None:
    if policy.unmatched and policy.matched:
        logger.warning(
            "%s: no kernel of this process matched %s", path, ", ".join(policy.unmatched)
        )
