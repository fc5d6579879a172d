"""vLLM's attention backend `CUSTOM`: `dejavu_cache.attention` over vLLM's paged cache.

It serves decoders on vLLM 0.22 to 0.33. Their interfaces differ in how a cache is shaped: up to
0.28 the backend says so (`get_kv_cache_shape`), afterwards keys and values lie side by side.

The metadata of a step is made once, and plans attention for all of the step's layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from vllm._custom_ops import reshape_and_cache_flash
from vllm.config import get_current_vllm_config
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)

from ...attention import NewTokens
from ...runtime.service_phase import without_benchmarks
from .planned_attention import (
    CACHE_DTYPES,
    HEAD_SIZES,
    LayerFeatures,
    LayerShape,
    ServingLimits,
    StepInputs,
    begin_warm_up,
    split_cache,
)
from .plugin import warm_up_when_loaded


def refuse(features: Mapping[str, bool]) -> None:
    """Raise a NotImplementedError that names the first feature that is wanted, if one is."""
    for feature, is_wanted in features.items():
        if is_wanted:
            raise NotImplementedError(
                f"dejavu-cache's attention does not do {feature}: choose another backend"
            )


class DejavuMetadataBuilder(AttentionMetadataBuilder[StepInputs]):  # type: ignore[misc]
    """Makes a step's inputs from what vLLM knows of it.

    Every kernel finds its sequences on the device, so that a captured graph serves any batch that
    has no more tokens and requests than the captured one.
    """

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.ALWAYS

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any
    ) -> None:
        """Take vLLM's arguments, and warm the layers up before the cache takes the memory.

        Raises:
            NotImplementedError: the layers' cache is of a kind that the kernels do not read; the
                message names it.
        """
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        keys = getattr(kv_cache_spec, "head_size", None)
        values = getattr(kv_cache_spec, "head_size_v", keys)
        refuse(
            {
                f"keys of {keys} beside values of {values} elements": values != keys,
                "tokens that every request sees": bool(getattr(kv_cache_spec, "sink_len", None)),
                "attention that is not causal": getattr(kv_cache_spec, "non_causal", False),
            }
        )
        # Groups of layers may have blocks of other sizes than the engine's.
        layers = vllm_config.compilation_config.static_forward_context
        for name in layer_names:
            if name in layers:
                layers[name].impl.warm_up(kv_cache_spec.block_size)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> StepInputs:
        """Return a step's inputs; neither a common prefix nor a fast build makes a difference.

        Raises:
            NotImplementedError: the step is not causal.
        """
        common = common_attn_metadata
        refuse(
            {
                "attention that is not causal": getattr(common, "causal", True) is not True,
                "bidirectional ranges of a prefix": bool(
                    getattr(common, "mm_req_doc_ranges", None)
                ),
                "a reference sliding window": getattr(common, "rswa_prefix_lens", None) is not None,
            }
        )
        return StepInputs(
            num_tokens=common.num_actual_tokens,
            max_query_len=int(common.max_query_len),  # NumPy's, for chunked local attention
            max_seq_len=int(common.max_seq_len),
            query_start_loc=common.query_start_loc,
            seq_lens=common.seq_lens,
            block_table=common.block_table_tensor,
            slots=common.slot_mapping[: common.num_actual_tokens],
        )

    def build_for_cudagraph_capture(
        self, common_attn_metadata: CommonAttentionMetadata
    ) -> StepInputs:
        """Return the inputs of a step that is captured; its requests become short ones.

        The launches do not depend on the lengths in the device's memory, and short ones are quick.
        """
        step = self.build(0, common_attn_metadata)
        step.is_for_capture = True
        step.seq_lens.fill_(min(step.max_query_len, max(step.max_seq_len, 1)))
        graphs = self.vllm_config.compilation_config.cudagraph_mode
        if graphs.mixed_mode().name == "FULL":
            # The V2 model runner of 0.26 and 0.29 captures one token a request, also for these.
            step.max_query_len = step.num_tokens
        return step


class DejavuAttentionBackend(AttentionBackend):  # type: ignore[misc]
    """What the backend takes; vLLM refuses the rest by name when it starts."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16", *CACHE_DTYPES]
    forward_includes_kv_cache_update: bool = True

    @staticmethod
    def get_name() -> str:
        """Return the name under which vLLM lists the backend."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[DejavuAttentionImpl]:
        """Return the class of a layer's attention."""
        return DejavuAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[DejavuMetadataBuilder]:
        """Return the class that makes a step's metadata."""
        return DejavuMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        """Return the sizes of a cache's blocks."""
        return [MultipleOf(16)]

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        """Return the shape of a layer's cache, up to vLLM 0.28."""
        return (num_blocks, 2, block_size, num_kv_heads, head_size)

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        """Return the order of that shape's dimensions in memory: tokens before heads."""
        return (1, 0, 2, 3, 4, 5) if include_num_layers_dimension else (0, 1, 2, 3, 4)

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        """Return whether the kernels take a head size."""
        return head_size in HEAD_SIZES

    @classmethod
    def supports_combination(
        cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: str | None, *_: Any, **__: Any
    ) -> str | None:
        """Return why a cache's dtype does not go with the queries', or None."""
        is_named = kv_cache_dtype in ("float16", "bfloat16")
        if is_named and dtype != getattr(torch, str(kv_cache_dtype)):
            return f"kv_cache_dtype {kv_cache_dtype} beside queries of {dtype} not supported"
        return None

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        """Return whether Triton's kernels run on a GPU: from Ampere on."""
        return bool(capability.major >= 8)

    @classmethod
    def supports_sink(cls) -> bool:
        """Return that attention sinks are supported."""
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """Return that sliding windows are supported."""
        return True

    @classmethod
    def supports_kv_connector(cls) -> bool:
        """Return False: handing caches to other engines is untested."""
        return False


