"""A plan computes what `paged_attention` does, layer by layer, and may write new tokens beside."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.attention_batches import (
    FEW_SEQUENCES,
    REFUSED_MASK,
    Case,
    Drawn,
    draw,
    draw_layers,
    relative_error,
    take_new_tokens,
)

from dejavu_cache.attention import NewTokens, api, plan
from dejavu_cache.attention.batch import LayerTensors
from dejavu_cache.attention.kernels.few_sequences import FewSequencesLayers
from dejavu_cache.attention.sweep_suite import KERNELS

pytestmark = pytest.mark.filterwarnings(  # Triton's interpreter, where a grid is computed
    "ignore:Conversion of an array with ndim > 0:DeprecationWarning"
)


@pytest.fixture(autouse=True)
def nothing_to_tune(monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in KERNELS.values():
        monkeypatch.setattr(kernel, "configs", kernel.configs[:1])


SMALL = Case(new=[1, 5, 1], past=[40, 0, 17], heads=(4, 2), dtype=torch.float16)
LAYER = ("q", "k_cache", "v_cache")


class CountedLayers:
    """Layers that compute nothing, and note which ones were prepared and which repeated."""

    def __init__(self) -> None:
        self.layer = 0
        self.prepared: list[int] = []
        self.repeated: list[int] = []

    def launch(self, batch: Any, new: Any = None) -> Any:
        self.prepared.append(self.layer)
        return self.repeat

    def repeat(self, layer: LayerTensors) -> bool:
        self.repeated.append(self.layer)
        return True


@REFUSED_MASK
def test_each_layer_gets_its_own_result() -> None:
    layers = draw_layers(SMALL, 0.5)
    step = plan(**layers[0].arguments)
    for layer in layers:
        assert layer.error_of_layer(step) < 1e-3
        assert relative_error(step.run(*layer.tensors), layer.expected) < 1e-3


def test_layers_of_another_queue_are_prepared_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that is captured later takes no counters of the stream before it."""
    queues = [(1, False), (1, False), (1, False), (1, True), (1, True), (2, True)]
    layers = CountedLayers()
    monkeypatch.setattr(api, "queue", lambda: queues[layers.layer])
    batch = draw(SMALL)
    step = plan(**batch.arguments)
    step._layers = layers  # type: ignore[assignment]
    for layers.layer in range(len(queues)):
        step.run(*batch.tensors)
    assert (layers.prepared, layers.repeated) == ([0, 3, 5], [1, 2, 4])


@REFUSED_MASK
def test_each_layer_has_scales_of_its_own() -> None:
    batch = draw(replace(SMALL, cache_dtype=torch.float8_e4m3fn))
    step = plan(**batch.arguments)
    for factors in (None, (0.3, 2.5), (1.9, 0.5)):
        if factors is not None:
            batch.arguments.update(k_scale=factors[0], v_scale=factors[1])
            batch.expected = batch.run("reference")
        scales = factors and tuple(torch.tensor([factor]) for factor in factors)
        assert batch.error_of_layer(step, scales=scales) < 1e-3


@pytest.mark.parametrize(
    ("cache_dtype", "scales", "message"),
    [
        (None, (torch.ones(1), torch.ones(1)), "without k_scale"),
        (torch.float8_e5m2, (torch.ones(1), torch.ones(2)), "^v_scale: "),
        (torch.float8_e5m2, (torch.ones(1), None), "^scales: .* two tensors"),
        (torch.float8_e5m2, (2.0, 3.0), "^scales: .* two tensors"),
        (torch.float8_e5m2, [torch.ones(1)] * 3, "^scales: .* two tensors"),
    ],
)
def test_scales_that_are_no_scales_are_refused(
    cache_dtype: torch.dtype | None, scales: Any, message: str
) -> None:
    batch = draw(replace(SMALL, cache_dtype=cache_dtype))
    step = plan(**batch.arguments)
    with pytest.raises(ValueError, match=message):
        step.run(*batch.tensors, scales=scales)


