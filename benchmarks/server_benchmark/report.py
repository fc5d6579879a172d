"""Results as a Markdown page."""

from __future__ import annotations

from typing import Any

from .made_up_records import CONFIGS
from .reads import CONNECTIONS, RECORDS


def make_report(result: dict[str, Any]) -> str:
    """Return the page: for each database, a table with a row for each read."""
    lines = ["# The server's speed", ""]
    lines += [f"- {name}: {value}" for name, value in result["machine"].items()]
    lines += [
        f"- the context that is read has {RECORDS} records of {CONFIGS} configs; a token on every "
        "request",
        "- the bare endpoint is Starlette under the same uvicorn, sending the same compressed "
        "bytes, measured in the same rounds; its figures are in brackets",
        "- medians over the rounds; the goals are a ratio of 0.6, a p99 under 50 ms, and 300 MiB",
    ]
    for kind, measured in result["databases"].items():
        lines += ["", f"## {kind}, {measured['records']:,} records", ""]
        lines += [
            "| read | connections | requests/s | ratio | processor time, µs | ratio | p99, ms |",
            "|---|---|---|---|---|---|---|",
        ]
        for connections in map(str, CONNECTIONS):
            for name, row in measured[connections].items():
                lines.append(
                    f"| {name} | {connections} | {row['rate']:,.0f} ({row['bare_rate']:,.0f}) "
                    f"| {row['ratio']} | {row['cpu_us']} ({row['bare_cpu_us']}) "
                    f"| {row['cpu_ratio']} | {row['p99_ms']} ({row['bare_p99_ms']}) |"
                )
        lines += [
            "",
            f"{measured['writes_per_second']} records written per second, each in a request of its "
            f"own; {measured['peak_memory_mb']} MiB resident at most; load average before: "
            f"{measured['load_before']}.",
        ]
    return "\n".join(lines) + "\n"
