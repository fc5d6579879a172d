"""A plan computes what `paged_attention` does, layer by layer, and refuses other layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.attention_batches import REFUSED_MASK, Case, draw, relative_error, vary

from dejavu_cache.attention import api, plan
from dejavu_cache.attention.batch import LayerTensors

pytestmark = pytest.mark.filterwarnings(  # Triton's interpreter, where a grid is computed
    "ignore:Conversion of an array with ndim > 0:DeprecationWarning"
)

SMALL = Case(new=[1, 5, 1], past=[40, 0, 17], heads=(4, 2), dtype=torch.float16)
LENGTHS = ("q", "k_cache", "v_cache")


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


def plan_of(arguments: dict[str, Any]) -> Any:
    tensors = [arguments[name] for name in LENGTHS]
    return plan(*tensors, **{k: v for k, v in arguments.items() if k not in LENGTHS})


@REFUSED_MASK
def test_each_layer_gets_its_own_result() -> None:
    layers = [draw(SMALL), draw(vary(SMALL, seed=0))]
    for name in LENGTHS:
        layers[1].arguments[name] = layers[0].arguments[name] * 0.5
    layers[1].expected = layers[1].run("reference")
    step = plan_of(layers[0].arguments)
    for layer in layers:
        tensors = [layer.arguments[name] for name in LENGTHS]
        out = torch.full_like(tensors[0], float("nan"))
        assert step.run(*tensors, out=out) is out
        assert relative_error(out, layer.expected) < 1e-3
        assert relative_error(step.run(*tensors), layer.expected) < 1e-3


def test_layers_of_another_queue_are_prepared_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that is captured later takes no counters of the stream before it."""
    queues = [(1, False), (1, False), (1, False), (1, True), (1, True), (2, True)]
    layers = CountedLayers()
    monkeypatch.setattr(api, "layers_of", lambda *arguments: layers)
    monkeypatch.setattr(api, "queue", lambda: queues[layers.layer])
    batch = draw(SMALL)
    step = plan_of(batch.arguments)
    for layers.layer in range(len(queues)):
        step.run(*(batch.arguments[name] for name in LENGTHS))
    assert (layers.prepared, layers.repeated) == ([0, 3, 5], [1, 2, 4])


@REFUSED_MASK
def test_each_layer_has_scales_of_its_own() -> None:
    batch = draw(vary(SMALL, cache_dtype=torch.float8_e4m3fn))
    tensors = [batch.arguments[name] for name in LENGTHS]
    step = plan_of(batch.arguments)
    for factors in (None, (0.3, 2.5), (1.9, 0.5)):
        if factors is not None:
            batch.arguments.update(k_scale=factors[0], v_scale=factors[1])
            batch.expected = batch.run("reference")
        scales = factors and tuple(torch.tensor([factor]) for factor in factors)
        assert relative_error(step.run(*tensors, scales=scales), batch.expected) < 1e-3


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
    arguments = draw(vary(SMALL, cache_dtype=cache_dtype)).arguments
    step = plan_of(arguments)
    with pytest.raises(ValueError, match=message):
        step.run(*(arguments[name] for name in LENGTHS), scales=scales)


@pytest.mark.parametrize("name", LENGTHS)
def test_a_layer_of_another_form_is_refused(name: str) -> None:
    arguments = draw(SMALL).arguments
    step = plan_of(arguments)
    tensors = {other: arguments[other] for other in LENGTHS}
    tensors[name] = torch.cat([tensors[name], tensors[name]])
    with pytest.raises(ValueError, match=rf"^{name}: .*; planned was "):
        step.run(*tensors.values())


def test_bad_arguments_are_named_by_the_plan() -> None:
    arguments = draw(SMALL).arguments
    with pytest.raises(ValueError, match=r"^max_seqlen_q: 0; expected"):
        plan_of({**arguments, "max_seqlen_q": 0})
