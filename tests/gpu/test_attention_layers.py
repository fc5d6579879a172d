"""Layers of a step on a real GPU share a plan, also beside other work; none compiles late."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import triton
import triton.language as tl
from support.attention_batches import (
    DECODES,
    TOLERANCE,
    Case,
    draw,
    draw_layers,
    has_hopper,
    relative_error,
    take_new_tokens,
)
from support.processes import PROGRAMS, run_python

from dejavu_cache.attention import plan
from dejavu_cache.attention.kernels import hopper, kernel_call

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("heads", [(32, 8), (7, 1)])
def test_layers_of_few_sequences_each_get_their_own_result(heads: tuple[int, int]) -> None:
    layers = draw_layers(replace(DECODES, new=[1], past=[3000], heads=heads), 0.5)
    planned = plan(**layers[0].arguments)
    assert planned.implementation == "few_sequences"
    for layer in (*layers, *layers):
        assert layer.error_of_layer(planned) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize(
    ("implementation", "new"),
    [("few_sequences", [1]), ("hopper", [1] * 4), ("hopper", [4] * 4), ("hopper", [90, 1])],
)
def test_layers_of_a_float8_cache_have_scales_of_their_own(
    implementation: str, new: list[int], dtype: torch.dtype
) -> None:
    batch = draw(replace(DECODES, new=new, past=[3000, 40, 7, 900][: len(new)], cache_dtype=dtype))
    planned = plan(**batch.arguments)
    assert planned.implementation == implementation
    for k_scale, v_scale in ((0.7, 1.3), (0.2, 3.0), (1.5, 0.1)):
        batch.arguments.update(k_scale=k_scale, v_scale=v_scale)
        batch.expected = batch.run("reference")
        scales = tuple(torch.tensor(scale, device="cuda") for scale in (k_scale, v_scale))
        assert batch.error_of_layer(planned, scales=scales) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize(
    ("new", "later"), [([1], [1]), ([1] * 5, [1] * 5), ([90, 1], [70, 1]), ([330, 200], [250, 249])]
)
def test_later_steps_launch_what_triton_has_bound(
    new: list[int], later: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for lengths, past in ((new, 3000), (later, 2900)):
        batch = draw(replace(DECODES, new=lengths, past=[past, 40, 7, 500, 90][: len(new)]))
        slots = take_new_tokens(batch.arguments)
        planned = plan(**batch.arguments)
        for _ in range(2):
            assert batch.error_of_layer(planned, new=slots) < TOLERANCE[torch.bfloat16]
        monkeypatch.setattr(kernel_call.KernelCall, "__call__", Mock(side_effect=AssertionError))


def test_a_step_of_another_form_is_bound_anew() -> None:
    """What the compiled kernel takes for granted of pointers and strides is part of its form."""
    batch = draw(replace(DECODES, new=[90, 1], past=[0, 500], heads=(8, 2)))
    q, keys, values = batch.tensors
    for gap in (0, 2, 8, 0):  # elements between the rows of queries, and before the first
        wider = torch.zeros(*q.shape[:2], q.shape[2] + gap, dtype=q.dtype, device="cuda")
        moved = wider[..., gap:].copy_(q)
        planned = plan(**{**batch.arguments, "q": moved})
        out = planned.run(moved, keys, values, out=torch.full_like(q, float("nan")))
        assert relative_error(out, batch.expected) < TOLERANCE[torch.bfloat16]


def test_layers_of_hopper_make_tensor_maps_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton.backends.nvidia.driver as cuda

    layers = draw_layers(replace(DECODES, new=[1] * 5, past=[3000, 40, 7, 500, 90]), 1 / 2, 1 / 3)

    def run_layers() -> None:
        planned = plan(**layers[0].arguments)
        assert planned.implementation == "hopper"
        for layer in layers:
            assert layer.error_of_layer(planned) < TOLERANCE[torch.bfloat16]

    run_layers()
    made = Mock(wraps=cuda.make_tensordesc_arg)
    monkeypatch.setattr(cuda, "make_tensordesc_arg", made)
    run_layers()
    # A plan's first launch is Triton's own: two maps for it, and two to prepare its repetition.
    assert made.call_count <= 4


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("new", [1, 4, 100])
@pytest.mark.parametrize("heads", [(32, 8), (7, 1)])
def test_a_layer_waits_for_what_the_one_before_writes(
    new: int, heads: tuple[int, int], overlap: bool
) -> None:
    """Launches may begin before the ones before them end; results are then to be the same."""
    batch = draw(replace(DECODES, new=[new] * 8, heads=heads))
    first, keys, values = batch.tensors
    planned = plan(**batch.arguments, overlap=overlap)
    assert planned.implementation == "hopper"
    apart = [first]
    for _ in range(8):
        apart.append(planned.run(apart[-1], keys, values))
        torch.cuda.synchronize()
    at_once = [apart[0], *map(torch.empty_like, apart[1:])]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = plan(**batch.arguments, overlap=overlap)
        for q, out in pairwise(at_once):
            captured.run(q, keys, values, out=out)
    for _ in range(50):
        for out in at_once[1:]:
            out.fill_(float("nan"))
        graph.replay()
        assert all(torch.equal(*both) for both in zip(apart, at_once, strict=True))


def test_a_layer_that_is_captured_has_other_counters_than_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A graph may be replayed beside launches of the stream on which its plan was first run."""
    counted = Mock(side_effect=kernel_call.zeros)
    monkeypatch.setattr(hopper, "zeros", counted)
    batch = draw(DECODES)
    planned = plan(**batch.arguments)
    out = torch.empty_like(batch.expected)
    for _ in range(2):
        planned.run(*batch.tensors, out=out)
    assert counted.call_count == 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(2):
            planned.run(*batch.tensors, out=out)
    assert counted.call_count == 2
    out.fill_(float("nan"))
    graph.replay()
    assert relative_error(out, batch.expected) < TOLERANCE[torch.bfloat16]


