"""On a real GPU, a true winner holds, and one with a made-up timing is set aside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from dejavu_cache import cached_autotune
from dejavu_cache.model.record import Measurement, Record
from dejavu_cache.model.scenario import Config, now
from dejavu_cache.stores import FileStore
from dejavu_cache.sweep.case_tuner import make_request
from dejavu_cache.sweep.suite import Case
from dejavu_cache.sweep.winner_verification import verify_winners

pytestmark = pytest.mark.gpu

SIZE = 1 << 22
CONFIGS = [
    triton.Config({"REPEAT": repeat}, num_warps=warps)
    for repeat, warps in ((64, 4), (64, 8), (256, 4))
]


@triton.jit
def waves(x, out, n, REPEAT: tl.constexpr):
    at = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    value = tl.load(x + at, mask=at < n)
    for step in range(REPEAT):
        value = tl.sin(value + step)
    tl.store(out + at, value, mask=at < n)


def arguments() -> dict[str, Any]:
    x = torch.rand(SIZE, device="cuda")
    return {"x": x, "out": torch.empty_like(x), "n": SIZE}


def test_a_true_winner_holds_and_a_false_one_is_replaced(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    kernel = cached_autotune(CONFIGS, ["n"], store=tmp_path, check=False)(waves)
    grid = (triton.cdiv(SIZE, 1024),)
    kernel[grid](**arguments())
    case = Case("waves", kernel, grid, arguments)
    (before,) = verify_winners([case], store, 1)
    assert before.outcome == "holds"
    assert before.error is not None
    request = make_request(case)
    stored = store.get(request.context, request.scenario, fresh=True)
    assert stored is not None
    timings = stored.record.by_config
    slowest: Config = max(timings, key=lambda config: timings[config].median or 0.0)
    assert slowest.params["REPEAT"] == 256
    fastest = min(item.median or 0.0 for item in timings.values())
    false = Measurement(config=slowest, median=fastest / 2, at=now())
    store.put(request.context, [Record(scenario=request.scenario, measurements=(false,))])
    (after,) = verify_winners([case], store, 1)
    assert (after.outcome, after.config) == ("set aside", str(slowest))
    assert after.cost is not None
    assert after.cost > 2
    assert after.winner != str(slowest)
    (again,) = verify_winners([case], store, 1)
    assert again.outcome == "holds"