@pytest.mark.parametrize("name", LAYER)
def test_a_layer_of_another_form_is_refused(name: str) -> None:
    arguments = draw(SMALL).arguments
    step = plan(**arguments)
    tensors = {other: arguments[other] for other in LAYER}
    tensors[name] = torch.cat([tensors[name], tensors[name]])
    with pytest.raises(ValueError, match=rf"^{name}: .*; planned was "):
        step.run(*tensors.values())


def test_bad_arguments_are_named_by_the_plan() -> None:
    arguments = draw(SMALL).arguments
    with pytest.raises(ValueError, match=r"^max_seqlen_q: 0; expected"):
        plan(**{**arguments, "max_seqlen_q": 0})


DRAFTED = Case(new=[2, 3], past=[0, 70], heads=(4, 2), dtype=torch.float16)


def check_written(batch: Drawn, new: NewTokens) -> None:
    """Check a layer's results, and the cache, in which each token lies at its slot."""
    step = plan(**batch.arguments)
    assert step.writes(new)
    assert batch.error_of_layer(step, new=new) < 1e-3
    for cache, rows in zip(batch.tensors[1:], new, strict=False):
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
    past = [min(length, 300) for length in past]  # the interpreter takes seconds for thousands
    batch = draw(replace(DRAFTED, new=new, past=past, window=window, sinks=True, alibi=True))
    expected = [cache.clone() for cache in batch.tensors[1:]]
    tokens = take_new_tokens(batch.arguments)
    step = plan(**batch.arguments)
    assert step.writes(tokens)
    for _ in range(2):  # the second layer repeats the first one's launches
        assert batch.error_of_layer(step, new=tokens) < 1e-3
        for cache, whole in zip(batch.tensors[1:], expected, strict=True):
            assert torch.equal(cache, whole) or torch.equal(cache.nan_to_num(), whole.nan_to_num())
    assert batch.error_of_layer(step) < 1e-3


@REFUSED_MASK
@pytest.mark.usefixtures("for_few_sequences")
def test_a_token_without_a_slot_is_not_written() -> None:
    batch = draw(DRAFTED)
    tokens = take_new_tokens(batch.arguments)
    slot = int(tokens.slots[1])
    tokens.slots[1] = -1
    assert batch.error_of_layer(plan(**batch.arguments), new=tokens) < 1e-3
    for cache in batch.tensors[1:]:
        rows = cache.flatten(0, 1)
        assert rows[slot].isnan().all()
        assert not rows[tokens.slots[tokens.slots >= 0]].isnan().any()


@REFUSED_MASK
@pytest.mark.usefixtures("for_few_sequences")
@pytest.mark.parametrize(("new", "as_pages"), [([1, 1], True), ([2, 3], False)])
def test_keys_and_values_may_have_strides_of_their_own(new: list[int], as_pages: bool) -> None:
    """As a compiler leaves them: keys that were rotated lie by themselves.

    Several tokens of a sequence are then no page to compute, and are written before.
    """
    batch = draw(replace(DRAFTED, new=new))
    tokens = take_new_tokens(batch.arguments)
    tokens = tokens._replace(keys=tokens.keys.contiguous())
    assert tokens.keys.stride() != tokens.values.stride()
    step = plan(**batch.arguments)
    assert FewSequencesLayers().writes(step.batch, tokens) == as_pages
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
    assert plan(**batch.arguments).implementation != "few_sequences"
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
    batch = draw(DRAFTED)
    tokens = WRONG[message](take_new_tokens(batch.arguments))
    with pytest.raises(ValueError, match=message):
        plan(**batch.arguments).run(*batch.tensors, new=tokens)


@pytest.mark.usefixtures("for_few_sequences")
def test_a_quantized_cache_is_not_written() -> None:
    tokens = take_new_tokens(draw(DRAFTED).arguments)
    batch = draw(replace(DRAFTED, cache_dtype=torch.float8_e4m3fn))
    step = plan(**batch.arguments)
    assert not step.writes(tokens)
    with pytest.raises(ValueError, match=r"^new: .* a cache of torch.float8_e4m3fn; write them"):
        step.run(*batch.tensors, new=tokens)
