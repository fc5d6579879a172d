"""Suite of matrix products to tune ahead of time.

dejavu-cache sweep examples/sweep_matmul.py --store FOLDER
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
import triton
from matmul import matmul_kernel

from dejavu_cache.sweep.suite import Case


def suite(preset: str = "small") -> Iterator[Case]:
    """Yield products of few and many rows with square weights; `preset` is `small` or `large`."""
    widths = {"small": (64, 128), "large": (1024, 4096, 8192)}[preset]
    rows = {"small": (16, 64), "large": (16, 256, 4096)}[preset]
    for width in widths:
        for m in rows:
            yield Case(
                name=f"{m}x{width}",
                kernel=matmul_kernel,
                grid=partial(grid, m, width),
                arguments=partial(arguments, m, width),
            )


def grid(m: int, n: int, meta: Mapping[str, int]) -> tuple[int, int]:
    """Return the numbers of blocks of an [m, n] product."""
    return triton.cdiv(m, meta["BLOCK_M"]), triton.cdiv(n, meta["BLOCK_N"])


def arguments(m: int, width: int) -> dict[str, Any]:
    """Return [m, width] and [width, width] in half precision, on the GPU if there is one."""
    options: dict[str, Any] = {
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "dtype": torch.float16,
    }
    return {
        "a_ptr": torch.randn(m, width, **options),
        "b_ptr": torch.randn(width, width, **options),
        "c_ptr": torch.empty(m, width, **options),
        "M": m,
        "N": width,
        "K": width,
    }
