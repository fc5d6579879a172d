"""The attention kernels against the reference on a real GPU: features crossed at random, every config in its turn."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from attention_support import TOLERANCE, Case, check, draw, kernels, relative_error, runnable, varied

pytestmark = pytest.mark.gpu

PER_IMPLEMENTATION = 130
COMPOSITIONS = {
    "decode": ([1] * 7, [300, 1, 64, 1000, 0, 33, 2049]),
    "prefill": ([200, 1, 77, 130], [0, 0, 0, 0]),
    "mixed": ([1, 130, 1, 40, 1], [700, 0, 5, 260, 1500]),
    "chunked": ([128, 128], [1024, 77]),
    "one token": ([1], [0]),
    "draft": ([4, 3, 4], [500, 2000, 31]),
}


def drawn_case(seed: int, implementation: str) -> Case:
    """A case with everything chosen at random; for `hopper` what it takes."""
    pick = random.Random(f"{implementation} {seed}")
    new, past = pick.choice(list(COMPOSITIONS.values()))
    plain = implementation == "hopper"
    dtype = pick.choice([torch.bfloat16, torch.float16] if plain else list(TOLERANCE))
    small = dtype == torch.float32
    return Case(
        new=new,
        past=past,
        heads=pick.choice([(4, 4), (8, 2), (7, 1), (10, 2), (16, 1), (12, 4)]),
        head_size=pick.choice([64, 80, 96, 128, 192] + ([] if small else [256])),
        page=pick.choice([8, 16, 32, 64, 128] if plain else [1, 7, 16, 24, 32, 64, 128, 544]),
        dtype=dtype,
        cache_dtype=None if plain or small else pick.choice([None, None, torch.float8_e4m3fn, torch.float8_e5m2]),
        window=-1 if plain else pick.choice([-1, -1, 0, 40, 128, 5000]),
        softcap=0.0 if plain else pick.choice([0.0, 0.0, 20.0]),
        alibi=not plain and pick.random() < 0.3,
        sinks=pick.random() < 0.3,
        padding=pick.choice([0, 0, 3]),
        seed=seed,
    )


def numbered() -> Iterator[tuple[str, int]]:
    for implementation in kernels() if torch.cuda.is_available() else ():
        for seed in range(PER_IMPLEMENTATION):
            yield implementation, seed


@pytest.mark.parametrize(("implementation", "seed"), list(numbered()))
def test_every_implementation_agrees_with_the_reference(
    implementation: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = drawn_case(seed, implementation)
    configs = runnable(implementation, case)
    config = random.Random(seed).choice(configs)
    monkeypatch.setattr(kernels()[implementation], "configs", [config])
    check(case, implementation)


@pytest.mark.parametrize("seed", range(40))
def test_auto_takes_every_batch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = drawn_case(seed, "auto")
    for implementation, kernel in kernels().items():
        monkeypatch.setattr(kernel, "configs", runnable(implementation, case)[:1])
    check(case, "auto")


def test_one_captured_static_grid_serves_fifty_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernels()["static_grid"]
    shape = Case(new=[1] * 8, past=[4000] * 8, heads=(32, 8), head_size=128, dtype=torch.bfloat16)
    monkeypatch.setattr(kernel, "configs", [next(c for c in kernel.configs if c.kwargs["BLOCK_M"] == 16)])
    from dejavu_cache.attention import paged_attention

    fixed = draw(shape)
    fixed.run("static_grid")  # compiles
    out = torch.empty_like(fixed.arguments["q"])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        paged_attention(**fixed.arguments, out=out, implementation="static_grid")
    pick = random.Random(0)
    for seed in range(50):
        lengths = [pick.choice([0, 1, 17, 500, pick.randrange(4000)]) for _ in range(8)]
        tokens = pick.randrange(1, 9)  # the others are padding
        case = varied(shape, new=[1] * tokens, past=lengths[:tokens], padding=8 - tokens, seed=seed)
        batch = draw(case)
        for name in ("q", "k_cache", "v_cache", "block_table", "seqused_k", "cu_seqlens_q"):
            held, given = fixed.arguments[name], batch.arguments[name]
            held.zero_()
            held[tuple(slice(size) for size in given.shape)] = given
        out.fill_(float("nan"))
        graph.replay()
        error = relative_error(out[:tokens], batch.expected)
        assert error < TOLERANCE[torch.bfloat16], f"replay {seed}: relative error {error:.1e} for {case}"


def test_a_cache_beyond_two_to_the_31_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("takes 20 GiB")
    case = Case(new=[1, 40], past=[100, 0], heads=(8, 8), head_size=128, dtype=torch.float16)
    batch = draw(case)
    page = batch.arguments["k_cache"][0].numel()
    blocks = (1 << 31) // page + 64
    for name in ("k_cache", "v_cache"):
        small = batch.arguments[name]
        large = torch.full((blocks, *small.shape[1:]), float("nan"), dtype=small.dtype, device="cuda")
        large[-len(small) :] = small
        batch.arguments[name] = large
    table = batch.arguments["block_table"]
    table += torch.where(table < 2**30, blocks - len(small), 0).to(torch.int32)
    for implementation, kernel in kernels().items():
        monkeypatch.setattr(kernel, "configs", runnable(implementation, case)[:1])
        assert relative_error(batch.run(implementation), batch.expected) < TOLERANCE[case.dtype], implementation
