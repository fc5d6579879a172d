"""Read the options of a suite, which are texts: presets, numbers and names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

__all__ = ["preset_of", "read_names", "read_numbers"]

Preset = TypeVar("Preset")


def preset_of(name: str, presets: Mapping[str, Preset]) -> Preset:
    """Return a preset by its name.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in presets:
        raise ValueError(f"preset={name}: choose one of {', '.join(presets)}")
    return presets[name]


def read_numbers(text: str, default: Sequence[int]) -> tuple[int, ...]:
    """Return numbers that are separated by +; the default if there are none."""
    return tuple(map(int, text.split("+"))) if text else tuple(default)


def read_names(option: str, text: str, choices: Collection[str]) -> list[str]:
    """Return names that are separated by +; all choices if there are none.

    Raises:
        ValueError: a name is not among the choices.
    """
    names = text.split("+") if text else list(choices)
    if not set(names) <= set(choices):
        raise ValueError(f"{option}={text}: choose from {', '.join(choices)}, with + between them")
    return names
