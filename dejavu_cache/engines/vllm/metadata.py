"""Metadata of one step of vLLM's engine for the attention backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from vllm.v1.attention.backend import (
    AttentionCGSupport,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)

from .planned_attention import StepInputs

__all__ = ["DejavuMetadataBuilder", "refuse"]


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
        """Return a step's inputs.

        Args:
            common_prefix_len: tokens that all requests share; they are not treated apart.
            common_attn_metadata: what vLLM knows of the step.
            fast_build: makes no difference.

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
