"""A call that finds the device's memory taken has what PyTorch keeps unused."""

from __future__ import annotations

import pytest
import torch

from dejavu_cache.tuning.tuner import call_with_memory


class FullDevice:
    """A device whose memory is free once the cache has been emptied."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.calls = 0
        self.emptied = 0

    def call(self) -> str:
        self.calls += 1
        if not self.emptied:
            raise self.error
        return "done"

    def empty_cache(self) -> None:
        self.emptied += 1


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
        RuntimeError("Triton Error [CUDA]: out of memory"),
    ],
    ids=["allocation", "binary"],
)
def test_a_call_is_repeated_with_the_memory_that_was_kept(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FullDevice(error)
    monkeypatch.setattr(torch.cuda, "empty_cache", device.empty_cache)
    assert call_with_memory(device.call) == "done"
    assert (device.calls, device.emptied) == (2, 1)


def test_an_error_of_another_kind_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FullDevice(ValueError("BLOCK must be a power of two"))
    monkeypatch.setattr(torch.cuda, "empty_cache", device.empty_cache)
    with pytest.raises(ValueError, match="power of two"):
        call_with_memory(device.call)
    assert (device.calls, device.emptied) == (1, 0)


def test_a_device_that_stays_full_is_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FullDevice(RuntimeError("Triton Error [CUDA]: out of memory"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    with pytest.raises(RuntimeError, match="out of memory"):
        call_with_memory(device.call)
    assert device.calls == 2
