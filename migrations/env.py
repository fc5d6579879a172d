"""Runs the migrations: inside the transaction that `dejavu_service.storage.schema` opened, or on its own for `alembic`."""

from __future__ import annotations

from alembic import context
from dejavu_service.settings import read_settings
from dejavu_service.storage.database import Database
from dejavu_service.storage.tables import metadata
from sqlalchemy import Connection


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    _run(given)
else:
    database = Database(
        context.config.get_main_option("sqlalchemy.url") or read_settings().database
    )
    with database.write() as opened:
        _run(opened)
    database.close()
