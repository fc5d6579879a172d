"""Figures docs/attention.svg and docs/decode.svg.

pip install matplotlib; python benchmarks/plots.py
"""

from __future__ import annotations

import json
from pathlib import Path
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


def drawn_attention(result: dict[str, Any]) -> None:
    """Draw each drawn batch's share of FlashAttention 3's speed as a bar, coloured by its kind."""
    rows = result["batches"][SHAPE]
    shares = [100 * row["fa3"]["gpu"] / row["ours"]["gpu"] for row in rows.values()]
    kinds = [name.split()[0] for name in rows]
    colours = dict(zip(dict.fromkeys(kinds), tuple(COLOURS.values())[1:], strict=False))
    figure, axes = plt.subplots(figsize=(11, 4.6), layout="constrained")
    axes.bar(range(len(rows)), shares, color=[colours[kind] for kind in kinds])
    axes.axhline(100, color="black", linewidth=0.8)
    axes.set_xticks(range(len(rows)), list(rows), rotation=60, ha="right", fontsize="small")
    axes.set_ylabel("speed, % of FlashAttention 3")
    axes.set_title(
        f"Drawn batches, heads {SHAPE}, {result['device']}, Triton {result['triton']}, "
        f"{result['date']}"
    )
    axes.margins(x=0.01, y=0.1)
    figure.savefig(ROOT / "docs" / "attention.svg", metadata={"Date": None})


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
