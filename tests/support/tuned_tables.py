"""Folders of engines' tuned tables, and the tables that a store makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dejavu_cache.integrations.table_files import TABLE_FILES
from dejavu_cache.integrations.tuned_tables import collect_tables
from dejavu_cache.stores import Store


def write_content(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def contents(folder: Path) -> dict[str, Any]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): json.loads(path.read_text()) for path in files}


def exported(store: Store, engine: str = "vllm", version: str = "3.6.0") -> dict[str, Any]:
    files = TABLE_FILES[engine](collect_tables(store), version)
    return {file.path: file.content for file in files}
