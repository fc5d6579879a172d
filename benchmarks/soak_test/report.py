"""The soak test's results as a page of Markdown and a figure.

pip install matplotlib; python benchmarks/soak_test/report.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "results"


def broken_promises(result: dict[str, Any]) -> list[str]:
    """Return what did not hold."""
    problems = [
        f"{name.replace('_', ' ')}: {len(result[name])}, the first: {result[name][0]}"
        for name in ("lost", "risen", "wrong_winners", "failed", "wrong_exits")
        if result[name]
    ]
    problems += [f"{name}: {result[name]}" for name in ("waiting", "set_aside") if result[name]]
    problems += [f"not flat: {name}" for name, flat in result["flat"].items() if not flat]
    return problems


def make_page(results: list[dict[str, Any]], machine: str) -> str:
    """Return the page."""
    rows: dict[str, list[Any]] = {
        "minutes": [round(result["seconds"] / 60) for result in results],
        "faults": [sum(result["faults"].values()) for result in results],
        "records acknowledged": [result["acknowledged"] for result in results],
        "of them lost": [len(result["lost"]) for result in results],
        "deleted records that came back": [
            f"{len(result['risen'])} of {result['deleted']}" for result in results
        ],
        "look-ups compared with what was written": [result["reads_checked"] for result in results],
        "wrong winners": [len(result["wrong_winners"]) for result in results],
        "launches": [result["launches"] for result in results],
        "failed launches and calls": [len(result["failed"]) for result in results],
        "processes that ended": [sum(result["exits"].values()) for result in results],
        "with another exit code than their own": [len(result["wrong_exits"]) for result in results],
        "left in the spool at the end": [
            result["waiting"] + result["set_aside"] for result in results
        ],
        "checks of everything during the run": [result["checks"] for result in results],
        "memory and descriptors flat": [
            "yes" if all(result["flat"].values()) else "no" for result in results
        ],
        "server's memory at the most, MB": [
            result["peak_megabytes"]["server"] for result in results
        ],
    }
    kinds = [result["kind"] for result in results]
    lines = [
        "# Soak test",
        "",
        "`make soak` wrote this page. Writers, readers and programs that launch a kernel use a "
        "server while its processes, its database, its disk and the network to it fail.",
        "",
        f"{machine}.",
        "",
        f"| | {' | '.join(kinds)} |",
        "|---|" + "---|" * len(kinds),
        *(f"| {name} | {' | '.join(map(str, values))} |" for name, values in rows.items()),
        "",
        "| fault | " + " | ".join(kinds) + " |",
        "|---|" + "---|" * len(kinds),
    ]
    for fault in sorted({name for result in results for name in result["faults"]}):
        counts = " | ".join(str(result["faults"].get(fault, 0)) for result in results)
        lines.append(f"| {fault} | {counts} |")
    lines += ["", "![Records, memory and descriptors over time](soak.svg)", ""]
    for result in results:
        lines += [f"- {result['kind']}: {problem}" for problem in broken_promises(result)]
    return "\n".join(lines).rstrip() + "\n"


def plot(results: list[dict[str, Any]], file: Path) -> None:
    """Draw records, memory and descriptors over time; needs matplotlib."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "dejavu-cache"  # equal results give equal files
    figure, axes = plt.subplots(
        3, len(results), figsize=(5.5 * len(results), 8), layout="constrained", squeeze=False
    )
    for column, result in enumerate(results):
        records, memory, descriptors = (axes[row][column] for row in range(3))
        minutes = [at / 60 for at, _, _ in result["progress"]]
        records.plot(minutes, [row[1] for row in result["progress"]], label="acknowledged")
        records.plot(minutes, [row[2] for row in result["progress"]], "--", label="on the server")
        records.set_title(f"{result['kind']}: {len(result['events'])} faults (grey)")
        records.set_ylabel("records")
        for name, samples in result["samples"].items():
            at = [sample[0] / 60 for sample in samples]
            memory.plot(at, [sample[1] for sample in samples], label=name)
            descriptors.plot(at, [sample[2] for sample in samples], label=name)
        memory.set_ylabel("resident memory, MB")
        descriptors.set_ylabel("open descriptors")
        descriptors.set_xlabel("minutes")
        for plotted in (records, memory, descriptors):
            plotted.set_ylim(bottom=0)
            plotted.legend(fontsize="small")
        for at, _ in result["events"]:
            records.axvline(at / 60, color="#dddddd", linewidth=0.5, zorder=0)
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    plot(json.loads((RESULTS / "soak.json").read_text())["databases"], RESULTS / "soak.svg")
