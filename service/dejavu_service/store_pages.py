"""The server's pages for the records of any store: on this machine, for reading alone."""

import re
import socket
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import typer

from dejavu_cache.errors import StoreError
from dejavu_cache.stores import Store, TieredStore, open_patiently, tiers_of
from dejavu_cache.system.safe_files import open_named_file

from .app import make_server
from .pages import rendering
from .pages.overview import OverviewFilter, overview
from .services import tokens
from .services.access import ANYBODY, EVERYWHERE, READER
from .services.records import merge_record_set
from .settings import ServerSettings
from .storage import contexts, schema
from .storage.database import Database

_NAMESPACE = "main"
_DEAD_LINK = re.compile(r' href="[/?][^"]*"')


def serve_pages(url: str, port: int) -> None:
    """Serve the pages of a store, or of the user's own, until a signal; open a browser.

    Raises:
        StoreError: The store has no records, or cannot be read.
    """
    with _open_copy(url) as database, socket.create_server(("127.0.0.1", port)) as listener:
        # Whoever has no token may read once there is one, and nobody knows this one.
        tokens.issue(database, ANYBODY, "pages", {EVERYWHERE: "read"})
        server = make_server(ServerSettings(database=str(database.url), open_read=True))
        rendering.environment.globals["is_copy"] = True
        page = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        typer.echo(f"{page} shows {url or 'your records'} until Ctrl-C")
        sys.stdout.flush()
        # The socket listens already, and a browser in this terminal ends only when it is closed.
        threading.Thread(target=webbrowser.open, args=(page,), daemon=True).start()
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listener])


def write_overview(url: str, output: Path) -> None:
    """Write the overview of a store's kernels as one file that loads nothing from elsewhere.

    Raises:
        StoreError: The store has no records, or cannot be read.
    """
    with _open_copy(url) as database:
        wanted = OverviewFilter()
        seen = overview(database, READER, _NAMESPACE, wanted, size=sys.maxsize)
    named = url or "the user's own store"
    style = (rendering.FOLDER / "style.css").read_text()
    page = rendering.render("overview.html", namespace=named, style=style, wanted=wanted, **seen)
    with open_named_file(output) as file:
        file.write(_DEAD_LINK.sub("", page).encode())


@contextmanager
def _open_copy(url: str) -> Iterator[Database]:
    """Copy a store's records into the database of a temporary folder."""
    with TemporaryDirectory(prefix="dejavu-pages-") as folder:
        database = Database(f"sqlite:///{folder}/records.sqlite3")
        try:
            schema.upgrade(database)
            with TieredStore(tiers_of(open_patiently(url)), strict=True) as source:
                _copy(source, database)
            yield database
        finally:
            database.close()


def _copy(source: Store, database: Database) -> None:
    total = 0
    for found in source.record_sets():
        total += len(found.records)
        moments = (part.at.timestamp() for record in found.records for part in record.measurements)
        with database.write() as connection:
            merge_record_set(connection, ANYBODY, _NAMESPACE, found)
            contexts.date_back(connection, _NAMESPACE, found.context, max(moments, default=0))
    if not total:
        raise StoreError(f"{source.url} has no records: name a folder or a server that has some")
