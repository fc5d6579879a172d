"""A tune leaves the kernel of the winner in memory, and no others of its own."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.processes import fork_program

from dejavu_cache.triton_internals.compilation import keys_in_memory, release_later


def test_the_kernels_of_configs_that_lost_are_released(tmp_path: Path) -> None:
    """Look at all compiled kernels that are alive, when they are compiled for an absent GPU."""
    done = fork_program(
        "release_losers.py",
        TRITON_INTERPRET="0",
        TRITON_CACHE_DIR=str(tmp_path / "triton"),
        DEJAVU_CACHE_URL=str(tmp_path / "store"),
    )
    outcome = json.loads(done.stdout)
    own, tuning, after, again = outcome["reports"]
    assert outcome["best"] == 512
    assert own["blocks"] == [256]
    assert tuning["blocks"] == [64, 128, 256, 512, 1024]
    assert after["blocks"] == [256, 512], "the program's own, and the winner"
    assert after["bytes"] < 0.7 * tuning["bytes"]
    assert again["blocks"] == [128, 256, 512], "a config that lost can still be launched"


def test_binaries_of_other_settings_are_not_timed() -> None:
    """Triton launches what is in memory, also after a setting has changed that changes the code."""
    done = fork_program("change_settings.py", TRITON_INTERPRET="0", DEJAVU_CACHE_SHIPPED="0")
    *timed, held = done.stdout.split()
    assert timed == ["default"] * 4 + ["1"] * 4 + ["default"] * 2
    assert int(held) > 0, "a CUDA graph may have captured them, and Triton unloads dropped ones"


def test_tunes_of_two_threads_may_release_the_same_kernels(
    request: pytest.FixtureRequest,
) -> None:
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)
    function: Any = SimpleNamespace(device_caches={0: ({},)})
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            earlier = keys_in_memory(function)
            function.device_caches[0][0].update({number: object() for number in range(3000)})
            list(pool.map(release_later, [function] * 2, [earlier] * 2, [None] * 2))
            assert not function.device_caches[0][0]
