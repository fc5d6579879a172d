"""A fitted tree."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import synthetic_matmul
from support.shared_work import make_once

from dejavu_cache.heuristics.fit import fit
from dejavu_cache.model.decision_tree import Tree


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """Fitted on all five sizes of the imagined matrix product."""

    def write(path: Path) -> None:
        fitted = fit(synthetic_matmul.sweep(synthetic_matmul.scenarios()))
        path.write_text(fitted.text, encoding="utf-8")

    file = make_once(tmp_path_factory, "fitted-tree.json", write)
    return Tree.parse(file.read_text(encoding="utf-8"), str(file))
