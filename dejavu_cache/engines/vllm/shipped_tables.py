"""Tables that ship with vLLM, as a source of configs for other shapes and GPUs of one family."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from ...integrations.table_names import parse_labels

__all__ = ["shipped_configs"]


def shipped_configs(folder: Path, name: str, tokens: int) -> Iterator[dict[str, int]]:
    """Yield what tables like the named one have for a batch.

    They are of the same quantization and may be for other sizes of the layer, and for GPUs with
    another number in their name.

    Args:
        folder: the folder of the tables.
        name: the name of the table that the engine looks for.
        tokens: the size of the batch.
    """
    for table in _tables_like(folder, name):
        yield dict(table[min(table, key=lambda size: abs(size - tokens))])


@cache
def _tables_like(folder: Path, name: str) -> list[dict[int, Mapping[str, int]]]:
    wanted = _family(name)
    tables = []
    for path in sorted(folder.glob("*.json")):
        if _family(path.name) == wanted:
            content = json.loads(path.read_text(encoding="utf-8"))
            content.pop("triton_version", None)
            tables.append({int(size): config for size, config in content.items()})
    return tables


def _family(name: str) -> dict[str, str]:
    labels = parse_labels(name.removesuffix(".json"))
    device = re.split(r"\d", labels.get("device_name", ""))[0]
    sizes = dict.fromkeys(labels.keys() & {"E", "N", "K"}, "")
    return {**labels, **sizes, "device_name": device}
