"""Wait for another process's lease without stopping the other kernels of this process."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from support.addition import CONFIGS, Bench, add_one, make
from support.kernels import launch

from dejavu_cache import CheckOptions, cached_autotune
from dejavu_cache.stores.tiered import default_store


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
    thread.join(240)
    assert waiting.benchmarked == len(CONFIGS)


def test_a_launch_within_a_tune_does_not_wait_for_a_thread_that_waits_for_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DEJAVU_CACHE_TUNE_WAIT", "600")
    helper = make(Bench())
    other_thread = threading.Thread(target=launch, args=(helper, 100), daemon=True)

    def launch_helper(arguments: Mapping[str, Any]) -> None:
        if not other_thread.is_alive():
            other_thread.start()
        request = helper.request(arguments["x_ptr"], arguments["y_ptr"], 100)
        while True:
            with default_store().lease(request.context, request.scenario, wait=0) as is_free:
                if not is_free:
                    break
        helper[(7,)](arguments["x_ptr"], arguments["y_ptr"], 100)

    check = CheckOptions(reference=launch_helper)
    launch(cached_autotune(configs=CONFIGS, key=["n"], check=check)(add_one), 100)
    other_thread.join(240)
    assert helper.benchmarked == len(CONFIGS)
