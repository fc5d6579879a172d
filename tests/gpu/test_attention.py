"""The attention kernels against the reference on a real GPU: random features, every config."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from unittest.mock import Mock

import pytest
import torch
import triton
from support.attention_batches import (
    COMPOSITIONS,
    LONG_PROMPTS,
    TOLERANCE,
    Case,
    check,
    draw,
    drawn_case,
    kernels,
    relative_error,
    runnable,
    take_new_tokens,
    vary,
)

from dejavu_cache.attention import batch as arguments
from dejavu_cache.attention import dispatch, paged_attention, plan
from dejavu_cache.attention.kernels import hopper
from dejavu_cache.attention.kernels import kernel_call as launch
from dejavu_cache.triton_internals.versions import GLUON_IS_COVERED

pytestmark = pytest.mark.gpu

PER_IMPLEMENTATION = 130


@pytest.fixture(autouse=True)
def let_auto_take_the_hopper_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """With each Triton that it compiles with: passing here is what makes it tested."""
    monkeypatch.setattr(dispatch, "GLUON_IS_TESTED", GLUON_IS_COVERED)


def implementations_with_seeds() -> Iterator[tuple[str, int]]:
    for implementation in kernels() if torch.cuda.is_available() else ():
        for seed in range(PER_IMPLEMENTATION):
            yield implementation, seed


@pytest.mark.parametrize(("implementation", "seed"), list(implementations_with_seeds()))
def test_every_implementation_agrees_with_the_reference(
    implementation: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = drawn_case(seed, implementation)
    configs = runnable(implementation, case)
    config = random.Random(seed).choice(configs)
    monkeypatch.setattr(kernels()[implementation], "configs", [config])
    check(case, implementation)


@pytest.mark.parametrize("seed", range(40))
def test_prompts_whose_scores_grow_by_far_agree_with_the_reference(seed: int) -> None:
    """Pages of keys differ in size by up to 4,000 times, so that each may hold the new maximum."""
    pick = random.Random(seed)
    new, past = pick.choice(
        [*LONG_PROMPTS.values(), COMPOSITIONS["mixed"], COMPOSITIONS["chunked"]]
    )
    case = vary(drawn_case(seed, "hopper"), new=new, past=past, cache_dtype=None)
    batch = draw(case)
    keys = batch.arguments["k_cache"]
    sizes = torch.tensor([pick.choice([0.01, 1.0, 8.0, 40.0]) for _ in keys], device=keys.device)
    keys.mul_(sizes[:, None, None, None])
    batch.__post_init__()
    assert relative_error(batch.run("hopper"), batch.expected) < TOLERANCE[case.dtype]


@pytest.mark.parametrize("seed", range(40))
def test_few_sequences_agree_with_the_reference(seed: int) -> None:
    check(drawn_case(seed, "few_sequences"), "few_sequences")


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("implementation", ["few_sequences", "hopper"])
def test_new_tokens_are_computed_and_written(implementation: str, seed: int) -> None:
    """In a captured graph too, replayed after the cache has changed."""
    batch = draw(vary(drawn_case(seed, implementation), padding=0, cache_dtype=None))
    q, k_cache, v_cache = (batch.arguments[name] for name in ("q", "k_cache", "v_cache"))
    caches = [k_cache, v_cache]
    whole = [cache.clone() for cache in caches]
    new, stale = take_new_tokens(batch.arguments), [cache.clone() for cache in caches]
    planned = plan(**batch.arguments)
    assert planned.writes(new)
    out = torch.empty_like(batch.expected)

    def run() -> None:
        out.fill_(float("nan"))
        for cache, before in zip(caches, stale, strict=True):
            cache.copy_(before)
        planned.run(q, k_cache, v_cache, out=out, new=new)

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


@pytest.mark.parametrize("heads", [(32, 8), (7, 1)])
def test_layers_of_few_sequences_each_get_their_own_result(heads: tuple[int, int]) -> None:
    layers = [draw(vary(DECODES, new=[1], past=[3000], heads=heads)) for _ in range(2)]
    for name in ("q", "k_cache", "v_cache"):
        layers[1].arguments[name] = layers[0].arguments[name] * 0.5
    layers[1].expected = layers[1].run("reference")
    planned = plan(**layers[0].arguments)
    assert planned.implementation == "few_sequences"
    for layer in (*layers, *layers):
        q, keys, values = (layer.arguments[name] for name in ("q", "k_cache", "v_cache"))
        out = planned.run(q, keys, values, out=torch.full_like(q, float("nan")))
        assert relative_error(out, layer.expected) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize(
    ("implementation", "new"),
    [("few_sequences", [1]), ("hopper", [1] * 4), ("hopper", [4] * 4), ("hopper", [90, 1])],
)
def test_layers_of_a_float8_cache_have_scales_of_their_own(
    implementation: str, new: list[int], dtype: torch.dtype
) -> None:
    batch = draw(vary(DECODES, new=new, past=[3000, 40, 7, 900][: len(new)], cache_dtype=dtype))
    q, keys, values = (batch.arguments[name] for name in ("q", "k_cache", "v_cache"))
    planned = plan(**batch.arguments)
    assert planned.implementation == implementation
    for k_scale, v_scale in ((0.7, 1.3), (0.2, 3.0), (1.5, 0.1)):
        batch.arguments.update(k_scale=k_scale, v_scale=v_scale)
        batch.expected = batch.run("reference")
        scales = tuple(torch.tensor(scale, device="cuda") for scale in (k_scale, v_scale))
        out = planned.run(q, keys, values, out=torch.full_like(q, float("nan")), scales=scales)
        assert relative_error(out, batch.expected) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize(
    ("new", "later"),
    [([1], [1]), ([1] * 5, [1] * 5), ([90, 1], [70, 1]), ([330, 200], [250, 249])],
)
def test_later_steps_launch_what_triton_has_bound(
    new: list[int], later: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for lengths, past in ((new, 3000), (later, 2900)):
        batch = draw(vary(DECODES, new=lengths, past=[past, 40, 7, 500, 90][: len(new)]))
        q, keys, values = (batch.arguments[name] for name in ("q", "k_cache", "v_cache"))
        slots = take_new_tokens(batch.arguments)
        planned = plan(**batch.arguments)
        for _ in range(2):
            out = torch.full_like(q, float("nan"))
            planned.run(q, keys, values, out=out, new=slots)
            assert relative_error(out, batch.expected) < TOLERANCE[torch.bfloat16]
        monkeypatch.setattr(launch.KernelCall, "__call__", Mock(side_effect=AssertionError))


def test_a_step_of_another_form_is_bound_anew() -> None:
    """What the compiled kernel takes for granted of pointers and strides is part of its form."""
    batch = draw(vary(DECODES, new=[90, 1], past=[0, 500], heads=(8, 2)))
    q, keys, values = (batch.arguments[name] for name in ("q", "k_cache", "v_cache"))
    for gap in (0, 2, 8, 0):  # elements between the rows of queries, and before the first
        wider = torch.zeros(*q.shape[:2], q.shape[2] + gap, dtype=q.dtype, device="cuda")
        moved = wider[..., gap:].copy_(q)
        planned = plan(**{**batch.arguments, "q": moved})
        out = planned.run(moved, keys, values, out=torch.full_like(q, float("nan")))
        assert relative_error(out, batch.expected) < TOLERANCE[torch.bfloat16]


@pytest.mark.skipif(
    not triton.__version__.startswith("3.6."), reason="others make tensor maps at each launch"
)
def test_layers_of_hopper_make_tensor_maps_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton.backends.nvidia.driver as cuda

    layers = [draw(vary(DECODES, new=[1] * 5, past=[3000, 40, 7, 500, 90])) for _ in range(3)]
    for factor, layer in enumerate(layers[1:], start=2):
        for name in ("q", "k_cache", "v_cache"):
            layer.arguments[name] = layers[0].arguments[name] / factor
        layer.expected = layer.run("reference")

    def run_layers() -> None:
        planned = plan(**layers[0].arguments)
        assert planned.implementation == "hopper"
        for layer in layers:
            q, keys, values = (layer.arguments[name] for name in ("q", "k_cache", "v_cache"))
            out = planned.run(q, keys, values, out=torch.full_like(q, float("nan")))
            assert relative_error(out, layer.expected) < TOLERANCE[torch.bfloat16]

    run_layers()
    made = Mock(wraps=cuda.make_tensordesc_arg)
    monkeypatch.setattr(cuda, "make_tensordesc_arg", made)
    run_layers()
    # A plan's first launch is Triton's own: two maps for it, and two to prepare its repetition.
    assert made.call_count <= 4


@pytest.mark.parametrize("seed", range(40))
def test_auto_takes_every_batch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = drawn_case(seed, "auto")
    for implementation, kernel in kernels().items():
        monkeypatch.setattr(kernel, "configs", runnable(implementation, case)[:1])
    check(case, "auto")


DECODES = Case(new=[1] * 8, past=[4000] * 8, heads=(32, 8), head_size=128, dtype=torch.bfloat16)
PROMPTS = vary(DECODES, new=[100] * 8, past=[3900] * 8)


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
    return vary(shape, new=new, past=past, padding=len(shape.new) - sequences, seed=seed)


@pytest.mark.parametrize("shape", [DECODES, PROMPTS], ids=["decodes", "prompts"])
@pytest.mark.parametrize("implementation", ["static_grid", "segmented", "hopper", "few_sequences"])
def test_one_captured_graph_serves_a_hundred_batches(
    implementation: str, shape: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 16 if shape is DECODES else 64
    if implementation != "few_sequences":  # it has one config
        able = [
            config
            for config in runnable(implementation, shape)
            if config.kwargs.get("BLOCK_M", rows) == rows
        ]
        monkeypatch.setattr(kernels()[implementation], "configs", able[:1])
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
    batch = draw(vary(DECODES, new=[new] * 3, past=[700] * 3, heads=heads))
    batch.arguments["seqused_k"][1] = 0
    out = batch.run("hopper")
    for rows in (slice(0, new), slice(2 * new, 3 * new)):
        assert relative_error(out[rows], batch.expected[rows]) < TOLERANCE[torch.bfloat16]
    assert out[new : 2 * new].isnan().all()


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("new", [1, 4, 100])
@pytest.mark.parametrize("heads", [(32, 8), (7, 1)])
def test_a_layer_waits_for_what_the_one_before_writes(
    new: int, heads: tuple[int, int], overlap: bool
) -> None:
    """Launches may begin before the ones before them end; results are then to be the same."""
    batch = draw(vary(DECODES, new=[new] * 8, heads=heads))
    caches = batch.arguments["k_cache"], batch.arguments["v_cache"]
    planned = plan(**batch.arguments, overlap=overlap)
    assert planned.implementation == "hopper"
    apart = [batch.arguments["q"]]
    for _ in range(8):
        apart.append(planned.run(apart[-1], *caches))
        torch.cuda.synchronize()
    at_once = [apart[0], *map(torch.empty_like, apart[1:])]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = plan(**batch.arguments, overlap=overlap)
        for q, out in pairwise(at_once):
            captured.run(q, *caches, out=out)
    for _ in range(50):
        for out in at_once[1:]:
            out.fill_(float("nan"))
        graph.replay()
        assert all(torch.equal(*both) for both in zip(apart, at_once, strict=True))


def odd(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's numbers in rows that begin at odd offsets."""
    wider = torch.empty(*tensor.shape[:-1], tensor.shape[-1] + 1, dtype=tensor.dtype, device="cuda")
    wider[..., 1:] = tensor
    return wider[..., 1:]


