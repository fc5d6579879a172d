"""A plan may write the new tokens' keys and values into the cache, beside computing attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.attention_batches import (
    FEW_SEQUENCES,
    REFUSED_MASK,
    Case,
    Drawn,
    draw,
    relative_error,
    take_new_tokens,
    vary,
)

from dejavu_cache.attention import NewTokens, Plan, api, plan
from dejavu_cache.attention.kernels.few_sequences import FewSequencesLayers

pytestmark = pytest.mark.filterwarnings(  # Triton's interpreter, where a grid is computed
    "ignore:Conversion of an array with ndim > 0:DeprecationWarning"
)

SMALL = Case(new=[2, 3], past=[0, 70], heads=(4, 2), dtype=torch.float16)
LAYER = ("q", "k_cache", "v_cache")


def planned(arguments: dict[str, Any]) -> Plan:
    layer = [arguments[name] for name in LAYER]
    return plan(*layer, **{k: v for k, v in arguments.items() if k not in LAYER})


def check_written(batch: Drawn, new: NewTokens) -> None:
    """Check a layer's results, and the cache, in which each token lies at its slot."""
    q, k_cache, v_cache = (batch.arguments[name] for name in LAYER)
    step = planned(batch.arguments)
    assert step.writes(new)
    out = step.run(q, k_cache, v_cache, new=new)
    assert relative_error(out, batch.expected) < 1e-3
    for cache, rows in zip((k_cache, v_cache), new, strict=False):
        assert torch.equal(cache.flatten(0, 1)[new.slots], rows)


@pytest.fixture
def for_few_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose, on the CPU too, what a Hopper GPU chooses for one or two sequences."""
    monkeypatch.setattr(api, "choose", lambda batch: "few_sequences")


@REFUSED_MASK
@pytest.mark.usefixtures("for_few_sequences")
@pytest.mark.parametrize("window", [-1, 0, 40])
@pytest.mark.parametrize("name", [name for name in FEW_SEQUENCES if name != "long"])
def test_new_tokens_are_computed_and_written(name: str, window: int) -> None:
    new, past = FEW_SEQUENCES[name]
    batch = draw(vary(SMALL, new=new, past=past, window=window, sinks=True, alibi=True))
    q, k_cache, v_cache = (batch.arguments[name] for name in LAYER)
    expected = k_cache.clone(), v_cache.clone()
    tokens = take_new_tokens(batch.arguments)
    step = planned(batch.arguments)
    assert step.writes(tokens)
    for _ in range(2):  # the second layer repeats the first one's launches
        out = step.run(q, k_cache, v_cache, new=tokens)
        assert relative_error(out, batch.expected) < 1e-3
        for cache, whole in zip((k_cache, v_cache), expected, strict=True):
            assert torch.equal(cache, whole) or torch.equal(cache.nan_to_num(), whole.nan_to_num())
    assert relative_error(step.run(q, k_cache, v_cache), batch.expected) < 1e-3


@REFUSED_MASK
@pytest.mark.usefixtures("for_few_sequences")
def test_a_token_without_a_slot_is_not_written() -> None:
    batch = draw(SMALL)
    q, k_cache, v_cache = (batch.arguments[name] for name in LAYER)
    tokens = take_new_tokens(batch.arguments)
    slot = int(tokens.slots[1])
    tokens.slots[1] = -1
    out = planned(batch.arguments).run(q, k_cache, v_cache, new=tokens)
    assert relative_error(out, batch.expected) < 1e-3
    for cache in (k_cache, v_cache):
        rows = cache.flatten(0, 1)
        assert rows[slot].isnan().all()
        assert not rows[tokens.slots[tokens.slots >= 0]].isnan().any()


@REFUSED_MASK
@pytest.mark.usefixtures("for_few_sequences")
def test_keys_and_values_of_single_tokens_may_have_strides_of_their_own() -> None:
    """As a compiler leaves them: keys that were rotated lie by themselves."""
    batch = draw(vary(SMALL, new=[1, 1]))
    tokens = take_new_tokens(batch.arguments)
    tokens = tokens._replace(keys=tokens.keys.contiguous())
    assert tokens.keys.stride() != tokens.values.stride()
    check_written(batch, tokens)


@REFUSED_MASK
@pytest.mark.usefixtures("for_few_sequences")
def test_tokens_that_are_not_computed_as_a_page_are_written_before() -> None:
    """Several tokens of a sequence, whose keys are not as far apart as their values."""
    batch = draw(SMALL)
    tokens = take_new_tokens(batch.arguments)
    tokens = tokens._replace(keys=tokens.keys.contiguous())
    assert not FewSequencesLayers().writes(planned(batch.arguments).batch, tokens)
    check_written(batch, tokens)


@pytest.mark.parametrize(("head_size", "page"), [(64, 7), (96, 16)])
def test_every_kernel_finds_the_new_tokens_written(head_size: int, page: int) -> None:
    batch = draw(
        Case(
            new=[1, 40, 3],
            past=[30, 0, 9],
            heads=(4, 2),
            head_size=head_size,
            page=page,
            dtype=torch.float16,
        )
    )
    assert planned(batch.arguments).implementation != "few_sequences"
    check_written(batch, take_new_tokens(batch.arguments))


def with_columns_apart(new: NewTokens) -> NewTokens:
    return new._replace(values=new.values.repeat_interleave(2, 2)[..., ::2])


WRONG: dict[str, Callable[[NewTokens], NewTokens]] = {
    r"^new\.keys: float16\[4, 2, 64\]": lambda new: new._replace(keys=new.keys[1:]),
    r"^new\.values: float32": lambda new: new._replace(values=new.values.float()),
    r"^new\.values: .* last dimension contiguous": with_columns_apart,
    r"^new\.slots: .*; expected int64\[5\]": lambda new: new._replace(slots=new.slots[1:]),
    r"^new\.slots: int32\[5\]": lambda new: new._replace(slots=new.slots.int()),
}


@pytest.mark.usefixtures("for_few_sequences")
@pytest.mark.parametrize("message", WRONG)
def test_new_tokens_that_do_not_fit_are_refused_by_name(message: str) -> None:
    batch = draw(SMALL)
    tokens = WRONG[message](take_new_tokens(batch.arguments))
    q, k_cache, v_cache = (batch.arguments[name] for name in LAYER)
    with pytest.raises(ValueError, match=message):
        planned(batch.arguments).run(q, k_cache, v_cache, new=tokens)


@pytest.mark.usefixtures("for_few_sequences")
def test_a_quantized_cache_is_not_written() -> None:
    tokens = take_new_tokens(draw(SMALL).arguments)
    batch = draw(vary(SMALL, cache_dtype=torch.float8_e4m3fn))
    step = planned(batch.arguments)
    assert not step.writes(tokens)
    q, k_cache, v_cache = (batch.arguments[name] for name in LAYER)
    with pytest.raises(ValueError, match=r"^new: .* a cache of torch.float8_e4m3fn; write them"):
        step.run(q, k_cache, v_cache, new=tokens)
