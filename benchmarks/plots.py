"""Figures docs/attention.svg and docs/decode.svg.

pip install matplotlib; python benchmarks/plots.py
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import matplotlib
import matplotlib.pyplot as plt

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SHAPE = "32/8 d128 p16"
STEPS = {
    "naive": "4.3 naive",
    "qblock": "4.4 Q blocks",
    "segmented": "4.5 segments",
    "static_grid": "4.7 static grid",
    "hopper": "Hopper's units",
    "auto": "auto",
}
"""The implementations, by the paper's sections."""

COLOURS = dict(
    zip(STEPS, ("#bbbbbb", "#56b4e9", "#009e73", "#cc79a7", "#e69f00", "#000000"), strict=True)
)


def read(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return result


KINDS = ("decode", "prefill", "mixed", "chunked", "speculative")


def drawn_attention(result: dict[str, Any]) -> None:
    """Draw shares of FlashAttention 3's speed: of each drawn batch, and of kinds by shape."""
    colours = dict(zip(KINDS, tuple(COLOURS.values())[1:], strict=False))
    figure, (upper, lower) = plt.subplots(2, figsize=(11, 8.4), layout="constrained")
    draws = result["batches"][SHAPE]
    for draw in sorted(draws.values(), key=len, reverse=True):  # the first one orders the names
        names = list(draw)
        shares = [share_of(draw[name]) for name in names]
        upper.scatter(names, shares, s=16, color=[colours[name.split()[0]] for name in names])
    upper.set_title(
        f"Drawn batches, heads {SHAPE}, a point per draw ({len(draws)}); {result['device']}, "
        f"Triton {result['triton']}, {result['date']}"
    )
    upper.tick_params("x", rotation=60, labelsize="small")
    plt.setp(upper.get_xticklabels(), ha="right", rotation_mode="anchor")
    shapes = list(result["batches"])
    for index, kind in enumerate(KINDS):
        means = [mean_share(result["batches"][shape], kind) for shape in shapes]
        places = [place + (index - 2) * 0.16 for place in range(len(shapes))]
        lower.bar(places, means, width=0.15, color=colours[kind], label=kind)
    lower.set_xticks(range(len(shapes)), shapes)
    lower.set_title("Geometric means by heads, head size and page")
    lower.legend(fontsize="small", ncols=5)
    for axes in (upper, lower):
        axes.axhline(100, color="black", linewidth=0.8)
        axes.set_ylabel("speed, % of FlashAttention 3")
        axes.margins(x=0.01, y=0.1)
    figure.savefig(ROOT / "docs" / "attention.svg", metadata={"Date": None})


def share_of(row: dict[str, dict[str, float]]) -> float:
    """Return the speed on a batch in percent of FlashAttention 3's."""
    return 100 * row["fa3"]["gpu"] / row["ours"]["gpu"]


def mean_share(draws: dict[str, Any], kind: str) -> float:
    """Return the geometric mean of the shares on all drawn batches of a kind; NaN without any."""
    shares = [
        share_of(row)
        for draw in draws.values()
        for name, row in draw.items()
        if name.startswith(kind)
    ]
    return geometric_mean(shares) if shares else math.nan


def decode(result: dict[str, Any]) -> None:
    """Draw a decoder's speed over FlashAttention 3's by the number of new tokens."""
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for name, marks in result["share_of_fa3"].items():
        tokens = [int(mark) for mark in marks]
        axes.plot(
            tokens,
            [100 * share for share in marks.values()],
            "o-",
            label=STEPS[name],
            color=COLOURS[name],
        )
    axes.axhline(100, color="grey", linewidth=0.8, label="FlashAttention 3")
    axes.set_xscale("log", base=2)
    axes.set_xticks(tokens, [str(count) for count in tokens])
    axes.set_xlabel("new tokens, batch 1, prompt of 500")
    axes.set_ylabel("speed, % of FlashAttention 3")
    axes.set_title(
        f"A decoder of Llama 3.1 8B's shape, {result['device']}, {result['date']}",
        fontsize="medium",
    )
    axes.legend(fontsize="small")
    figure.savefig(ROOT / "docs" / "decode.svg", metadata={"Date": None})


def main() -> None:
    matplotlib.rcParams["svg.hashsalt"] = "dejavu-cache"  # equal results give equal files
    drawn_attention(read("attention-drawn.json"))
    if (RESULTS / "decode.json").exists():
        decode(read("decode.json"))


if __name__ == "__main__":
    main()
