"""Fixtures of the tests that need a GPU."""

from __future__ import annotations

import pytest

from dejavu_cache.attention import api
from dejavu_cache.triton_internals.versions import GLUON_IS_COVERED


@pytest.fixture
def auto_takes_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `auto` take the Hopper kernel with each Triton that it compiles with.

    Passing with it is what makes it tested.
    """
    monkeypatch.setattr(api, "GLUON_IS_TESTED", GLUON_IS_COVERED)
