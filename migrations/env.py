"""Alembic environment of the migrations.

`dejavu_service.storage.schema` passes the connection of its transaction; the command `alembic`
passes none, and a transaction on the configured database is opened here.
"""

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


connection = context.config.attributes.get("connection")
if connection is not None:
    _run(connection)
else:
    database = Database(
        context.config.get_main_option("sqlalchemy.url") or read_settings().database
    )
    with database.write() as opened:
        _run(opened)
    database.close()
