"""Figures docs/attention.svg and docs/decode.svg, and the table of docs/attention.md.

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


def shares(row: dict[str, Any]) -> dict[str, float]:
    """Return each implementation's share of FlashAttention 3's speed, in per cent."""
    fa3 = row["fa3"]["microseconds"]
    return {
        name: 100 * fa3 / measured["microseconds"]
        for name, measured in row.items()
        if "microseconds" in measured
    }


def table(result: dict[str, Any]) -> str:
    """Return a Markdown table: a line per batch, a column per implementation."""
    lines = [
        "| | FA3, us | " + " | ".join(STEPS.values()) + " |",
        "|---|---|" + "---|" * len(STEPS),
    ]
    for name, row in result["rows"].items():
        share = shares(row)
        cells = [f"{share[step]:.0f}%" if step in share else "" for step in STEPS]
        cells[-1] = f"**{cells[-1]}**"
        lines.append(f"| {name} | {row['fa3']['microseconds']:.1f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def attention(result: dict[str, Any]) -> None:
    """Draw the shares as bars, a group per batch."""
    rows = result["rows"]
    implementations = [name for name in STEPS if name != "naive"]
    figure, axes = plt.subplots(figsize=(11, 4.6), layout="constrained")
    width = 0.8 / len(implementations)
    for column, name in enumerate(implementations):
        at = [
            index + (column - len(implementations) / 2 + 0.5) * width for index in range(len(rows))
        ]
        heights = [shares(row).get(name, 0.0) for row in rows.values()]
        axes.bar(at, heights, width, label=STEPS[name], color=COLOURS[name])
    axes.axhline(100, color="black", linewidth=0.8)
    axes.set_xticks(range(len(rows)), list(rows), rotation=35, ha="right")
    axes.set_ylabel("speed, % of FlashAttention 3")
    versions = result["versions"]
    axes.set_title(
        f"Paged attention, {result['preset']}, page {result['page']}, {result['dtype']}, "
        f"{result['device']}, Triton {versions['triton']}, {result['date']}"
    )
    axes.legend(ncols=len(implementations), fontsize="small", loc="upper right")
    axes.margins(x=0.01, y=0.15)
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
    attention(read("attention.json"))
    if (RESULTS / "decode.json").exists():
        decode(read("decode.json"))
    print(table(read("attention.json")))


if __name__ == "__main__":
    main()
