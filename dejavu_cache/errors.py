"""Every error the project raises, under one root.

DejavuError
├── SettingsError            a setting, or what `cached_autotune` was given, makes no sense
├── KeyArgumentError         a key argument has a value that no record can hold
├── NoValidConfigError       every config of a scenario failed
├── ScenarioNotTuned         strict mode met a scenario without a record
├── TooFewRecordsError       there is not enough to fit a decision tree to
├── PrewarmError             a folder cannot be prewarmed as asked
├── BundleError              a prewarmed folder or bundle cannot be used: cut, altered, newer, not for this machine
└── StoreError               a store cannot do what was asked
    ├── ReadOnlyStoreError   it may only be read
    ├── NewerFormatError     it was written by a newer version
    ├── DamagedRecordsError  what it holds is not what was written
    └── MergeConflictError   two measurements of one config, and the caller asked to be told
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "BundleError",
    "DamagedRecordsError",
    "DejavuError",
    "KeyArgumentError",
    "MergeConflictError",
    "NewerFormatError",
    "NoValidConfigError",
    "PrewarmError",
    "ReadOnlyStoreError",
    "ScenarioNotTuned",
    "SettingsError",
    "StoreError",
    "TooFewRecordsError",
]


class DejavuError(Exception):
    """The root: catch this to catch everything the project raises on purpose."""


class SettingsError(DejavuError, ValueError):
    """A setting or an argument is wrong; the message names it and what is accepted."""


class KeyArgumentError(DejavuError, TypeError):
    """A key argument's value cannot be written down; the message names the argument."""


class NoValidConfigError(DejavuError, RuntimeError):
    """No config of a scenario can run; the message gives each one's reason."""

    def __init__(self, kernel: str, scenario: str, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        lines = "\n".join(f"  {config}: {reason}" for config, reason in self.reasons.items())
        super().__init__(f"no config of {kernel} can run {scenario}; each one failed:\n{lines}")


class ScenarioNotTuned(DejavuError, LookupError):
    """Strict mode met a scenario without a usable record."""


class TooFewRecordsError(DejavuError, LookupError):
    """A decision tree needs more tuned scenarios; the message says how many."""


class PrewarmError(DejavuError):
    """A folder cannot be prewarmed as asked; the message says what is in the way."""


class BundleError(DejavuError):
    """A prewarmed folder or a bundle of one cannot be used; nothing of it was."""


class StoreError(DejavuError):
    """A store cannot do what was asked."""


class ReadOnlyStoreError(StoreError):
    """The store may only be read."""


class NewerFormatError(StoreError):
    """The records were written in a newer format than this version reads."""

    def __init__(self, where: str, found: int, known: int) -> None:
        super().__init__(
            f"{where} has format {found}, and this version of dejavu-cache reads up to {known}: "
            "upgrade dejavu-cache; the file is left as it is"
        )


class DamagedRecordsError(StoreError):
    """The bytes are not a record set."""


class MergeConflictError(StoreError):
    """Two different measurements of one config met under `on_conflict="fail"`."""
