"""Tuning in one process and reuse in the next, of a matrix product and a library-style kernel.

    python benchmarks/reuse.py [FOLDER]     # on a machine with a GPU; writes FOLDER/reuse.json

The outputs must be those of `triton.autotune`, whose winners are timed side by side with ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import triton
from kernels import (
    add_norm,
    add_norm_kernel,
    decorate_add_norm,
    matmul,
    matmul_configs,
    matmul_kernel,
)
from reports import RESULTS, describe_run, write_report

from dejavu_cache import cached_autotune

SIZES = ((4096, 4096, 4096), (512, 4096, 1024))


def inputs() -> tuple[
    list[tuple[torch.Tensor, torch.Tensor]], list[tuple[torch.Tensor, torch.Tensor, Any]]
]:
    """Return random arguments that are the same in every process."""
    torch.manual_seed(0)
    options = {"device": "cuda", "dtype": torch.bfloat16}
    products = [(torch.randn(m, k, **options), torch.randn(k, n, **options)) for m, n, k in SIZES]
    norms = [(torch.randn(4096, d, **options), torch.randn(4096, d, **options), w) for d, w in
             ((4096, torch.randn(4096, **options)), (1000, None))]  # fmt: skip
    return products, norms


def run(autotune: Any, folder: Path) -> dict[str, Any]:
    """Launch all scenarios of both kernels; save the outputs, return winners and seconds."""
    products, norms = inputs()
    product = autotune(configs=matmul_configs(), key=["M", "N", "K"])(matmul_kernel)
    norm = decorate_add_norm(autotune)
    start = time.perf_counter()
    outputs: list[torch.Tensor] = []
    winners = []
    for a, b in products:
        outputs.append(matmul(product, a, b))
        winners.append(product.best_config.all_kwargs())
    for x, residual, weight in norms:
        outputs += add_norm(norm, x, residual, weight)
        winners.append(norm.fn.best_config.all_kwargs())
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    torch.save(outputs, folder / f"{autotune.__name__}-{os.getpid()}.pt")
    return {
        "benchmarked": getattr(product, "benchmarked", None),
        "benchmarked, library-style": getattr(norm.fn, "benchmarked", None),
        "seconds": seconds,
        "winners": winners,
        "outputs": str(folder / f"{autotune.__name__}-{os.getpid()}.pt"),
    }


def compare(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[float]:
    """Return our winners' times over theirs, by scenario; 1 for the same config.

    Each time is a median of seven medians, for which the winners take turns.
    """
    products, norms = inputs()
    ratios = []
    for index, winners in enumerate(zip(ours, theirs, strict=True)):
        if winners[0] == winners[1]:
            ratios.append(1.0)
            continue
        if index < len(products):
            calls = [_fixed_matmul(config, *products[index]) for config in winners]
        else:
            calls = [_fixed_norm(config, *norms[index - len(products)]) for config in winners]
        times: list[list[float]] = [[], []]
        for _ in range(7):
            for side, call in enumerate(calls):
                times[side].append(
                    triton.testing.do_bench(call, warmup=10, rep=50, return_mode="median")
                )
        ratios.append(sorted(times[0])[3] / sorted(times[1])[3])
    return ratios


def _fixed_matmul(config: dict[str, Any], a: torch.Tensor, b: torch.Tensor) -> Any:
    c = torch.empty(a.shape[0], b.shape[1], device=a.device, dtype=a.dtype)
    grid = (a.shape[0] // config["BLOCK_M"], b.shape[1] // config["BLOCK_N"])
    return lambda: matmul_kernel[grid](a, b, c, a.shape[0], b.shape[1], a.shape[1], **config)


def _fixed_norm(
    config: dict[str, Any], x: torch.Tensor, residual: torch.Tensor, weight: Any
) -> Any:
    y, total, (rows, d) = torch.empty_like(x), torch.zeros(1, device=x.device), x.shape
    options = {**config, "BLOCK_D": triton.next_power_of_2(d), "HAS_WEIGHT": weight is not None}
    grid = (triton.cdiv(rows, config["BLOCK_T"]),)
    return lambda: add_norm_kernel[grid](x, residual, weight, y, total, rows, d, 1e-6, **options)


def process(side: str, folder: str, **env: str) -> dict[str, Any]:
    """Run one side, `ours` or `triton`, in a process of its own."""
    out = subprocess.run(
        [sys.executable, __file__, side, folder],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(out.stdout.splitlines()[-1])
    return result


def main(results_folder: Path) -> None:
    """Measure, print and write the results."""
    with tempfile.TemporaryDirectory() as folder:
        store = (Path(folder) / "records").as_uri()
        theirs = process("triton", folder, TRITON_CACHE_DIR=f"{folder}/compiled-theirs")
        later = process("triton", folder, TRITON_CACHE_DIR=f"{folder}/compiled-theirs")
        first = process(
            "ours", folder, TRITON_CACHE_DIR=f"{folder}/compiled", DEJAVU_CACHE_URL=store
        )
        second = process(
            "ours", folder, TRITON_CACHE_DIR=f"{folder}/compiled", DEJAVU_CACHE_URL=store
        )
        outputs = [torch.load(run["outputs"], weights_only=True) for run in (theirs, first, second)]
        same = all(
            torch.allclose(expected.float(), output.float(), rtol=1e-2, atol=1e-1)
            for other in outputs[1:]
            for expected, output in zip(outputs[0], other, strict=True)
        )
        identical = all(
            torch.equal(left, right) for left, right in zip(outputs[1], outputs[2], strict=True)
        )
        results = {
            **describe_run(),
            "triton.autotune, s": theirs["seconds"],
            "triton.autotune in a second process, s": later["seconds"],
            "first process, s": first["seconds"],
            "second process, s": second["seconds"],
            "first process, configs benchmarked": [
                first["benchmarked"],
                first["benchmarked, library-style"],
            ],
            "second process, configs benchmarked": [
                second["benchmarked"],
                second["benchmarked, library-style"],
            ],
            "outputs agree with triton.autotune's": same,
            "second process's outputs are the first's, bit for bit": identical,
            "our winner's time / triton.autotune's": compare(second["winners"], theirs["winners"]),
            "winners": second["winners"],
            "triton.autotune's winners": theirs["winners"],
        }
    print(json.dumps(results, indent=2))
    write_report(results_folder, "reuse.json", results)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        autotune = cached_autotune if sys.argv[1] == "ours" else triton.autotune
        print(json.dumps(run(autotune, Path(sys.argv[2]))))
    else:
        main(Path(sys.argv[1]) if len(sys.argv) == 2 else RESULTS)
