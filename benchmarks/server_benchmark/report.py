"""Results as a Markdown page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .database_sizes import WORKLOADS
from .load_generator import CONNECTIONS
from .made_up_records import CONFIGS

__all__ = ["make_report"]


class Row(NamedTuple):
    """One row of the table: its title, and its cell from the results on one database."""

    title: str
    cell: Callable[[dict[str, Any]], object]


def make_report(result: dict[str, Any]) -> str:
    """Return the page: a table with a column per database, and the plans of the queries."""
    databases = result["databases"]
    lines = ["# The server's speed", ""]
    lines += [f"- {name}: {value}" for name, value in result["machine"].items()]
    lines += [
        f"- a bulk read is 100 records of {CONFIGS} configs; {CONNECTIONS} connections; "
        "a token on every request",
        "- the bare endpoint is FastAPI under the same uvicorn, sending the same compressed bytes",
        "",
        "| | " + " | ".join(databases) + " |",
        "|---|" + "---|" * len(databases),
    ]
    for row in (*_bulk_read_rows(), *_load_rows(), *_database_size_rows(databases)):
        cells = [_cell(row, on_database) for on_database in databases.values()]
        lines.append(f"| {row.title} | " + " | ".join(cells) + " |")
    for kind, on_database in databases.items():
        for query, plan in on_database.get("scale", {}).get("plans", {}).items():
            lines += ["", f"{kind}, {query}:", "", "```", *plan, "```"]
    return "\n".join(lines) + "\n"


def _cell(row: Row, on_database: dict[str, Any]) -> str:
    try:
        return str(row.cell(on_database))
    except KeyError:
        return "not measured"


def _bulk_read_rows() -> list[Row]:
    return [
        Row("bare endpoint, requests/s", lambda result: result["requests_per_second"]["bare"]),
        Row("bulk read, requests/s", lambda result: result["requests_per_second"]["full"]),
        Row(
            "bulk read over bare (at least 0.5)",
            lambda result: _format_ratio(result["full_over_bare"]),
        ),
        Row(
            "unchanged, 304, requests/s",
            lambda result: result["requests_per_second"]["unchanged"],
        ),
        Row(
            "unchanged over bare (at least 0.8)",
            lambda result: _format_ratio(result["unchanged_over_bare"]),
        ),
        Row(
            "bare endpoint of one record, requests/s",
            lambda result: result["requests_per_second"]["bare_record"],
        ),
        Row(
            "one record by its key, requests/s",
            lambda result: result["requests_per_second"]["record"],
        ),
        Row(
            "one record over bare (at least 0.6)",
            lambda result: _format_ratio(result["record_over_bare"]),
        ),
        *_half_load_rows("full", "half load", " (under 10)"),
        *_half_load_rows("bare", "the bare endpoint at half its load", ""),
        Row(
            "1,000 records, first / next ms (under 150)",
            lambda result: "{first_ms} / {next_ms}".format(**result["thousand_records"]),
        ),
        Row("peak memory, MB (under 250)", lambda result: result["peak_memory_mb"]),
    ]


def _half_load_rows(key: str, title: str, limit: str) -> list[Row]:
    def format_rounds(result: dict[str, Any], name: str) -> str:
        half = result["half_load"][key]
        return f"{half[name]} (rounds: {', '.join(map(str, half[f'{name}_rounds']))})"

    return [
        Row(
            f"{title}, median / p99 ms",
            lambda result: "{median_ms} / {p99_ms}".format(**result["half_load"][key]),
        ),
        Row(f"{title}, p99 over median{limit}", lambda result: format_rounds(result, "ratio")),
        Row(
            f"{title}, ready to run without a core, ms in a round",
            lambda result: format_rounds(result, "coreless_ms"),
        ),
    ]


def _load_rows() -> list[Row]:
    return [
        Row(
            f"load average before `{part}`, other work included",
            lambda result, key=f"load_before_{part}": result[key],  # type: ignore[misc]
        )
        for part in ("compare", "scale")
    ]


def _database_size_rows(databases: dict[str, Any]) -> list[Row]:
    measured = [result["scale"] for result in databases.values() if "scale" in result]
    if not measured:
        return []
    rows = []
    for size in [name for name in measured[0] if name[0].isdigit()]:
        for name in WORKLOADS:
            title = f"{size} records: {name.replace('_', ' ')}/s"
            rows.append(_database_size_row(title, size, f"{name}_per_second"))
        rows.append(_database_size_row(f"{size} records: peak memory, MB", size, "peak_memory_mb"))
    for name in WORKLOADS:
        rows.append(
            Row(
                f"{name.replace('_', ' ')}, large over small (at least 0.8)",
                lambda result, key=f"{name}_large_over_small": _format_ratio(  # type: ignore[misc]
                    result["scale"][key]
                ),
            )
        )
    return rows


def _database_size_row(title: str, size: str, key: str) -> Row:
    return Row(title, lambda result: result["scale"][size][key])


def _format_ratio(ratio: dict[str, float]) -> str:
    return "{median} (rounds: {least} to {most})".format(**ratio)