def test_rows_may_begin_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    case = vary(DECODES, new=[1, 50], past=[300, 0], heads=(8, 2))
    batch = draw(case)
    caches = batch.arguments["k_cache"], batch.arguments["v_cache"]
    padded = torch.cat([batch.arguments["q"], batch.arguments["q"][:2]])
    planned = plan(**{**batch.arguments, "q": padded})
    assert planned.implementation == "hopper"
    sevens = torch.full_like(padded, 7.0)
    for out in odd(sevens), sevens.clone(), odd(sevens):
        planned.run(padded, *caches, out=out)
        assert relative_error(out[:-2], batch.expected) < TOLERANCE[torch.bfloat16]
        assert (out[-2:] == 7).all()
    q = batch.arguments["q"]
    for implementation, kernel in kernels().items():
        monkeypatch.setattr(kernel, "configs", runnable(implementation, case)[:1])
    out = paged_attention(**{**batch.arguments, "q": odd(q)}, out=odd(q))
    assert relative_error(out, batch.expected) < TOLERANCE[torch.bfloat16]
    with pytest.raises(ValueError, match="rows of q and out at even offsets"):
        paged_attention(**{**batch.arguments, "q": odd(q)}, implementation="hopper")


def test_memory_between_heads_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    case = vary(DECODES, new=[1, 50], past=[300, 0], heads=(8, 2), head_size=80)
    batch = draw(case)
    for name in ("k_cache", "v_cache"):
        cache = batch.arguments[name]
        wider = torch.full((*cache.shape[:-1], 128), float("nan"), dtype=cache.dtype, device="cuda")
        wider[..., :80] = cache
        batch.arguments[name] = wider[..., :80]
    for implementation, kernel in kernels().items():
        monkeypatch.setattr(kernel, "configs", runnable(implementation, case)[:1])
    assert relative_error(batch.run("auto"), batch.expected) < TOLERANCE[torch.bfloat16]


