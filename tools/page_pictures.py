"""Pictures of the server's pages for the documentation, and an audit of them by axe-core.

    python tools/page_pictures.py [--axe axe.min.js] [--all FOLDER]

The records are those of an H200 that the package ships, sent to a server of this program's own; a
second GPU, a pull request and what is missing are made up. Without `--all`, it writes what
docs/pages.md shows into docs/pictures.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from dejavu_service.services import misses, records, tokens  # noqa: E402
from dejavu_service.services.access import ANYBODY, Principal  # noqa: E402
from dejavu_service.storage import schema  # noqa: E402
from dejavu_service.storage.database import Database  # noqa: E402
from support.browser import Browser, open_browser  # noqa: E402
from support.service import running_server  # noqa: E402

from dejavu_cache.model.record import Record, RecordSet, Winner  # noqa: E402
from dejavu_cache.model.scenario import Context  # noqa: E402
from dejavu_cache.stores import FileStore  # noqa: E402

SHIPPED = ROOT / "dejavu_cache/attention/records"
CI = Principal("ci of attention", {"*": "admin"})
ANNA = Principal("anna", {"*": "admin"})
WIDTHS = (390, 1280, 1920)


def main() -> None:
    """Take the pictures, or all of them, and audit the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--axe", type=Path, help="axe.min.js of axe-core, to audit each page with")
    parser.add_argument("--all", type=Path, help="take every page in all widths and schemes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/server.sqlite3"
        database = Database(url)
        schema.upgrade(database)
        pages = fill(database)
        token = tokens.issue(database, ANYBODY, "anna", "admin", ["*"], None).token
        database.close()
        with running_server(url, Path(folder) / "log") as server, open_browser() as browser:
            browser.open(f"{server.base}/login")
            browser.fill("#token", token)
            browser.click("main button")
            if arguments.all:
                take_all(browser, server.base, pages, arguments.all)
            else:
                take_for_documentation(browser, server.base, pages)
            if arguments.axe:
                audit(browser, server.base, pages, arguments.axe.read_text())
            assert browser.complaints == [], browser.complaints


def fill(database: Database) -> dict[str, str]:
    """Fill a database, and return the paths of the pages by the name of their picture."""
    source = FileStore(SHIPPED)
    contexts = list(source.contexts())
    for context in contexts:
        tuned = tuple(source.records(context))
        send(database, CI, "main", context, tuned)
        others = [
            change_winner(record) if index % 5 == 0 else record
            for index, record in enumerate(tuned)
        ]
        send(database, CI, "main", on_another_gpu(context), others[: len(tuned) * 2 // 3])
        for number, record in enumerate(tuned[len(tuned) * 2 // 3 :]):
            missed = [(on_another_gpu(context), record.scenario, 40 - number % 40)]
            misses.count_misses(database, CI, "main", missed, 10)
        send(database, CI, "pr-7", context, [change_winner(record) for record in tuned[::9]])
    context = next(item for item in contexts if item.kernel.name.endswith("qblock_kernel"))
    record = next(iter(source.records(context)))
    slow = max(record.measurements, key=lambda measured: measured.median or 0)
    scenario = record.scenario.digest
    records.set_pin(database, ANNA, "main", context.digest, scenario, slow.config, "")
    home = f"/pages/main/contexts/{context.digest}"
    other = on_another_gpu(context).digest
    return {
        "tuning": "/pages/main?sort=tuning",
        "missing": "/pages/main/misses?device=Example+GPU",
        "kernel": f"/pages/main/kernel?name={context.kernel.name}",
        "context": home,
        "scenario": f"{home}/scenarios/{scenario}",
        "compare": f"{home}/compare?other={other}",
        "promote": "/pages/pr-7/compare?to=main",
        "activity": "/pages/main/activity",
        "sweep": "/pages/main/misses",
        "namespaces": "/namespaces",
        "tokens": "/tokens",
        "error": "/pages/main/contexts/000000000000000000000000",
    }


def send(database: Database, by: Principal, namespace: str, context: Context, sent: Any) -> None:
    """Send records as somebody."""
    records.post_records(
        database, by, namespace, RecordSet(context=context, records=tuple(sent)), 10_000
    )


def on_another_gpu(context: Context) -> Context:
    """Return a context on a GPU that does not exist."""
    values = context.model_dump()
    values["environment"]["device"] |= {"name": "Example GPU", "units": 100}
    return Context.model_validate(values)


def change_winner(record: Record) -> Record:
    """Return a record that its second fastest config has won."""
    timed = sorted(
        (measured for measured in record.measurements if measured.median),
        key=lambda measured: measured.median or 0,
    )
    if record.winner is None or len(timed) < 2:
        return record
    winner = Winner(config=timed[1].config, at=record.winner.at)
    return record.model_copy(update={"winner": winner})


DOCUMENTED = ("tuning", "missing", "scenario", "compare", "promote", "activity", "sweep")


def take_for_documentation(browser: Browser, base: str, pages: dict[str, str]) -> None:
    """Take the pictures that docs/pages.md shows."""
    folder = ROOT / "docs/pictures"
    folder.mkdir(exist_ok=True)
    browser.show(1100)
    for name in DOCUMENTED:
        browser.open(base + pages[name])
        browser.picture(folder / f"{name}.png", 700)


def take_all(browser: Browser, base: str, pages: dict[str, str], folder: Path) -> None:
    """Take every page in all widths and schemes, and print those that are too wide."""
    folder.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        for dark in (False, True):
            browser.show(width, dark=dark)
            for name, path in pages.items():
                browser.open(base + path)
                needed = browser.run("document.documentElement.scrollWidth")
                if needed > width:
                    print(f"{name}: {needed} pixels wide in a window of {width}")
                scheme = "dark" if dark else "light"
                browser.picture(folder / f"{name}-{width}-{scheme}.png", 2000)
    browser.complaints[:] = [text for text in browser.complaints if "404" not in text]


def audit(browser: Browser, base: str, pages: dict[str, str], axe: str) -> None:
    """Print what axe-core calls serious or critical."""
    for dark in (False, True):
        browser.show(1280, dark=dark)
        for name, path in {**pages, "login": "/login"}.items():
            browser.open(base + path)
            browser.run(f"{axe}; 0")
            found = json.loads(browser.run("axe.run().then(r => JSON.stringify(r.violations))"))
            for violation in found:
                where = [node["target"] for node in violation["nodes"][:3]]
                print(name, dark, violation["impact"], violation["id"], where)
    print("audited by axe-core", browser.run("axe.version"))
    browser.complaints[:] = [text for text in browser.complaints if "404" not in text]


if __name__ == "__main__":
    main()
