"""Attention of vLLM's layers: its caches' shapes, its padding, graphs, and what is refused.

The last tests need vLLM's own modules, on any machine: 0.22 to 0.33.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.attention_batches import REFUSED_MASK, Case, draw

from dejavu_cache.attention.batch import Batch
from dejavu_cache.attention.kernels import few_sequences
from dejavu_cache.attention.kernels.hopper import has_no_gaps
from dejavu_cache.attention.schedule import constants_of, halves_of, pairs_of
from dejavu_cache.engines.vllm.planned_attention import (
    ExpectedBatch,
    LayerFeatures,
    LayerShape,
    ServingLimits,
    StepInputs,
    batches_to_expect,
    launch_batch,
    made_up_step,
    split_cache,
)

pytestmark = [
    pytest.mark.usefixtures("one_config"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests the host's part, interpreted"),
]

MIXED = Case(new=[1, 5], past=[40, 9], heads=(4, 2), head_size=32, padding=2)


def engine_cache(arguments: dict[str, Any], layout: str) -> torch.Tensor:
    """Return a batch's cache as an engine holds it, in one of vLLM's layouts."""
    keys, values = arguments["k_cache"], arguments["v_cache"]
    if layout == "blocks first":
        return torch.stack([keys, values], 1)
    packed = torch.cat([keys, values], -1).transpose(1, 2)  # [blocks, heads, page, 2 * size]
    if layout == "packed, heads first":
        return packed.contiguous()
    return packed.transpose(1, 2).contiguous().transpose(1, 2)


def step_of(arguments: dict[str, Any], tokens: int) -> StepInputs:
    names = "max_seqlen_q", "max_seqlen_k", "cu_seqlens_q", "seqused_k", "block_table"
    return StepInputs(tokens, *(arguments[name] for name in names))


def features_of(arguments: dict[str, Any]) -> LayerFeatures:
    return LayerFeatures(
        scale=arguments["q"].shape[2] ** -0.5,
        window=arguments["window_size"],
        softcap=arguments["softcap"],
        alibi_slopes=arguments["alibi_slopes"],
        sinks=arguments["sinks"],
        k_scale=torch.tensor(arguments["k_scale"]) if arguments["k_scale"] else None,
        v_scale=torch.tensor(arguments["v_scale"]) if arguments["v_scale"] else None,
    )


@REFUSED_MASK
@pytest.mark.parametrize("layout", ["blocks first", "packed, heads first", "packed"])
@pytest.mark.parametrize(
    "case",
    [
        MIXED,
        replace(MIXED, window=13, softcap=5.0, alibi=True, sinks=True),
        replace(MIXED, dtype=torch.float16, cache_dtype=torch.float8_e4m3fn),
        replace(MIXED, new=[3, 3], past=[40, 9]),  # two drafted tokens to verify each
    ],
    ids=["mixed", "features", "float8", "speculative"],
)
def test_layers_are_right_over_every_layout_of_the_cache(case: Case, layout: str) -> None:
    batch = draw(case, "cpu")
    arguments = batch.arguments
    cache = engine_cache(arguments, layout)
    declared = cache.view(torch.uint8) if case.cache_dtype else cache
    keys, values = split_cache(declared, case.head_size, case.cache_dtype)
    tokens = len(arguments["q"])
    out = torch.full((tokens + 3, *arguments["q"].shape[1:]), float("nan"), dtype=case.dtype)
    step = step_of(arguments, tokens)
    plan = step.plan(features_of(arguments), arguments["q"], keys, values)
    assert not plan.overlap, "in an engine, other kernels come between"
    plan.run(arguments["q"], keys, values, out[:tokens])
    assert torch.allclose(out[:tokens], batch.expected, rtol=2e-3, atol=2e-3)
    assert out[tokens:].isnan().all()


@REFUSED_MASK
def test_layers_with_both_scales_of_their_own_share_a_plan() -> None:
    batch = draw(replace(MIXED, dtype=torch.float16, cache_dtype=torch.float8_e4m3fn), "cpu")
    arguments = batch.arguments
    q, caches = arguments["q"], (arguments["k_cache"], arguments["v_cache"])
    step = step_of(arguments, len(q))
    layers = []  # tensors count by identity, and must live
    for k_scale, v_scale, plans in ((0.7, 1.3, 1), (0.2, 3.0, 1), (0.3, None, 2), (1.9, None, 3)):
        arguments.update(k_scale=k_scale, v_scale=v_scale)
        layers.append(features_of(arguments))
        out = torch.full_like(q, float("nan"))
        step.plan(layers[-1], q, *caches).run(q, *caches, out, None, layers[-1].scales)
        assert torch.allclose(out, batch.run("reference"), rtol=4e-3, atol=4e-3)
        assert len(step.plans) == plans


def test_bounds_of_a_warm_up_are_brought_into_what_is_possible() -> None:
    batch = draw(MIXED, "cpu")
    arguments = batch.arguments
    step = step_of({**arguments, "max_seqlen_q": 8192, "max_seqlen_k": 1}, 6)
    lengths = step.lengths(MIXED.page)
    assert (lengths["max_seqlen_q"], lengths["max_seqlen_k"]) == (6, 6)
    step.max_seq_len = 1 << 20
    assert step.lengths(16)["max_seqlen_k"] == arguments["block_table"].shape[1] * 16


def test_expected_batches_stay_within_the_engine_s_limits() -> None:
    for limits in (
        ServingLimits(64, 8192, 16384),
        ServingLimits(256, 2048, 131072, decoded_at_once=4),
        ServingLimits(1, 16, 100),
    ):
        expected = batches_to_expect(limits)
        assert len(expected) == len(set(expected)) < 400
        for batch in expected:
            assert len(batch.new) <= limits.max_requests
            assert max(batch.new) <= batch.context <= limits.max_context
            assert sum(batch.new) <= limits.max_tokens
        decoded = {len(batch.new) for batch in expected if set(batch.new) == {1}}
        assert limits.decoded_at_once > 1 or limits.max_requests in decoded


def compiled_kernels(
    new: Sequence[int], context: int, heads: tuple[int, int], head_size: int
) -> tuple[Any, ...]:
    """Return what a batch's schedule and its Hopper kernel are compiled for; () without these."""
    tokens, lengths = sum(new), torch.empty(len(new), device="meta")
    cache = torch.empty(1, 16, heads[1], head_size, device="meta")
    q = torch.empty(tokens, heads[0], head_size, device="meta")
    nothing = dict.fromkeys(("alibi_slopes", "sinks", "k_scale", "v_scale"))
    batch = Batch(
        q=q, k_cache=cache, v_cache=cache, out=q, cu_seqlens_q=lengths, seqused_k=lengths,
        block_table=lengths, max_seqlen_q=max(new), max_seqlen_k=context, softmax_scale=1.0,
        window=-1, softcap=0.0, **nothing,
    )  # fmt: skip
    if few_sequences.suits(batch):
        return ()
    halves = halves_of(batch, overlap=False)
    return pairs_of(batch), halves, *constants_of(batch, halves).values()


