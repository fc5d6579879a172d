"""Public libraries with autotuned Triton kernels, and forward operations that launch them.

Each operation makes its inputs from a fixed seed and returns tensors by name. Names of libraries
are imported inside the operations, after the autotuner was replaced or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import fla_operations
from operation_inputs import Tensors, randn


@dataclass(frozen=True)
class Library:
    """Modules of a distribution that define autotuned kernels.

    Attributes:
        distribution: the name on PyPI.
        modules: what is imported.
        without_init: packages whose `__init__` needs more than their Triton code does, such as a
            compiled extension; they are imported without it.
        operations: run forward operations on a GPU, each by itself; without any, the modules are
            only imported.
    """

    distribution: str
    modules: tuple[str, ...]
    without_init: tuple[str, ...] = ()
    operations: tuple[Callable[[], Tensors], ...] = ()


def run_liger() -> Tensors:
    from liger_kernel.ops.dyt import LigerDyTFunction

    x, alpha, gamma, beta = randn(256, 2048), randn(1), randn(2048), randn(2048)
    return {"dyt": LigerDyTFunction.apply(x, alpha, gamma, beta)}


def run_torchao() -> Tensors:
    import torch
    from torchao.kernel import blockwise_quantization as blockwise

    a, a_scale = blockwise.fp8_blockwise_act_quant(randn(256, 512, dtype="bfloat16"))
    b, b_scale = blockwise.fp8_blockwise_weight_quant(randn(384, 512, dtype="bfloat16"))
    torch.set_default_dtype(torch.bfloat16)  # the product is of the default dtype
    return {"blockwise_fp8_gemm": blockwise.blockwise_fp8_gemm(a, a_scale, b, b_scale)}


def run_gemlite() -> Tensors:
    import torch
    from gemlite.helper import A16W8_INT8

    linear = torch.nn.Linear(1024, 512, bias=False, device="cuda", dtype=torch.float16)
    quantized = A16W8_INT8(device="cuda:0", dtype=torch.float16).from_linear(linear)
    return {f"rows={rows}": quantized(randn(rows, 1024, dtype="float16")) for rows in (1, 64)}


def run_mamba_states() -> Tensors:
    import torch
    from mamba_ssm.ops.triton import ssd_bmm, ssd_chunk_state, ssd_state_passing

    x, b, c = randn(1, 512, 8, 64), randn(1, 512, 1, 64), randn(1, 512, 1, 64)
    steps, decay = torch.rand(1, 512, 8, device="cuda"), -torch.rand(8, device="cuda")
    cumulated, steps = ssd_chunk_state._chunk_cumsum_fwd(steps, decay, 256)
    states = ssd_chunk_state._chunk_state_fwd(b, x, steps, cumulated)
    flat, last = states.flatten(-2), cumulated[..., -1]
    return {
        "chunk_state": states,
        "chunk_products": ssd_bmm._bmm_chunk_fwd(c, b, 256),
        "state_passing": ssd_state_passing._state_passing_fwd(flat, last)[0],
    }


def run_mamba_norm() -> Tensors:
    from mamba_ssm.ops.triton.layer_norm import layer_norm_fn

    return {"layer_norm": layer_norm_fn(randn(256, 1024), randn(1024), randn(1024))}


def run_mamba_activation() -> Tensors:
    from mamba_ssm.ops.triton.k_activations import _swiglu_fwd

    return {"swiglu": _swiglu_fwd(randn(256, 2048))}


def run_xformers() -> Tensors:
    from xformers.ops.tiled_matmul import tiled_matmul

    a = [[randn(256, 128, dtype="bfloat16") for _ in range(2)] for _ in range(2)]
    b = [[randn(128, 256, dtype="bfloat16") for _ in range(2)] for _ in range(2)]
    product = tiled_matmul(a, b)
    return {f"tile {i},{j}": tile for i, row in enumerate(product) for j, tile in enumerate(row)}


def run_unsloth() -> Tensors:
    import torch
    from unsloth.kernels.large_head_attention import large_head_attention

    q, k, v = (randn(1, heads, 256, 512, dtype="bfloat16") for heads in (4, 2, 2))
    last = torch.arange(256, device="cuda", dtype=torch.int32)[None]
    return {"attention": large_head_attention(q, k, v, torch.zeros_like(last), last)}


def run_conch() -> Tensors:
    import torch
    from conch.ops.vision.nms import nms

    corners = torch.rand(512, 2, device="cuda") * 100
    boxes = torch.cat([corners, corners + 1 + torch.rand(512, 2, device="cuda") * 30], dim=1)
    return {"nms": nms(boxes, torch.rand(512, device="cuda"), 0.5)}


def run_adasplash() -> Tensors:
    from adasplash.triton_entmax_v2 import triton_entmax15

    return {"entmax15": triton_entmax15(randn(256, 2048))}


def run_moe_ops() -> Tensors:
    import torch
    from moe_ops import fused_topk_softmax
    from moe_ops.grouped_gemm_ops import grouped_gemm

    weights, experts = fused_topk_softmax(randn(512, 64), 6)
    bounds = torch.tensor([0, 64, 192, 256, 512], device="cuda", dtype=torch.int32)
    a, b = randn(512, 256, dtype="bfloat16"), randn(4, 384, 256, dtype="bfloat16")
    return {"weights": weights, "experts": experts, "product": grouped_gemm(a, b, bounds)}


def run_mlstm() -> Tensors:
    from mlstm_kernels.torch.recurrent.triton_step_alternate import (
        mlstm_recurrent_step__triton_alternate as step,
    )

    q, k, v, n = (randn(2, 4, 256) for _ in range(4))  # blocks of 256 are not masked
    i, f, m = (randn(2, 4, 1) for _ in range(3))
    hidden, state = step(q=q, k=k, v=v, i=i, f=f, c=randn(2, 4, 256, 256), n=n, m=m)
    return {"hidden": hidden, "memory": state[0]}


def run_sinkhorn() -> Tensors:
    from flash_sinkhorn import SamplesLoss

    return {"loss": SamplesLoss(n_iters=5, eps=0.1)(randn(512, 32), randn(512, 32))}


def run_late_interaction() -> Tensors:
    import torch
    from late_interaction_kernels import maxsim

    # Small launches without gradients take a config of the library's own.
    queries = randn(32, 32, 128, dtype="bfloat16").requires_grad_()
    with torch.enable_grad():
        return {"maxsim": maxsim(queries, randn(32, 256, 128, dtype="bfloat16")).detach()}


def run_trifast() -> Tensors:
    import torch
    from trifast.torch import triangle_attention

    q, k, v = (randn(1, 2, 64, 64, 32, dtype="bfloat16") for _ in range(3))
    mask = torch.zeros(1, 64, 64, device="cuda", dtype=torch.bool)
    bias = randn(1, 2, 64, 64, dtype="bfloat16")
    return {"attention": triangle_attention(q, k, v, bias, mask)}


def run_deepspeed() -> Tensors:
    import torch
    from deepspeed.ops.triton_ops.group_gemm_triton import group_gemm_triton

    ends = torch.tensor([64, 192, 256, 512], device="cuda", dtype=torch.int32)
    a, b = randn(512, 256, dtype="bfloat16"), randn(4, 256, 384, dtype="bfloat16")
    return {"product": group_gemm_triton(a, b, ends)}


def run_flag_gems() -> Tensors:
    import flag_gems

    a, b = randn(256, 512, dtype="bfloat16"), randn(512, 256, dtype="bfloat16")
    return {"mm": flag_gems.mm(a, b)}


_MAMBA = "mamba_ssm.ops.triton"
_UNSLOTH = "unsloth.kernels"

LIBRARIES = (
    Library("fla-core", ("fla.ops", "fla.modules"), operations=fla_operations.OPERATIONS),
    Library(
        "liger-kernel",
        ("liger_kernel.ops.dyt", "liger_kernel.ops.mlp", "liger_kernel.ops.fused_moe_kernels"),
        operations=(run_liger,),
    ),
    Library(
        "torchao",
        (
            "torchao.kernel.blockwise_quantization",
            "torchao.prototype.blockwise_fp8_training.kernels",
            "torchao.prototype.common.triton.matmul",
        ),
        operations=(run_torchao,),
    ),
    Library("gemlite", ("gemlite",), operations=(run_gemlite,)),
    Library(
        "mamba-ssm",
        tuple(
            f"{_MAMBA}.{name}"
            for name in (
                "ssd_chunk_state",
                "ssd_chunk_scan",
                "ssd_bmm",
                "ssd_state_passing",
                "layer_norm",
                "k_activations",
            )
        ),
        without_init=("mamba_ssm",),
        operations=(run_mamba_states, run_mamba_norm, run_mamba_activation),
    ),
    Library(
        "xformers",
        (
            "xformers.ops.tiled_matmul",
            "xformers.ops._triton.tiled_matmul_kernels",
            "xformers.ops.fmha._triton.splitk_kernels",
        ),
        operations=(run_xformers,),
    ),
    Library(
        "unsloth",
        (
            f"{_UNSLOTH}.moe.grouped_gemm.kernels.forward",
            f"{_UNSLOTH}.moe.grouped_gemm.kernels.backward",
            f"{_UNSLOTH}.large_head_attention",
        ),
        without_init=("unsloth", _UNSLOTH, f"{_UNSLOTH}.moe", f"{_UNSLOTH}.moe.grouped_gemm"),
        operations=(run_unsloth,),
    ),
    Library("conch-triton-kernels", ("conch.ops.vision.nms",), operations=(run_conch,)),
    Library(
        "adasplash",
        ("adasplash.triton_entmax_v2", "adasplash.adasplash_v2"),
        operations=(run_adasplash,),
    ),
    Library("moe-ops", ("moe_ops",), operations=(run_moe_ops,)),
    Library(
        "mlstm-kernels",
        (
            "mlstm_kernels.triton.parallel.limit_headdim.fw_kernel",
            "mlstm_kernels.torch.recurrent.triton_step_alternate",
        ),
        operations=(run_mlstm,),
    ),
    Library("flash-sinkhorn", ("flash_sinkhorn",), operations=(run_sinkhorn,)),
    Library(
        "late-interaction-kernels",
        tuple(f"late_interaction_kernels.{name}" for name in ("forward", "fp8", "plaid", "varlen")),
        operations=(run_late_interaction,),
    ),
    Library("trifast", ("trifast.torch",), operations=(run_trifast,)),
    Library(
        "attn-gym",
        (
            "attn_gym.linear.gdn.bwd.triton.chunk_gdn_bwd_delta_h",
            "attn_gym.linear.kda.fwd.triton.recompute_w_u",
            "attn_gym.linear.kda.fwd.triton.chunk_gla_fwd_o",
        ),
    ),
    Library(
        "deepspeed",
        (
            "deepspeed.ops.triton_ops.group_gemm_triton",
            "deepspeed.ops.transformer.inference.triton.triton_matmul_kernel",
        ),
        operations=(run_deepspeed,),
    ),
    Library("flag-gems", ("flag_gems",), operations=(run_flag_gems,)),
)
