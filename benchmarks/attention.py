"""GPU time of every implementation of paged attention, side by side with FlashAttention 3.

    FLASH_ATTENTION_3=LIBRARY python benchmarks/attention.py [FOLDER] [PRESET] [PAGE] [NAME+NAME...]

GPU time is the median of a CUDA graph's replays with warm caches. Every implementation is checked
against the float32 reference where that fits into memory. Configs come from the records; a scenario
without a record is tuned first.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import flash_attention
import torch
import triton
from reports import RESULTS, describe_run, write_report

from dejavu_cache.attention.api import IMPLEMENTATIONS
from dejavu_cache.attention.batch import Batch
from dejavu_cache.attention.sweep_suite import PRESETS, Lengths, batch_of, ragged

COMPARED = ("auto", "hopper", "qblock", "segmented", "static_grid", "naive")
TOLERANCE = 5e-3
SLOW = 5e9
"""Scores (query tokens times keys times heads) from which the naive kernel is left out, since it
would take a second."""


def scenarios() -> list[Lengths]:
    """Return ragged batches: decoding, prompts, both, and chunks after a long context."""
    compositions = [
        Lengths(f"decode {n} x {longest}", [1] * n, ragged(n, longest))
        for n in (1, 8, 32, 128)
        for longest in (512, 4096, 16384)
        if n * longest <= 1 << 20
    ]
    for n, longest in ((1, 128), (1, 512), (1, 2048), (1, 8192), (8, 1024)):
        compositions.append(Lengths(f"prefill {n} x {longest}", ragged(n, longest), [0] * n))
    for n, longest in ((8, 1024), (32, 2048)):
        prompts = [1 if index % 2 else max(1, longest // 4) for index in range(n)]
        compositions.append(Lengths(f"mixed {n} x {longest}", prompts, ragged(n, longest)))
    compositions.append(Lengths("chunked 4 x 512 after 8192", [512] * 4, [8192] * 4))
    return compositions


def microseconds(
    batch: Batch, implementation: str, expected: torch.Tensor | None
) -> dict[str, Any]:
    """Return the GPU time of one implementation, and its relative error if there is a reference."""
    run = flash_attention.run if implementation == "fa3" else IMPLEMENTATIONS[implementation]
    batch.out.fill_(float("nan"))
    try:
        run(batch)
        torch.cuda.synchronize()
    except ValueError as error:  # this implementation does not take such a batch
        return {"left_out": str(error)[:200]}
    result = batch.out.clone()
    median = triton.testing.do_bench_cudagraph(lambda: run(batch), rep=20, return_mode="median")
    wrong = (
        None
        if expected is None
        else float(f"{float((result - expected).norm() / expected.norm()):.1e}")
    )
    if wrong is not None and not wrong < TOLERANCE:
        sys.exit(f"{implementation}: relative error {wrong}")
    return {"microseconds": round(median * 1e3, 2), "error": wrong}


def reference(batch: Batch) -> torch.Tensor | None:
    """Return the correct result in float64, or None if the scores would not fit into memory."""
    if batch.max_seqlen_q * batch.max_seqlen_k * batch.q.shape[1] > 2**30:
        return None
    return IMPLEMENTATIONS["reference"](batch).double()


def share(row: dict[str, Any], implementation: str) -> float | None:
    """Return an implementation's share of FlashAttention 3's speed."""
    fa3, ours = (row.get(name, {}).get("microseconds") for name in ("fa3", implementation))
    return fa3 / ours if fa3 and ours else None


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the geometric mean of the shares of each kind of batch, and the lowest share."""
    summaries: dict[str, dict[str, float]] = {}
    for implementation in COMPARED:
        for kind in ("decode", "prefill", "mixed", "chunked"):
            values = [
                share(row, implementation) for name, row in rows.items() if name.startswith(kind)
            ]
            shares = [value for value in values if value]
            if len(shares) == len(values):
                mean = math.exp(sum(map(math.log, shares)) / len(shares))
                summaries.setdefault(implementation, {})[kind] = round(mean, 3)
                summaries[implementation]["least"] = round(
                    min(*shares, summaries[implementation].get("least", math.inf)), 3
                )
    return summaries


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    preset = sys.argv[2] if len(sys.argv) > 2 else "llama3-8b"
    page = int(sys.argv[3]) if len(sys.argv) > 3 else 16
    ours = sys.argv[4].split("+") if len(sys.argv) > 4 else COMPARED
    names = [*(["fa3"] if flash_attention.available() else []), *ours]
    rows: dict[str, dict[str, Any]] = {}
    for lengths in scenarios():
        batch = batch_of(lengths, PRESETS[preset], page, torch.bfloat16)
        scores = (
            sum(n * (n + p) for n, p in zip(lengths.new, lengths.past, strict=True))
            * batch.q.shape[1]
        )
        expected = reference(batch)
        row = {
            name: microseconds(batch, name, expected)
            for name in names
            if name != "naive" or scores < SLOW
        }
        rows[lengths.name] = row
        columns = [
            f"{name} {row[name]['microseconds']:8.1f}"
            + (f" ({100 * part:5.1f}%)" if (part := share(row, name)) else "")
            for name in row
            if "microseconds" in row[name]
        ]
        print(f"{lengths.name:28s}", "  ".join(columns), flush=True)
    result = {
        **describe_run(),
        "preset": preset,
        "page": page,
        "dtype": "bfloat16",
        "rows": rows,
        "share_of_fa3": summary(rows),
    }
    print(json.dumps(result["share_of_fa3"], indent=1))
    name = "attention" if (preset, page) == ("llama3-8b", 16) else f"attention-{preset}-{page}"
    write_report(folder, f"{name}.json", result)


if __name__ == "__main__":
    main()