def draw_step(limits: ServingLimits, draw: random.Random) -> tuple[list[int], int]:
    """Draw new tokens of requests and the longest context that an engine may schedule."""
    count = min(round(2 ** draw.uniform(0, 11)), limits.max_requests)
    decoded = draw.choice([1, min(limits.decoded_at_once, limits.max_context)])
    new = [decoded] * min(count, limits.max_tokens // decoded)
    for index in range(draw.choice([0, 1, 1, 2, len(new)])):
        room = min(limits.max_tokens - sum(new), limits.max_context - new[index % len(new)])
        new[index % len(new)] += min(round(2 ** draw.uniform(0, 14)), room)
    longest, most = max(new), limits.max_context
    return new, draw.choice([longest, most, draw.randint(longest, most)])


@given(
    limits=st.builds(
        ServingLimits,
        max_requests=st.integers(1, 1500),
        max_tokens=st.one_of(st.integers(64, 9000), st.sampled_from([512, 2048, 8192, 16384])),
        max_context=st.one_of(st.integers(64, 9000), st.sampled_from([16384, 131072])),
        decoded_at_once=st.integers(1, 9),
    ),
    heads=st.sampled_from([(32, 8), (64, 8), (28, 4), (16, 16), (8, 1), (64, 1)]),
    head_size=st.sampled_from([64, 80, 96, 128, 192, 256]),
    seed=st.integers(0, 1 << 30),
)
def test_no_kernel_is_new_to_an_engine_that_has_warmed_up(
    limits: ServingLimits, heads: tuple[int, int], head_size: int, seed: int
) -> None:
    limits = replace(limits, max_requests=min(limits.max_requests, limits.max_tokens))
    pick = random.Random(seed)
    with patch.object(few_sequences, "num_sms", lambda device: 132):
        kinds = {(batch.new, batch.context) for batch in batches_to_expect(limits)}
        compiled = {compiled_kernels(*kind, heads, head_size) for kind in kinds}
        for _ in range(100):
            new, context = draw_step(limits, pick)
            needed = compiled_kernels(new, context, heads, head_size)
            assert needed[:1] in {kernels[:1] for kernels in compiled}, (new, context)
            assert needed[1:] in {kernels[1:] for kernels in compiled}, (new, context)


@pytest.mark.parametrize(
    ("layout", "order"),
    [("blocks first", ()), ("packed, heads first", (0, 1, 2, 3)), ("packed", (0, 2, 1, 3))],
)
def test_a_made_up_cache_lies_as_the_engine_s(layout: str, order: tuple[int, ...]) -> None:
    case = replace(MIXED, head_size=80)
    cache = engine_cache(draw(case, "cpu").arguments, layout)
    keys, values = split_cache(cache, case.head_size)
    dtypes = torch.float32, torch.float32
    shape = LayerShape(*case.heads, case.head_size, case.page, *dtypes, cache_order=order)
    features, batch = LayerFeatures(0.1, (-1, -1), 0.0), ExpectedBatch((1,), 40)
    *_, made_keys, made_values = made_up_step(shape, features, batch, torch.device("cpu"))
    assert made_keys.shape[1:] == keys.shape[1:]
    assert made_keys.stride() == keys.stride()
    assert made_values.data_ptr() - made_keys.data_ptr() == values.data_ptr() - keys.data_ptr()
    # A gap between a token's heads is what the Hopper kernel must not have.
    assert has_no_gaps(made_keys, 128) == has_no_gaps(keys, 128) == (layout != "packed")


@REFUSED_MASK
def test_an_expected_batch_is_launched_with_the_layer_s_features() -> None:
    shape = LayerShape(4, 2, 32, 16, torch.float16, torch.float8_e4m3fn)
    features = LayerFeatures(0.2, (15, 0), 5.0, sinks=torch.zeros(4))
    out = launch_batch(shape, features, ExpectedBatch((1, 1, 6), 40), torch.device("cpu"))
    assert out.shape == (8, 4, 32)
    assert not out.any()