ROUNDS = 20_000
"""Of the other work: some 3 ms."""


@triton.jit
def fill_multiprocessors(out, rounds, BLOCK: tl.constexpr):
    """Keep a multiprocessor's registers for a while, so that no other program fits beside."""
    values = tl.arange(0, BLOCK).to(tl.float32)
    for _ in range(rounds):
        values = values * 1.0001 + 0.5
    tl.store(out + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), values)


BATCHES = {
    "decodes": Case(new=[1] * 2, past=[9000, 20000], heads=(32, 8)),
    "drafts": Case(new=[4] * 3, past=[3000, 9000, 100], heads=(32, 8)),
    "one KV head": Case(new=[1] * 2, past=[9000, 700], heads=(8, 1)),
    "a chunk": Case(new=[300], past=[9000], heads=(32, 8)),
}


@pytest.mark.skipif(not has_hopper(), reason="the kernel for Hopper GPUs cannot run here")
@pytest.mark.parametrize("programs", [10, 100, 131])
@pytest.mark.parametrize("name", BATCHES)
def test_programs_that_start_late_do_not_stop_the_others(name: str, programs: int) -> None:
    batch = draw(replace(BATCHES[name], head_size=128, dtype=torch.bfloat16))
    within = TOLERANCE[torch.bfloat16]
    batch.run("hopper")  # compiles
    memory = torch.empty(programs * 32768, device="cuda")
    fill_multiprocessors[(programs,)](memory, 1, BLOCK=32768, num_warps=32)
    torch.cuda.synchronize()
    beside = torch.cuda.Stream()
    for _ in range(3):
        with torch.cuda.stream(beside):
            fill_multiprocessors[(programs,)](memory, ROUNDS, BLOCK=32768, num_warps=32)
        assert relative_error(batch.run("hopper"), batch.expected) < within
        torch.cuda.synchronize()
        assert relative_error(batch.run("hopper"), batch.expected) < within


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_all_kernels_are_compiled_at_once(dtype: str, tmp_path: Path) -> None:
    """Those of `hopper`, and for float32 those with an autotuner."""
    program = f"import runpy; runpy.run_path({str(PROGRAMS / 'warm_up_attention.py')!r})"
    done = run_python(program, dtype, TRITON_CACHE_DIR=str(tmp_path / "cache"))
    threads, *_ = json.loads(done.stdout)
    assert set(threads) == {"dejavu-cache compile"}, "none waits for its own launch"


PROCESS = """
    import torch
    from dejavu_cache.attention import sweep_suite
    from dejavu_cache.attention.api import IMPLEMENTATIONS
    batches = list(sweep_suite.lengths())
    model = sweep_suite.PRESETS["llama3-8b"]
    for lengths in batches:
        IMPLEMENTATIONS["auto"](sweep_suite.batch_of(lengths, model, 16, torch.bfloat16))
    torch.cuda.synchronize()
    tuned = sum(kernel.benchmarked for kernel in sweep_suite.KERNELS.values())
    print(len(batches), tuned)
"""


def test_a_process_with_an_empty_store_benchmarks_nothing(tmp_path: Path) -> None:
    if torch.cuda.get_device_name() != "NVIDIA H200" or not triton.__version__.startswith("3.6."):
        pytest.skip("the shipped records are of an H200 and Triton 3.6")
    store = str(tmp_path / "store")
    done = run_python(PROCESS, check=False, DEJAVU_CACHE_URL=store, DEJAVU_CACHE_MODE="tune")
    assert (done.stdout, done.stderr) == ("139 0\n", "")
