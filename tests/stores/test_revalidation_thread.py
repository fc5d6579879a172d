"""The thread that asks servers about copies outlives what a program does to its environment."""

from __future__ import annotations

import threading

import pytest

from dejavu_cache.model.scenario import Context
from dejavu_cache.stores.copies import LocalCopies, _RevalidationThread
from dejavu_cache.stores.memory import MemoryStore


class _Kernel:
    def note_change(self, context: Context) -> None:
        """Choose nothing anew."""


class _Thread(_RevalidationThread):
    """A thread that notes when it would ask."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def _revalidate(self) -> None:
        self.asked.set()


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_setting_that_is_refused_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEJAVU_CACHE_MODE", "sometimes")
    thread, kernel = _Thread(), _Kernel()
    thread.watch(LocalCopies([MemoryStore()], kernel.note_change))
    assert thread.asked.wait(240)
    thread.finish(5.0)
