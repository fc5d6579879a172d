"""vLLM's tuned tables of LoRA: one file for each operation, nested by the launch's sizes.

A table such as `NVIDIA_H200_EXPAND_TRUE.json` has configs by the number of adapters, of slices, and
by m, k and n. Here it is one table for each choice of all but m, the batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

__all__ = [
    "LORA_KERNELS",
    "LoraLine",
    "fill_slices",
    "lora_file_name",
    "lora_labels",
    "nest_lines",
    "read_lora",
]

_FUSED = tuple(
    f"fused_moe_lora_{product}_{step}" for product in ("w13", "w2") for step in ("shrink", "expand")
)
_OPERATIONS = ("shrink", "expand_true", "expand_false", *_FUSED)
"""Operations as the files name them; `expand` says whether it adds to its inputs."""

LORA_KERNELS = {
    "shrink": "_lora_shrink_kernel",
    "expand_true": "_lora_expand_kernel",
    "expand_false": "_lora_expand_kernel",
    **dict.fromkeys(_FUSED, "_fused_moe_lora_kernel"),
}

_PATH = ("max_loras", "num_slices", "m", "k", "n")
_EXPERTS = "moe_intermediate_size"
"""The last level, which only tables of fused experts have."""

_MOST_SLICES = 8
"""Slices of a layer that a table serves at least; those of Q, K and V are three."""

_FILE = re.compile(rf"(.+?)_({'|'.join(sorted(map(str.upper, _OPERATIONS), key=len)[::-1])})")


class LoraLine(NamedTuple):
    """A config of a table.

    Attributes:
        operation: the operation, in small letters.
        device: the GPU's name, with underscores for spaces and hyphens.
        named: the launch's sizes, as text, and the operation.
        config: the fields of the config.
    """

    operation: str
    device: str
    named: dict[str, str]
    config: Mapping[str, Any]


def read_lora(stem: str, content: Mapping[str, Any]) -> Iterator[LoraLine]:
    """Yield the configs of a table; nothing if a file's name is not one of a table.

    Raises:
        ValueError: the file has another form.
    """
    match = _FILE.fullmatch(stem)
    if match is None:
        return
    device, operation = match[1], match[2].lower()
    names = (*_PATH, _EXPERTS) if operation in _FUSED else _PATH
    for sizes, config in _walk(content, (), len(names), len(_PATH)):
        named = dict(zip(names, sizes, strict=False))
        yield LoraLine(operation, device, {"operation": operation, **named}, config)


def _walk(
    content: Any, sizes: tuple[str, ...], most: int, least: int
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yield the configs at the leaves, with the sizes that lead to them."""
    if not isinstance(content, dict) or not content:
        raise ValueError("a table of LoRA has a config for each of its sizes")
    if all(key.isdecimal() for key in content) and len(sizes) < most:
        for key, inner in content.items():
            yield from _walk(inner, (*sizes, key), most, least)
    elif len(sizes) >= least:
        yield sizes, content
    else:
        raise ValueError(f"a table of LoRA has sizes at {least} levels")


def lora_labels(function: str, named: Mapping[str, str]) -> dict[str, str] | None:
    """Return what tells a table from others, or None for a launch that no table is for."""
    operation = named.get("operation", "")
    known = {"operation", *_PATH, *([_EXPERTS] if operation in _FUSED else [])}
    if LORA_KERNELS.get(operation) != function or not {*_PATH} <= named.keys() <= known:
        return None
    labels = {name: named[name] for name in (*_PATH, _EXPERTS) if name in named and name != "m"}
    return {"lora": operation, **labels} if all(map(str.isdecimal, labels.values())) else None


def lora_file_name(labels: Mapping[str, str], device: str) -> str:
    """Return the name of the file that a table is part of; the device's has no hyphens."""
    return f"{device}_{labels['lora'].upper()}.json"


def nest_lines(
    content: dict[str, Any], labels: Mapping[str, str], lines: Iterable[tuple[str, Any]]
) -> None:
    """Add the lines of a table to a file's content.

    A table of fused experts may end before its last level, which vLLM reads as well. Where another
    one has that level, the more exact one counts.
    """
    for size, config in lines:
        sizes = {**labels, "m": size}
        path = [sizes[name] for name in (*_PATH, _EXPERTS) if name in sizes]
        inner = content
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
            if not all(map(str.isdecimal, inner)):  # a config that holds for all sizes below
                inner.clear()
        if not inner.get(path[-1]):
            inner[path[-1]] = config


def fill_slices(name: str, content: Mapping[str, Any]) -> None:
    """Have a file of linear layers serve those of any number of slices, by the nearest number.

    vLLM takes the nearest one of all other sizes, and fails where the number of slices is missing.
    """
    if "_FUSED_" in name:
        return
    for by_slices in content.values():
        numbers = sorted(by_slices, key=int)
        for number in map(str, range(1, _MOST_SLICES + 1)):
            if number not in by_slices:
                nearest = min(numbers, key=lambda other: abs(int(other) - int(number)))
                by_slices[number] = by_slices[nearest]
