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

import sys
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from .errors import describe_problems
from .model.buckets import Bucket, parse_bucket
from .model.scenario import FrozenModel
from .settings import Mode, policy_file
from .system.notices import warn_once
from .system.safe_files import read_file


class Rule(FrozenModel):
    """Settings of the kernels whose name matches a pattern."""

    match: str = Field(min_length=1)
    """Shell pattern for the kernel's module and qualified name."""
    install: bool = True
    """Whether `install()` replaces the autotuners of these kernels."""
    mode: Mode | None = None
    buckets: dict[str, Annotated[Bucket, BeforeValidator(parse_bucket)]] = Field(
        default_factory=dict
    )
    default: dict[str, Any] = Field(default_factory=dict)
    """Values that select one of the declared configs as the default."""
    tune_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    tune_configs: int | None = Field(default=None, gt=0)
    tune_loss: float | None = Field(default=None, ge=0, lt=1, allow_inf_nan=False)


def config_with(wanted: Mapping[str, Any], configs: Iterable[Any]) -> Any | None:
    """Return the first `triton.Config` that has some values among its own, or None."""
    for config in configs:
        values = config.all_kwargs()
        if all(name in values and values[name] == value for name, value in wanted.items()):
            return config
    return None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kernel: list[dict[str, Any]] = Field(default_factory=list)


class Policy(NamedTuple):
    """The rules of one file.

    Attributes:
        rules: the valid rules, in the file's order; of those that match a kernel, the last counts.
        problems: a message for every rule that is left out, or for the file.
    """

    rules: Sequence[Rule] = ()
    problems: Sequence[str] = ()

    @classmethod
    def read(cls, path: Path) -> Policy:
        """Read a policy file; its mistakes are listed in `problems`."""
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        try:
            file = _File.model_validate(tomllib.loads(read_file(path.resolve()).decode()))
        except ValidationError as error:
            mistakes = describe_problems(error.errors())
            return cls(problems=[f"{path}: {mistakes}: give [[kernel]] tables; no policy applies"])
        except (OSError, RuntimeError, ValueError) as error:  # links in a circle, no text, no TOML
            reason = getattr(error, "strerror", None) or error
            return cls(problems=[f"{path}: {reason}; no policy applies"])
        rules, problems = [], []
        for number, entry in enumerate(file.kernel, 1):
            try:
                rules.append(Rule.model_validate(entry))
            except ValidationError as error:
                mistakes = describe_problems(error.errors())
                problems.append(f"{path}, kernel {number}: {mistakes}; the rule is left out")
        return cls(rules, problems)

    def rule_for(self, kernel: str) -> Rule:
        """Return the last rule that matches a kernel's name, or an empty rule."""
        matching = [rule for rule in self.rules if fnmatchcase(kernel, rule.match)]
        return matching[-1] if matching else Rule(match=kernel)


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
    return policy
