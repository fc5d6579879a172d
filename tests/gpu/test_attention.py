"""The attention kernels against the reference on a real GPU, and within their tensors."""

import os
import random
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.attention_batches import (
    COMPOSITIONS,
    DECODES,
    LONG_PROMPTS,
    PROMPTS,
    TOLERANCE,
    Case,
    check,
    draw,
    drawn_case,
    has_hopper,
    relative_error,
    runnable,
    take_new_tokens,
)
from support.processes import run_command

from dejavu_cache.attention import paged_attention, plan
from dejavu_cache.attention.kernels import kernel_call
from dejavu_cache.attention.sweep_suite import KERNELS

pytestmark = pytest.mark.gpu

PER_IMPLEMENTATION = 130


def implementations_with_seeds() -> Iterator[tuple[str, int]]:
    names = [*KERNELS, "few_sequences", *(["hopper"] if has_hopper() else [])]
    for implementation in names if torch.cuda.is_available() else ():
        for seed in range(PER_IMPLEMENTATION if implementation != "few_sequences" else 40):
            yield implementation, seed


@pytest.mark.parametrize(("implementation", "seed"), list(implementations_with_seeds()))
def test_every_implementation_agrees_with_the_reference(
    implementation: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = drawn_case(seed, implementation)
    if implementation in KERNELS:
        config = random.Random(seed).choice(runnable(implementation, case))
        monkeypatch.setattr(KERNELS[implementation], "configs", [config])
    check(case, implementation)


@pytest.mark.parametrize("seed", range(40))
def test_prompts_whose_scores_grow_by_far_agree_with_the_reference(seed: int) -> None:
    """Pages of keys differ in size by up to 4,000 times, so that each may hold the new maximum."""
    pick = random.Random(seed)
    new, past = pick.choice(
        [*LONG_PROMPTS.values(), COMPOSITIONS["mixed"], COMPOSITIONS["chunked"]]
    )
    case = replace(drawn_case(seed, "hopper"), new=new, past=past, cache_dtype=None)
    batch = draw(case)
    keys = batch.arguments["k_cache"]
    sizes = torch.tensor([pick.choice([0.01, 1.0, 8.0, 40.0]) for _ in keys], device=keys.device)
    keys.mul_(sizes[:, None, None, None])
    batch.__post_init__()
    assert relative_error(batch.run("hopper"), batch.expected) < TOLERANCE[case.dtype]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("implementation", ["few_sequences", "hopper"])
def test_new_tokens_are_computed_and_written(implementation: str, seed: int) -> None:
    """In a captured graph too, replayed after the cache has changed."""
    batch = draw(replace(drawn_case(seed, implementation), padding=0, cache_dtype=None))
    _, *caches = batch.tensors
    whole = [cache.clone() for cache in caches]
    new, stale = take_new_tokens(batch.arguments), [cache.clone() for cache in caches]
    planned = plan(**batch.arguments)
    assert planned.writes(new)
    out = torch.empty_like(batch.expected)

    def run() -> None:
        out.fill_(float("nan"))
        for cache, before in zip(caches, stale, strict=True):
            cache.copy_(before)
        planned.run(*batch.tensors, out=out, new=new)

    def check_results() -> None:
        assert relative_error(out, batch.expected) < TOLERANCE[out.dtype]
        for cache, expected in zip(caches, whole, strict=True):
            assert torch.equal(cache.nan_to_num(), expected.nan_to_num())

    for _ in range(2):  # the second time repeats the first one's launches
        run()
        check_results()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    out.fill_(0.0)
    graph.replay()
    check_results()


@pytest.mark.parametrize("seed", range(40))
def test_auto_takes_every_batch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = drawn_case(seed, "auto")
    for implementation, kernel in KERNELS.items():
        monkeypatch.setattr(kernel, "configs", runnable(implementation, case)[:1])
    check(case, "auto")


class Captured:
    """A graph of one call, and the tensors that it reads and writes."""

    def __init__(self, shape: Case, implementation: str) -> None:
        self.fixed = draw(shape)
        self.fixed.run(implementation)  # compiles
        self.out = torch.empty_like(self.fixed.arguments["q"])
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            paged_attention(**self.fixed.arguments, out=self.out, implementation=implementation)

    def replay(self, case: Case) -> float:
        """Copy another batch into the captured tensors, replay, and return the relative error."""
        batch = draw(case)
        for name in ("q", "k_cache", "v_cache", "block_table", "seqused_k", "cu_seqlens_q"):
            static, fresh = self.fixed.arguments[name], batch.arguments[name]
            static.zero_()
            static[tuple(slice(size) for size in fresh.shape)] = fresh
        self.out.fill_(float("nan"))
        self.graph.replay()
        return relative_error(self.out[: len(batch.expected)], batch.expected)


def other_lengths(shape: Case, seed: int) -> Case:
    """Return a batch that fits a graph captured for `shape`: some sequences, the rest padding."""
    pick = random.Random(seed)
    sequences = pick.randrange(1, len(shape.new) + 1)
    new = [pick.randrange(1, most + 1) for most in shape.new[:sequences]]
    past = [pick.choice([0, 1, 17, 500, pick.randrange(most)]) for most in shape.past[:sequences]]
    return replace(shape, new=new, past=past, padding=len(shape.new) - sequences, seed=seed)


@pytest.mark.parametrize("shape", [DECODES, PROMPTS], ids=["decodes", "prompts"])
@pytest.mark.parametrize("implementation", ["static_grid", "segmented", "hopper", "few_sequences"])
def test_one_captured_graph_serves_a_hundred_batches(
    implementation: str, shape: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 16 if shape is DECODES else 64
    if implementation in KERNELS:
        able = [
            config
            for config in runnable(implementation, shape)
            if config.kwargs.get("BLOCK_M", rows) == rows
        ]
        monkeypatch.setattr(KERNELS[implementation], "configs", able[:1])
    captured = Captured(shape, implementation)
    for seed in range(100):
        case = other_lengths(shape, seed)
        error = captured.replay(case)
        assert error < TOLERANCE[torch.bfloat16], (
            f"replay {seed}: relative error {error:.1e} for {case}"
        )


@pytest.mark.parametrize("new", [1, 100])
@pytest.mark.parametrize("heads", [(32, 8), (7, 1)])
def test_a_sequence_without_keys_is_left_out(new: int, heads: tuple[int, int]) -> None:
    batch = draw(replace(DECODES, new=[new] * 3, past=[700] * 3, heads=heads))
    batch.arguments["seqused_k"][1] = 0
    out = batch.run("hopper")
    for rows in (slice(0, new), slice(2 * new, 3 * new)):
        assert relative_error(out[rows], batch.expected[rows]) < TOLERANCE[torch.bfloat16]
    assert out[new : 2 * new].isnan().all()


def odd(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's numbers in rows that begin at odd offsets."""
    wider = torch.empty(*tensor.shape[:-1], tensor.shape[-1] + 1, dtype=tensor.dtype, device="cuda")
    wider[..., 1:] = tensor
    return wider[..., 1:]


def test_rows_may_begin_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(DECODES, new=[1, 50], past=[300, 0], heads=(8, 2))
    batch = draw(case)
    caches = batch.arguments["k_cache"], batch.arguments["v_cache"]
    padded = torch.cat([batch.arguments["q"], batch.arguments["q"][:2]])
    planned = plan(**{**batch.arguments, "q": padded})
    assert planned.implementation == "hopper"
    with pytest.raises(ValueError, match="its rows are at odd offsets"):
        planned.run(padded, *caches, out=odd(padded))
    q = batch.arguments["q"]
    for implementation, kernel in KERNELS.items():
        monkeypatch.setattr(kernel, "configs", runnable(implementation, case)[:1])
    out = paged_attention(**{**batch.arguments, "q": odd(q)}, out=odd(q))
    assert relative_error(out, batch.expected) < TOLERANCE[torch.bfloat16]
    with pytest.raises(ValueError, match="rows of q and out at even offsets"):
        paged_attention(**{**batch.arguments, "q": odd(q)}, implementation="hopper")


def test_memory_between_heads_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(DECODES, new=[1, 50], past=[300, 0], heads=(8, 2), head_size=80)
    batch = draw(case)
    for name in ("k_cache", "v_cache"):
        cache = batch.arguments[name]
        wider = torch.full((*cache.shape[:-1], 128), float("nan"), dtype=cache.dtype, device="cuda")
        wider[..., :80] = cache
        batch.arguments[name] = wider[..., :80]
    for implementation, kernel in KERNELS.items():
        monkeypatch.setattr(kernel, "configs", runnable(implementation, case)[:1])
    assert relative_error(batch.run("auto"), batch.expected) < TOLERANCE[torch.bfloat16]


def test_a_graph_keeps_its_counters_when_many_more_are_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel_call, "_supplies", {})
    monkeypatch.setattr(
        kernel_call, "SPARE", 3 * 4 * torch.cuda.get_device_properties(0).multi_processor_count
    )
    kernel = KERNELS["static_grid"]
    monkeypatch.setattr(kernel, "configs", runnable("static_grid", DECODES)[:1])
    first, *others = [Captured(DECODES, "static_grid") for _ in range(5)]
    torch.cuda.empty_cache()
    poison = [torch.full((1 << 18,), 7, dtype=torch.int32, device="cuda") for _ in range(256)]
    assert first.replay(other_lengths(DECODES, 0)) < TOLERANCE[torch.bfloat16]
    assert all((tensor == 7).all() for tensor in poison)
    assert all(
        graph.replay(other_lengths(DECODES, 1)) < TOLERANCE[torch.bfloat16] for graph in others
    )


def test_a_call_runs_on_the_gpu_of_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("takes two GPUs")
    for implementation, kernel in KERNELS.items():
        case = Case(new=[1, 40], past=[100, 0], heads=(8, 2), head_size=128, dtype=torch.float16)
        monkeypatch.setattr(kernel, "configs", runnable(implementation, case)[:1])
        check(case, implementation, "cuda:1")
    assert torch.cuda.current_device() == 0


def test_a_cache_beyond_two_to_the_31_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("takes 20 GiB")
    case = Case(new=[1, 40], past=[100, 0], heads=(8, 8), head_size=128, dtype=torch.float16)
    batch = draw(case)
    page = batch.arguments["k_cache"][0].numel()
    blocks = (1 << 31) // page + 64
    for name in ("k_cache", "v_cache"):
        small = batch.arguments[name]
        large = torch.full(
            (blocks, *small.shape[1:]), float("nan"), dtype=small.dtype, device="cuda"
        )
        large[-len(small) :] = small
        batch.arguments[name] = large
    table = batch.arguments["block_table"]
    table += torch.where(table < 2**30, blocks - len(small), 0).to(torch.int32)
    for implementation, kernel in KERNELS.items():
        monkeypatch.setattr(kernel, "configs", runnable(implementation, case)[:1])
        assert relative_error(batch.run(implementation), batch.expected) < TOLERANCE[case.dtype], (
            implementation
        )


PROGRAM = Path(__file__).parents[1] / "programs" / "attend_drawn_batches.py"
BATCHES = {
    "hopper": 12,
    "few_sequences": 4,
    "qblock": 4,
    "segmented": 4,
    "static_grid": 4,
    "naive": 4,
}


def sanitizer() -> str:
    found = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(found):
        pytest.skip("compute-sanitizer is not installed")
    return found


@pytest.mark.parametrize("implementation", list(BATCHES))
def test_no_kernel_reads_or_writes_outside_of_its_tensors(implementation: str) -> None:
    if implementation == "hopper" and not has_hopper():
        pytest.skip(f"{implementation} does not run on this GPU")
    memcheck = [sanitizer(), "--tool", "memcheck", "--error-exitcode", "9"]
    program = [sys.executable, str(PROGRAM), implementation, str(BATCHES[implementation])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PROGRAM.parents[1]), *sys.path]),
        # An allocation of its own for each tensor, so that what lies beside one is not another.
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    }

    def run(*command: str) -> tuple[int, str]:
        completed = run_command(*command, env=environment, check=False, timeout=280)
        return completed.returncode, completed.stdout + completed.stderr[-4000:]

    status, output = run(*program)  # compiles; under the sanitizer, that would take minutes
    assert status == 0, output
    status, output = run(*memcheck, *program)
    if "Device not supported" in output:
        pytest.skip("compute-sanitizer does not support this device")
    assert status == 0, output
    assert "ERROR SUMMARY: 0 errors" in output
