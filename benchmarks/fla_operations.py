"""Forward operations of fla-core, each small and from a fixed seed, for `library_launches`."""

from __future__ import annotations

from typing import Any

from operation_inputs import Tensors, randn

LENGTH, HEADS, WIDTH = 256, 2, 64


def _values(count: int, dtype: str = "bfloat16") -> list[Any]:
    return [randn(1, LENGTH, HEADS, WIDTH, dtype=dtype) / 8 for _ in range(count)]


def _unit(tensor: Any) -> Any:
    import torch

    return torch.nn.functional.normalize(tensor.float(), dim=-1).to(tensor.dtype)


def _gate(*shape: int, dtype: str = "float32") -> Any:
    """Return logarithms of numbers between 0 and 1."""
    import torch

    return torch.nn.functional.logsigmoid(randn(*shape, dtype=dtype))


def _share(dtype: str = "bfloat16") -> Any:
    """Return a number between 0 and 1 per position and head."""
    return randn(1, LENGTH, HEADS, dtype=dtype).sigmoid()


def run_gla() -> Tensors:
    from fla.ops.gla import chunk_gla

    q, k, v = _values(3, "float32")
    return {"gla": chunk_gla(q, k, v, _gate(1, LENGTH, HEADS, WIDTH))[0]}


def run_gated_delta_rule() -> Tensors:
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    q, k, v = _values(3)
    gate = _gate(1, LENGTH, HEADS)
    return {"gated_delta_rule": chunk_gated_delta_rule(q, _unit(k), v, gate, _share())[0]}


def run_delta_rule() -> Tensors:
    from fla.ops.delta_rule import chunk_delta_rule

    q, k, v = _values(3)
    return {"delta_rule": chunk_delta_rule(q, _unit(k), v, _share())[0]}


def run_simple_gla() -> Tensors:
    from fla.ops.simple_gla import chunk_simple_gla, parallel_simple_gla

    q, k, v = _values(3)
    gate = _gate(1, LENGTH, HEADS)
    return {
        "simple_gla": chunk_simple_gla(q, k, v, g=gate)[0],
        "parallel_simple_gla": parallel_simple_gla(q, k, v, g=gate)[0],
    }


def run_recurrent_gla() -> Tensors:
    from fla.ops.gla import fused_recurrent_gla

    q, k, v = _values(3)
    return {"recurrent_gla": fused_recurrent_gla(q, k, v, _gate(1, LENGTH, HEADS, WIDTH))[0]}


def run_kda() -> Tensors:
    from fla.ops.kda import chunk_kda

    q, k, v = _values(3)
    gate = _gate(1, LENGTH, HEADS, WIDTH) / 8
    return {"kda": chunk_kda(_unit(q), _unit(k), v, gate, _share())[0]}


def run_rwkv6() -> Tensors:
    from fla.ops.rwkv6 import chunk_rwkv6

    r, k, v = _values(3, "float32")
    decay = _gate(1, LENGTH, HEADS, WIDTH)
    return {"rwkv6": chunk_rwkv6(r, k, v, decay, randn(HEADS, WIDTH))[0]}


def run_rwkv7() -> Tensors:
    from fla.ops.rwkv7 import chunk_rwkv7

    r, k, v = _values(3)
    decay = _gate(1, LENGTH, HEADS, WIDTH, dtype="bfloat16") / 2
    key = _unit(k)
    return {"rwkv7": chunk_rwkv7(r, decay, k, v, -key, key * _share()[..., None])[0]}


def run_gsa() -> Tensors:
    from fla.ops.gsa import chunk_gsa

    q, k, v = _values(3, "float32")
    slots, gate = randn(1, LENGTH, HEADS, WIDTH), _gate(1, LENGTH, HEADS, WIDTH)
    return {"gsa": chunk_gsa(q, k, v, slots, gate)[0]}


def run_hgrn() -> Tensors:
    from fla.ops.hgrn import fused_recurrent_hgrn

    return {"hgrn": fused_recurrent_hgrn(randn(1, LENGTH, 512), _gate(1, LENGTH, 512))[0]}


def run_comba() -> Tensors:
    from fla.ops.comba import chunk_comba

    q, k, v = _values(3)
    key, gate = _unit(k), _gate(1, LENGTH, HEADS)
    return {"comba": chunk_comba(_unit(q), key, v, key * 0.5, gate, _share())[0]}


def run_sparse_attention() -> Tensors:
    from fla.ops.nsa import parallel_nsa

    q = randn(1, LENGTH, 16, WIDTH, dtype="bfloat16")
    k, v = (randn(1, LENGTH, 1, WIDTH, dtype="bfloat16") for _ in range(2))
    gates = [randn(1, LENGTH, 16, dtype="bfloat16").sigmoid() for _ in range(2)]
    return {"nsa": parallel_nsa(q, k, v, *gates, block_counts=2, block_size=32)}


def run_sums() -> Tensors:
    from fla.ops.utils.cumsum import chunk_global_cumsum
    from fla.ops.utils.pooling import mean_pooling

    values = randn(1, LENGTH, HEADS, WIDTH)
    return {"cumsum": chunk_global_cumsum(values), "pooling": mean_pooling(values, 64)}


def run_norms() -> Tensors:
    from fla.modules.l2norm import l2_norm
    from fla.modules.layernorm import rms_norm

    x = randn(LENGTH, 1024, dtype="bfloat16")
    return {"l2_norm": l2_norm(x), "rms_norm": rms_norm(x, randn(1024, dtype="bfloat16"), None)}


OPERATIONS = (
    run_gla,
    run_gated_delta_rule,
    run_delta_rule,
    run_simple_gla,
    run_recurrent_gla,
    run_sums,
    run_norms,
    run_hgrn,
    run_kda,
    run_rwkv7,
    run_rwkv6,
    run_comba,
    run_gsa,
    run_sparse_attention,
)
"""What launches fewer kernels of its own comes later, for a time limit."""
