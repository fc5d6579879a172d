"""Contexts and records with made-up timings, and databases full of them."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime, timedelta, timezone
from typing import Any

from dejavu_service.storage import contexts as stored_contexts
from dejavu_service.storage.database import Database
from dejavu_service.storage.tables import contexts, parts, records
from sqlalchemy import Connection, insert, select

from dejavu_cache.model.record import Measurement, Record, Winner
from dejavu_cache.model.scenario import (
    Config,
    Context,
    Device,
    Environment,
    Kernel,
    Problem,
    Scenario,
    canonical_json,
)

CONFIGS = 12
"""Measured configs of a record, unless another number is asked for."""

RECORDS_PER_CONTEXT = 100
CONTEXTS_PER_TRANSACTION = 1000

_START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def make_context(
    kernel: str,
    keys: tuple[str, ...] = ("M", "N", "K"),
    device: str = "NVIDIA H200",
    triton: str = "3.6.0",
) -> Context:
    """Return a context of a kernel with key arguments, on a GPU."""
    gpu = Device(name=device, arch="sm_90", units=132, memory_gib=140)
    return Context(
        kernel=Kernel(name=kernel, source="0123456789abcdef"),
        environment=Environment(device=gpu, triton=triton, codegen="ptxas 12.8"),
        problem=Problem(keys=keys, method="events-cold"),
    )


def make_record(m: int, configs: int = CONFIGS) -> Record:
    """Return a record of the scenario M = `m` with a number of measured configs."""
    declared = [
        Config(
            params={"BLOCK_M": 16 << (index % 4), "BLOCK_N": 32 << (index // 4)},
            options={"num_warps": 4},
        )
        for index in range(configs)
    ]
    measured = []
    for index, config in enumerate(declared):
        median = round(0.01 + 0.0137 * ((m * 31 + index * 17) % 97), 6)
        timing = {"median": median, "p20": round(median * 0.98, 6), "p80": round(median * 1.03, 6)}
        at = _START + timedelta(seconds=m * 60 + index)
        measured.append(
            Measurement(config=config, **timing, at=at, by="tuner@h200-1", seconds=0.41)
        )
    scenario = Scenario(
        args={"M": m, "N": 4096, "K": 4096}, dtypes={"a_ptr": "float16", "b_ptr": "float16"}
    )
    return Record(
        scenario=scenario,
        winner=Winner(config=declared[0], at=_START),
        measurements=tuple(measured),
    )


def fill(database: Database, size: int) -> None:
    """Write `size` small records straight into the tables, 100 to a context.

    The first context's rows are sent to the database, which then copies them for all others.
    """
    number_of_contexts = size // RECORDS_PER_CONTEXT
    model = None
    for start in range(0, number_of_contexts, CONTEXTS_PER_TRANSACTION):
        end = min(start + CONTEXTS_PER_TRANSACTION, number_of_contexts)
        made = [make_context(f"fleet.kernel{index}") for index in range(start, end)]
        with database.write() as connection:
            ids = sorted(stored_contexts.ensure(connection, "main", made).values())
            if model is None:
                model = ids.pop(0)
                _insert_rows(connection, model)
            _copy_rows(connection, model, ids)
            connection.execute(contexts.update().values(records=RECORDS_PER_CONTEXT))
    _finish(database)


def _insert_rows(connection: Connection, context_id: int) -> None:
    """Insert the rows of one context: records of one config, and the measurement of each."""
    sample = make_record(0, configs=1)
    record_rows: list[dict[str, Any]] = []
    part_rows: list[dict[str, Any]] = []
    for m in range(RECORDS_PER_CONTEXT):
        scenario = Scenario(args={"M": m, "N": 4096}, dtypes={"a_ptr": "float16"})
        text = canonical_json(sample.model_copy(update={"scenario": scenario}))
        record_rows.append(record_row(context_id, scenario, text))
        part_rows.append(
            {
                "context_id": context_id,
                "scenario": scenario.digest,
                "kind": "measurement",
                "config": "0" * 24,
                "digest": "0" * 64,
                "text": canonical_json(sample.measurements[0]),
                "stands": True,
                "sender": "",
                "measured_by": "",
                "received_at": 0.0,
            }
        )
    connection.execute(insert(records), record_rows)
    connection.execute(insert(parts), part_rows)


def record_row(context_id: int, scenario: Scenario, text: str) -> dict[str, Any]:
    """Return the row of a record that is given as JSON."""
    return {
        "context_id": context_id,
        "scenario": scenario.digest,
        "scenario_text": scenario.text,
        "text": text,
        "pinned": False,
        "promoted": False,
        "changed_at": 0.0,
    }


def _copy_rows(connection: Connection, model: int, ids: list[int]) -> None:
    """Copy all rows of the context with the id `model` to the contexts with other ids."""
    for table in (records, parts):
        columns = [column for column in table.c if column.name not in ("id", "context_id")]
        pairs = contexts.join(table, table.c.context_id == model)
        copies = select(contexts.c.id, *columns).select_from(pairs).where(contexts.c.id.in_(ids))
        names = ["context_id", *(column.name for column in columns)]
        connection.execute(insert(table).from_select(names, copies))


def _finish(database: Database) -> None:
    """Do the maintenance that a database otherwise does while it is being measured."""
    statements = (
        ["PRAGMA wal_checkpoint(TRUNCATE)", "ANALYZE"]
        if database.is_sqlite
        else ["VACUUM ANALYZE", "CHECKPOINT"]
    )
    with closing(database.engine.raw_connection()) as connection:
        for statement in statements:  # outside of a transaction, which SQLAlchemy would begin
            connection.cursor().execute(statement)
