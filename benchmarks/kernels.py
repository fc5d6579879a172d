"""Kernels that the benchmarks and the GPU tests tune, in the styles of public libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from prewarm_product import matmul_configs as matmul_configs
from prewarm_product import matmul_kernel as matmul_kernel

Decorator = Callable[..., Callable[[Any], Any]]


def matmul(kernel: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Run a decorated `matmul_kernel` on an output full of NaN."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.full((m, n), float("nan"), device=a.device, dtype=a.dtype)
    kernel[lambda meta: (m // meta["BLOCK_M"], n // meta["BLOCK_N"])](a, b, c, m, n, k)
    return c


@triton.jit
def _rstd(total, count, eps):
    return 1 / tl.sqrt(total / count + eps)


@triton.jit
def add_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, y_ptr, total_ptr, rows, D, eps,
    BLOCK_D: tl.constexpr, BLOCK_T: tl.constexpr, HAS_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Compute residual += x in place and y = rmsnorm(residual) * weight.

    `total` counts the rows, so that a launch that was not undone shows.
    """
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    d = tl.arange(0, BLOCK_D)
    inside = (t[:, None] < rows) & (d[None, :] < D)
    at = t[:, None] * D + d[None, :]
    value = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual_ptr + at, value, mask=inside)
    value *= _rstd(tl.sum(value * value, 1), D, eps)[:, None]
    if HAS_WEIGHT:
        value *= tl.load(weight_ptr + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
    tl.store(y_ptr + at, value, mask=inside)
    tl.atomic_add(total_ptr + t * 0, 1.0, mask=t < rows)


def add_norm_configs() -> list[triton.Config]:
    """Return 40 configs; the number of stages changes nothing."""
    return [
        triton.Config({"BLOCK_T": block}, num_warps=warps, num_stages=stages, pre_hook=_check_eps)
        for block in (1, 2, 4, 8, 16)
        for warps in (1, 2, 4, 8)
        for stages in (2, 3)
    ]


def decorate_add_norm(
    autotune: Decorator, configs: list[triton.Config] | None = None, **options: Any
) -> Any:
    """Decorate with all that libraries use: hooks, restored values, heuristics, pruning."""
    tuned = autotune(
        configs=add_norm_configs() if configs is None else configs,
        key=["D", "HAS_WEIGHT"],
        restore_value=["residual_ptr"],
        reset_to_zero=["total_ptr"],
        prune_configs_by={"early_config_prune": narrow_configs},
        **options,
    )
    below = triton.heuristics({"BLOCK_D": lambda args: triton.next_power_of_2(args["D"])})
    above = triton.heuristics({"HAS_WEIGHT": lambda args: args["weight_ptr"] is not None})
    return above(tuned(below(add_norm_kernel)))


def _check_eps(args: dict[str, Any]) -> None:
    assert args["eps"] > 0


def narrow_configs(configs: list[Any], named: dict[str, Any], **kwargs: Any) -> list[Any]:
    """Return the configs whose tiles of D columns are not too large."""
    return [config for config in configs if config.kwargs["BLOCK_T"] * named["D"] <= 65536]


def add_norm(
    kernel: Any, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run a decorated `add_norm_kernel`.

    Args:
        kernel: the decorated kernel.
        x: [rows, D].
        residual: [rows, D]; left as it is.
        weight: [D], or None.

    Returns:
        y [rows, D], the new residual [rows, D], and the number of rows [1].
    """
    residual, y = residual.clone(), torch.full_like(x, float("nan"))
    total = torch.zeros(1, device=x.device)
    rows, d = x.shape
    kernel[lambda meta: (triton.cdiv(rows, meta["BLOCK_T"]),)](
        x, residual, weight, y, total, rows, d, 1e-6
    )
    return y, residual, total