def test_a_layer_that_is_captured_has_other_counters_than_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A graph may be replayed beside launches of the stream on which its plan was first run."""
    counted = Mock(side_effect=launch.zeros)
    monkeypatch.setattr(hopper, "zeros", counted)
    batch = draw(DECODES)
    q, k_cache, v_cache = (batch.arguments[name] for name in ("q", "k_cache", "v_cache"))
    planned = plan(**batch.arguments)
    out = torch.empty_like(batch.expected)
    for _ in range(2):
        planned.run(q, k_cache, v_cache, out=out)
    assert counted.call_count == 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(2):
            planned.run(q, k_cache, v_cache, out=out)
    assert counted.call_count == 2
    out.fill_(float("nan"))
    graph.replay()
    assert relative_error(out, batch.expected) < TOLERANCE[torch.bfloat16]


def test_a_graph_keeps_its_counters_when_many_more_are_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "_supplies", {})
    monkeypatch.setattr(
        launch, "SPARE", 3 * 4 * torch.cuda.get_device_properties(0).multi_processor_count
    )
    kernel = kernels()["static_grid"]
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
    for implementation, kernel in kernels().items():
        case = Case(new=[1, 40], past=[100, 0], heads=(8, 2), head_size=128, dtype=torch.float16)
        monkeypatch.setattr(kernel, "configs", runnable(implementation, case)[:1])
        check(case, implementation, "cuda:1")
    assert torch.cuda.current_device() == 0


def test_lengths_in_gpu_memory_are_checked_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = draw(Case(new=[1, 4], past=[100, 0], heads=(8, 2), head_size=64, dtype=torch.float16))
    batch.arguments["seqused_k"][0] = 10_000
    monkeypatch.setattr(arguments, "CHECK_VALUES", True)
    with pytest.raises(ValueError, match=r"^seqused_k: 10000 at 0; expected"):
        paged_attention(**batch.arguments)


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
    for implementation, kernel in kernels().items():
        monkeypatch.setattr(kernel, "configs", runnable(implementation, case)[:1])
        assert relative_error(batch.run(implementation), batch.expected) < TOLERANCE[case.dtype], (
            implementation
        )
