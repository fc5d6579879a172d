"""What a vLLM engine launches of attention for a model that nobody has started, on meta tensors.

These are the launches of the warm-up, by the model's `config.json` and the engine's settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict

from ...attention.kernels import hopper, kernel_call
from ...errors import SettingsError
from ...model.scenario import FrozenModel
from .planned_attention import (
    CACHE_DTYPES,
    LayerFeatures,
    LayerShape,
    ServingLimits,
    batches_to_expect,
    launch_batch,
)


class EngineSettings(FrozenModel):
    """An engine's settings, by vLLM's names, and its server's limits on a large GPU.

    `auto` and 0 are what the model's `config.json` says; `model` is that, or its folder.
    """

    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "-"))

    model: Path
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = 1
    block_size: int = 16
    max_model_len: int = 0
    max_num_seqs: int = 1024
    max_num_batched_tokens: int = 8192
    num_speculative_tokens: int = 0


def launch_all(options: Mapping[str, str]) -> None:
    """Launch attention for all batches that the warm-up of an engine expects.

    Raises:
        SettingsError: an option is wrong, or the config does not describe attention as usual.
    """
    for question in (hopper.available, kernel_call.num_sms):
        question.cache_clear()  # each dry run is for a GPU of its own
    try:
        settings = EngineSettings.model_validate(dict(options))
        path = settings.model / "config.json" if settings.model.is_dir() else settings.model
        config = json.loads(path.read_text(encoding="utf-8"))
        shape, features, limits = describe(settings, {**config, **config.get("text_config", {})})
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        raise SettingsError(
            f"the engine's options: {type(error).__name__}: {error}; without options, what was "
            "recorded of a start is taken"
        ) from None
    for layer in features:
        for batch in batches_to_expect(limits):
            launch_batch(shape, layer, batch, torch.device("meta"))


def describe(
    settings: EngineSettings, config: Mapping[str, Any]
) -> tuple[LayerShape, list[LayerFeatures], ServingLimits]:
    """Return the shape of a model's layers on one GPU, what they ask of attention, and the limits.

    Raises:
        Exception: the config lacks something, or has it in another form.
    """
    heads, ranks = config["num_attention_heads"], settings.tensor_parallel_size
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    name = settings.dtype
    if name == "auto":
        name = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    dtype = getattr(torch, name)
    shape = LayerShape(
        num_heads=heads // ranks,
        num_kv_heads=max((config.get("num_key_value_heads") or heads) // ranks, 1),
        head_size=head_size,
        page=settings.block_size,
        dtype=dtype,
        cache_dtype=CACHE_DTYPES.get(settings.kv_cache_dtype, dtype),
    )
    has_sinks = config.get("model_type") == "gpt_oss"
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    features = [
        LayerFeatures(
            scale=head_size**-0.5,
            window=(-1, -1) if size is None else (size - 1, 0),
            softcap=float(config.get("attn_logit_softcapping") or 0.0),
            sinks=torch.empty(shape.num_heads, dtype=dtype, device="meta") if has_sinks else None,
        )
        for size in dict.fromkeys((None, window))  # some models have layers of both kinds
    ]
    limits = ServingLimits(
        max_requests=min(settings.max_num_seqs, settings.max_num_batched_tokens),
        max_tokens=settings.max_num_batched_tokens,
        max_context=settings.max_model_len or config["max_position_embeddings"],
        decoded_at_once=1 + settings.num_speculative_tokens,
    )
    return shape, features, limits
