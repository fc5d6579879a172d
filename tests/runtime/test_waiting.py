"""Wait for another process's lease without stopping the other kernels of this process."""

from __future__ import annotations

import threading

import torch
from support.addition import CONFIGS, add_one
from support.kernels import launch

from dejavu_cache import cached_autotune
from dejavu_cache.stores.default import default_store


def test_a_kernel_that_waits_for_a_lease_does_not_stop_another() -> None:
    waiting, other = (cached_autotune(configs=CONFIGS, key=["n"])(add_one) for _ in range(2))
    request = waiting.request(torch.ones(1), torch.ones(1), 100)
    with default_store().lease(request.context, request.scenario, wait=0):
        thread = threading.Thread(target=launch, args=(waiting, 100), daemon=True)
        thread.start()
        thread.join(1)
        launch(other, 300)
        assert other.benchmarked == len(CONFIGS)
        assert thread.is_alive(), "it still waits"
    thread.join(60)
    assert waiting.benchmarked == len(CONFIGS)
