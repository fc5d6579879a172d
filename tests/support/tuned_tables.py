"""Folders of engines' tuned tables, and the tables that a store makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dejavu_cache.integrations.tuned_tables import TABLE_FILES, collect_tables
from dejavu_cache.model.foreign_result import ForeignResult, ForeignTiming
from dejavu_cache.model.scenario import Config
from dejavu_cache.stores import Store

TABLE = "E=128,N=768,device_name=NVIDIA_H200.json"
FIRST = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "GROUP_SIZE_M": 1, "num_warps": 4}
SECOND = {**FIRST, "BLOCK_SIZE_M": 64, "num_stages": 3, "num_ctas": 1, "waves_per_eu": 0}


def write_content(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def contents(folder: Path) -> dict[str, Any]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): json.loads(path.read_text()) for path in files}


def exported(store: Store, engine: str = "vllm", version: str = "3.6.0") -> dict[str, Any]:
    files = TABLE_FILES[engine](collect_tables(store), version)
    return {file.path: file.content for file in files}


def imported(device: str = "NVIDIA_H200", function: str = "", **named: str) -> ForeignResult:
    """Return a line of a table, as it is imported."""
    config = Config(params={"BLOCK_SIZE_M": len(named.get("M", ""))})
    return ForeignResult(
        origin="vllm",
        function=function or "fused_moe_kernel",
        named={"E": "8", "N": "32", **named} if not function else named,
        device=device,
        timings=(ForeignTiming(config=config),),
    )
