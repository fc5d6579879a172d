"""A fitted tree."""

from __future__ import annotations

import pytest
from support import synthetic_matmul

from dejavu_cache.heuristics.fit import fit
from dejavu_cache.model.decision_tree import Tree


@pytest.fixture(scope="module")
def tree() -> Tree:
    """Fitted on all five sizes of the imagined matrix product."""
    return fit(synthetic_matmul.sweep(synthetic_matmul.scenarios()))