class DejavuAttentionImpl(AttentionImpl[StepInputs]):  # type: ignore[misc]
    """Attention of one layer."""

    supports_pcp: bool = False
    supports_dcp: bool = False

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
        **extra: Any,
    ) -> None:
        """Take vLLM's arguments.

        Raises:
            NotImplementedError: the layer asks for what the kernels do not do; the message names
                it.
        """
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.attn_type = attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.config = get_current_vllm_config()
        self._refuse_unsupported(extra)
        slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self._features = LayerFeatures(
            scale=self.scale,
            window=(-1, -1) if sliding_window is None else (sliding_window - 1, 0),
            softcap=float(logits_soft_cap or 0.0),
            alibi_slopes=slopes,
            sinks=sinks,
        )
        self._cache_dtype = CACHE_DTYPES.get(kv_cache_dtype)
        self._dtype: torch.dtype | None = None
        self._cache: torch.Tensor | None = None
        self._views: tuple[torch.Tensor, torch.Tensor] | None = None
        model, cache = self.config.model_config, self.config.cache_config
        # The size of blocks beside states is settled after the weights, and so are 0.29's layouts.
        is_settled = not (getattr(model, "is_hybrid", False) or hasattr(cache, "kv_cache_layout"))
        if is_settled and torch.cuda.is_available():
            begin_warm_up(*self._expected(model.dtype))

    def _refuse_unsupported(self, extra: dict[str, Any]) -> None:
        from vllm import envs

        parallel = self.config.parallel_config
        transfer = self.config.kv_transfer_config
        wanted = {
            f"attention of type {self.attn_type}": self.attn_type != AttentionType.DECODER,
            "decode context parallelism": parallel.decode_context_parallel_size > 1,
            "prefill context parallelism": (
                getattr(parallel, "prefill_context_parallel_size", 1) > 1
            ),
            "the transfer of caches between engines": (
                transfer is not None and transfer.is_kv_transfer_instance
            ),
            "batch-invariant results": getattr(envs, "VLLM_BATCH_INVARIANT", False),
            "the fast prefill of layers that share a cache": (
                getattr(self.config.cache_config, "kv_sharing_fast_prefill", False)
            ),
            "a reference sliding window": (
                getattr(self.config.model_config, "rswa_window", None) is not None
            ),
        }
        for name, value in extra.items():
            is_default = value is None or value is False or value == -1
            wanted[f"the option {name}={value!r}"] = not is_default
        refuse(wanted)

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Have the kernels compiled before vLLM measures the memory that is left."""
        slopes = self._features.alibi_slopes
        if slopes is not None and torch.cuda.is_available():
            self._features = self._features._replace(alibi_slopes=slopes.cuda())
        self._dtype = act_dtype
        warm_up_when_loaded(self)

    def warm_up(self, block_size: int | None = None) -> None:
        """Have the kernels compiled for blocks of a size, by default the engine's."""
        if self._dtype is not None and torch.cuda.is_available():
            begin_warm_up(*self._expected(self._dtype, block_size)).finish()

    def _expected(
        self, dtype: torch.dtype, block_size: int | None = None
    ) -> tuple[LayerShape, LayerFeatures, ServingLimits]:
        """Return what a warm-up is told: what the layer is like, and the engine's limits."""
        scheduler, model = self.config.scheduler_config, self.config.model_config
        speculative = self.config.speculative_config
        drafted = getattr(speculative, "num_speculative_tokens", None) or 0
        shape = LayerShape(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_size,
            page=block_size or self.config.cache_config.block_size or 16,
            dtype=dtype,
            cache_dtype=self._cache_dtype or dtype,
            cache_order=_cache_order(self.config.cache_config),
        )
        limits = ServingLimits(
            max_requests=scheduler.max_num_seqs,
            max_tokens=scheduler.max_num_batched_tokens,
            max_context=model.max_model_len,
            decoded_at_once=1 + drafted,
        )
        return shape, self._features, limits

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: torch.Tensor,
        attn_metadata: StepInputs | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute a step's attention into `output`, and return it.

        Without keys and values, those of the new tokens are in the cache already.

        Raises:
            NotImplementedError: the output is to be quantized.
        """
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("dejavu-cache's attention does not quantize its output")
        if attn_metadata is None:  # vLLM measures the memory that the model takes
            return output.fill_(0)
        tokens = attn_metadata.num_tokens
        if tokens == 0:
            return output
        if self.scale != self._features.scale:  # vLLM's models of Transformers set it
            self._features = self._features._replace(scale=self.scale)
        features = self._features
        if self._cache_dtype is not None:
            features = features._replace(k_scale=layer._k_scale, v_scale=layer._v_scale)
        keys, values = self._keys_and_values(kv_cache)
        out, new = output, None
        if key is not None and value is not None and self.kv_sharing_target_layer_name is None:
            new = NewTokens(key, value, attn_metadata.slots)
        if len(query) != tokens:  # padded
            query, out = query[:tokens], output[:tokens]
            if new is not None:
                new = NewTokens(new.keys[:tokens], new.values[:tokens], new.slots)
        with without_benchmarks():
            plan = attn_metadata.plan(features, query, keys, values)
            if new is not None and not plan.writes(new):
                reshape_and_cache_flash(
                    *(new.keys, new.values, keys, values, new.slots, self.kv_cache_dtype),
                    *(layer._k_scale, layer._v_scale),
                )
                new = None
            plan.run(query, keys, values, out, new, features.scales)
        return output

    def _keys_and_values(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of the cache, made once: making them takes as long as a launch."""
        if self._views is None or self._cache is not kv_cache:
            self._cache = kv_cache
            self._views = split_cache(kv_cache, self.head_size, self._cache_dtype)
        return self._views


def _cache_order(cache_config: Any) -> tuple[int, ...]:
    """Return the `cache_order` of the engine's layers; vLLM has chosen it by then."""
    if getattr(cache_config, "kv_cache_layout", None) is None:
        return ()
    return tuple(cache_config.get_resolved_kv_cache_layout().layer_view_order)
