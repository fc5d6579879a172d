"""What a vLLM engine launches of attention for a model that nobody has started, on meta tensors.

These are the launches of the warm-up, by the model's `config.json` and the engine's settings.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import AliasChoices, ConfigDict, Field, TypeAdapter

from ...attention.kernels import hopper, kernel_call
from ...errors import SettingsError
from ...model.record import first_problem
from ...model.scenario import FrozenModel
from ...system.safe_files import read_file
from .planned_attention import (
    CACHE_DTYPES,
    HEAD_SIZES,
    LayerFeatures,
    LayerShape,
    ServingLimits,
    batches_to_expect,
    launch_batch,
)

Count = Annotated[int, Field(ge=0, lt=1 << 31)]
Size = Annotated[Count, Field(gt=0)]


class EngineSettings(FrozenModel):
    """An engine's settings, by vLLM's names, and its server's limits on a large GPU.

    `auto` and 0 are what the model's `config.json` says; `model` is that, or its folder.
    """

    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "-"))

    model: Path
    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] = "auto"
    kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3", "fp8_e5m2"] = "auto"
    tensor_parallel_size: Size = 1
    block_size: Annotated[Size, Field(multiple_of=16)] = 16
    max_model_len: Count = 0
    max_num_seqs: Size = 1024
    max_num_batched_tokens: Size = 8192
    num_speculative_tokens: Count = 0


class ModelConfig(FrozenModel):
    """What a model's `config.json` says of usual attention."""

    model_config = ConfigDict(extra="ignore")

    num_attention_heads: Size
    hidden_size: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    max_position_embeddings: Size | None = None
    dtype: Literal["float16", "bfloat16", "float32"] | None = Field(
        None, validation_alias=AliasChoices("dtype", "torch_dtype")
    )
    model_type: str = ""
    sliding_window: Size | None = None
    use_sliding_window: bool | None = True
    attn_logit_softcapping: float | None = None
    quantization_config: dict[str, Any] | None = None


UNUSUAL = (
    "kv_lora_rank", "multi_query", "block_configs", "alibi", "global_head_dim",
    "attention_chunk", "mamba_", "linear_", "conv_L_cache", "attn_type_list",
)  # fmt: skip
"""Beginnings of the names by which a config asks for attention that it does not describe.

These are latent attention, families that say their KV heads or positions in another way, heads of
several sizes, chunks that see themselves alone, and states by which vLLM sizes the cache's blocks.
"""


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
        mapping = TypeAdapter(dict[str, Any])
        config = mapping.validate_json(read_file(path.resolve()))
        config |= mapping.validate_python(config.get("text_config") or {})
        shape, features, limits = describe(settings, config)
        for layer in features:
            for batch in batches_to_expect(limits):
                launch_batch(shape, layer, batch, torch.device("meta"))
    except (OSError, RuntimeError, ValueError) as error:
        raise SettingsError(
            f"the engine's options: {first_problem(error)} (model={options.get('model')}); without "
            "options, what was recorded of a start is taken"
        ) from None


def describe(
    settings: EngineSettings, config: Mapping[str, Any]
) -> tuple[LayerShape, list[LayerFeatures], ServingLimits]:
    """Return the shape of a model's layers on one GPU, what they ask of attention, and the limits.

    Raises:
        ValueError: the config lacks something or has it in another form, or settings do not fit it.
    """
    model = ModelConfig.model_validate(config)
    heads, ranks = model.num_attention_heads, settings.tensor_parallel_size
    kv_heads = model.num_key_value_heads or heads
    length = settings.max_model_len or model.max_position_embeddings
    head_size = model.head_dim or model.hidden_size // heads
    quantized = model.quantization_config or {}
    problems = {
        f"the model has {name}": config[name] for name in config if name.startswith(UNUSUAL)
    } | {
        f"tensor-parallel-size {ranks} does not divide {heads} heads": heads % ranks,
        f"tensor-parallel-size {ranks} neither divides {kv_heads} KV heads nor is a multiple": (
            max(kv_heads, ranks) % min(kv_heads, ranks)
        ),
        f"heads of {head_size} elements; attention takes multiples of 8 up to 256": (
            head_size not in HEAD_SIZES
        ),
        "config.json has no head_dim": model.model_type.startswith("gemma") and not model.head_dim,
        "text_config has no KV heads": config.get("text_config") and not model.num_key_value_heads,
        "max-model-len is neither given nor in config.json": not length,
        "the model says how its cache is quantized: give kv-cache-dtype": (
            settings.kv_cache_dtype == "auto"
            and (quantized.get("kv_cache_scheme") or quantized.get("kv_cache_quant_algo"))
        ),
    }
    for problem, is_there in problems.items():
        if is_there:
            raise ValueError(problem)
    # vLLM runs models of float32 in bfloat16 unless it is told otherwise.
    stored = "float16" if model.dtype == "float16" else "bfloat16"
    dtype = getattr(torch, stored if settings.dtype == "auto" else settings.dtype)
    shape = LayerShape(
        num_heads=heads // ranks,
        num_kv_heads=max(kv_heads // ranks, 1),
        head_size=head_size,
        page=settings.block_size,
        dtype=dtype,
        cache_dtype=CACHE_DTYPES.get(settings.kv_cache_dtype, dtype),
    )
    has_sinks = model.model_type == "gpt_oss"
    window = model.sliding_window if model.use_sliding_window else None
    features = [
        LayerFeatures(
            scale=head_size**-0.5,
            window=(-1, -1) if size is None else (size - 1, 0),
            softcap=model.attn_logit_softcapping or 0.0,
            sinks=torch.empty(shape.num_heads, dtype=dtype, device="meta") if has_sinks else None,
        )
        for size in dict.fromkeys((None, window))  # some models have layers of both kinds
    ]
    limits = ServingLimits(
        max_requests=min(settings.max_num_seqs, settings.max_num_batched_tokens),
        max_tokens=settings.max_num_batched_tokens,
        max_context=length or 0,
        decoded_at_once=1 + settings.num_speculative_tokens,
    )
    return shape, features, limits
