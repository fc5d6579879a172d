"""On a real GPU, `cached_autotune` and `triton.autotune` launch alike.

`LAUNCHES` sets how many random launches are compared (4,000). At the end of the run, every
difference is printed with the launch that made it.
"""

import functools
import os
import random
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from gpu.random_launches import CONFIGS, DEVICES, GPU, KERNELS, Case, Pair, reads_a_global
from support.addition import equal_times
from triton.runtime.jit import JITFunction

from dejavu_cache import Pow2, cached_autotune

pytestmark = pytest.mark.gpu

LAUNCHES = int(os.environ.get("LAUNCHES", "4000"))


@pytest.fixture
def through_triton(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Count the launches that go through `JITFunction.run`, by the function's id."""
    calls: Counter[int] = Counter()
    run = JITFunction.run

    @functools.wraps(run)
    def run_and_count(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls[id(self)] += 1
        return run(self, *args, **kwargs)

    monkeypatch.setattr(JITFunction, "run", run_and_count)
    return calls


def test_random_launches_cannot_be_told_apart(tmp_path: Path, through_triton: Counter[int]) -> None:
    """Compare compiled kernels, results, errors, hooks and configs of random launches."""
    rng = random.Random(0)
    pairs = [Pair(function, tmp_path / function.__name__) for function in KERNELS]
    different, errors = [], Counter[str]()
    for index in range(LAUNCHES):
        case = Case(rng.choice(pairs), rng)
        try:
            # The second of two equal launches takes the hot path.
            theirs, *ours = (case.run(which) for which in ("theirs", "ours", "ours"))
        except Exception:
            different.append(
                f"launch {index} of {case.pair.name}: the comparison failed\n"
                f"{traceback.format_exc()}"
            )
            continue
        errors[str(theirs[2])[:60]] += 1
        other = next((launch for launch in ours if launch != theirs), None)
        if other is not None:
            parts = zip(
                ("kernel", "written", "error", "hooks", "config"), theirs, other, strict=True
            )
            shown = "".join(
                f"\n  {part}: theirs {str(a)[:300]}\n  {part}: ours   {str(b)[:300]}"
                for part, a, b in parts
                if a != b
            )
            different.append(f"launch {index} of {case}{shown}")
    ours_through_triton = sum(through_triton[id(pair.functions[1])] for pair in pairs)
    print(
        f"\n{LAUNCHES} pairs of launches, {len(different)} different; "
        f"ours through Triton: {ours_through_triton}"
    )
    print("errors that both raised:", dict(errors))
    print("\n".join(different[:40]))
    assert not different
    assert ours_through_triton < LAUNCHES, "the hot path was hardly taken"


def _launch(kernel: Any, n: int, device: str = DEVICES[0], **kwargs: Any) -> torch.Tensor:
    x = torch.arange(n, device=device).float()
    out = torch.full_like(x, -7.0)
    kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n, **kwargs)
    return out


def test_a_resolved_launch_does_not_pass_through_triton(
    tmp_path: Path, through_triton: Counter[int]
) -> None:
    """Neither bare, with buckets, with one config, nor where a fallback runs untuned."""
    options: dict[str, Any] = {"configs": CONFIGS, "key": ["n"], "do_bench": equal_times}
    ways: dict[str, dict[str, Any]] = {
        "exact": {},
        "buckets": {"buckets": {"n": Pow2()}},
        "one config": {"configs": CONFIGS[:1]},
        "a fallback": {"mode": "reuse"},
    }
    for name, way in ways.items():
        kernel = cached_autotune(**{**options, "store": tmp_path / name, **way})(
            triton.jit(reads_a_global)
        )
        for n in (100, 101):
            _launch(kernel, n)
        before = through_triton[id(kernel.fn)]
        for n in (100, 101) * 5:
            out = _launch(kernel, n)
            assert not GPU or torch.equal(out, torch.arange(n, device=out.device) + 3.0)
        assert through_triton[id(kernel.fn)] == before, name


def test_a_config_with_a_hook_sees_its_arguments_and_may_change_them(tmp_path: Path) -> None:
    """As persistent matmuls set a descriptor's block in a hook, launches use what it left."""
    seen: list[int] = []

    def hook(args: dict[str, Any]) -> None:
        seen.append(args["n"])
        args["x"].block_shape[0] = args["BLOCK"]

    from triton.tools.tensor_descriptor import TensorDescriptor

    def copies(x, out, n, BLOCK: tl.constexpr):
        start = tl.program_id(0) * BLOCK
        tl.store(out + start + tl.arange(0, BLOCK), x.load([start]))

    configs = [triton.Config({"BLOCK": block}, pre_hook=hook) for block in (64, 128)]
    kernel = cached_autotune(configs, ["n"], do_bench=equal_times, store=tmp_path)(
        triton.jit(copies)
    )
    x = torch.arange(1024, device=DEVICES[0]).float()
    counts = []
    for _ in range(3):
        out = torch.full_like(x, -7.0)
        kernel[lambda meta: (1024 // meta["BLOCK"],)](
            TensorDescriptor.from_tensor(x, [16]), out, 1024
        )
        assert not GPU or torch.equal(out, x)
        counts.append(len(seen))
    assert [counts[1] - counts[0], counts[2] - counts[1]] == [1, 1]


def test_descriptors_without_a_hook_are_launched_as_triton_does(tmp_path: Path) -> None:
    """Another block is another kernel."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    def copies(x, out, n, BLOCK: tl.constexpr, SIZE: tl.constexpr):
        at = tl.arange(0, SIZE)
        for start in range(tl.program_id(0) * BLOCK, tl.program_id(0) * BLOCK + BLOCK, SIZE):
            tl.store(out + start + at, x.load([start]))

    kernel = cached_autotune(CONFIGS, ["n"], do_bench=equal_times, store=tmp_path)(
        triton.jit(copies)
    )
    x = torch.arange(1024, device=DEVICES[0]).float()
    for size in (16, 64, 16, 64, 16):
        out = torch.full_like(x, -7.0)
        kernel[lambda meta: (1024 // meta["BLOCK"],)](
            TensorDescriptor.from_tensor(x, [size]), out, 1024, SIZE=size
        )
        assert not GPU or torch.equal(out, x)


def test_threads_launch_side_by_side(tmp_path: Path) -> None:
    """Eight threads, two scenarios each: nobody gets another's arguments."""
    kernel = Pair(reads_a_global, tmp_path).ours

    def work(n: int) -> None:
        for _ in range(200):
            for size in (n, n + 16):
                out = _launch(kernel, size)
                assert not GPU or torch.equal(out, torch.arange(size, device=out.device) + 3.0)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [32 * (1 + index % 4) for index in range(8)]))
