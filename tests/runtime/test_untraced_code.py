"""Keeping torch.compile out of the code behind a launch, by rules that are private to torch."""

from __future__ import annotations

from typing import Any

import pytest

from dejavu_cache.runtime.launch import leave_untraced


def test_a_torch_that_takes_no_such_rules_breaks_no_kernel(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import torch._dynamo.trace_rules as rules

    def add(*_: Any) -> None:
        raise NotImplementedError("rules are files now")

    monkeypatch.setattr(rules, "add", add)
    leave_untraced.cache_clear()
    leave_untraced()
    assert "rules are files now" in caplog.text
