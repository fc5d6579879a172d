"""Pictures of the server's pages for the documentation, and an audit of them by axe-core.

    python tools/page_pictures.py [--axe axe.min.js] [--all FOLDER]

The records are made up: of 24 kernels on three GPUs, the third of which lacks 13,040 scenarios.
Without `--all`, it writes what docs/pages.md shows into docs/pictures.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import random
import sys
import tempfile
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path

from sqlalchemy import insert, select, update

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from dejavu_service.services import misses, records, tokens, transfer  # noqa: E402
from dejavu_service.services.access import ANYBODY, Principal  # noqa: E402
from dejavu_service.storage import schema  # noqa: E402
from dejavu_service.storage.database import Database  # noqa: E402
from dejavu_service.storage.tables import contexts, days, leases, parts  # noqa: E402
from dejavu_service.storage.tables import records as stored  # noqa: E402
from support.browser import Browser, open_browser  # noqa: E402
from support.service import call_on, running_server  # noqa: E402

from dejavu_cache.model.record import (  # noqa: E402
    Failure,
    Measurement,
    OutputVerdict,
    Record,
    RecordSet,
    Winner,
    record_set_line,
)
from dejavu_cache.model.scenario import (  # noqa: E402
    Config,
    Context,
    Device,
    Environment,
    Kernel,
    Problem,
    Scenario,
)
from dejavu_cache.model.worth import MissCount, Saving  # noqa: E402

CI = Principal("ci of serving (5a1f)", {"*": "admin"})
ANNA = Principal("anna (b2c4)", {"*": "admin"})
H100, H200, B200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA B200"
KERNELS = [
    f"serving.{part}.{name}"
    for part, names in {
        "attention.kernels": "prefill decode segmented merge_states rope_and_cache mla_decode",
        "experts.kernels": "fused_moe align_blocks topk_softmax grouped_matmul silu_mul permute",
        "quantised.kernels": "fp8_matmul int4_matmul scale_blocks quantise_rows dequantise pack",
        "norms.kernels": "rms_norm layer_norm add_rms_norm softmax gelu_mul cross_entropy",
    }.items()
    for name in names.split()
]
SCENARIOS, ON_NEW_GPU, KERNELS_ON_NEW_GPU = 625, 200, 10
NOW = datetime.now(timezone.utc)
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
        token = tokens.issue(database, ANYBODY, "anna", {"*": "admin"}).token
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
    for number, name in enumerate(KERNELS):
        for device, triton in ((H100, "3.6.0"), (H200, "3.6.0"), (H200, "3.7.0")):
            send(database, CI, "main", make_context(name, device, triton), range(SCENARIOS))
        on_new_gpu = make_context(name, B200, "3.6.0")
        if number < KERNELS_ON_NEW_GPU:
            send(database, CI, "main", on_new_gpu, range(ON_NEW_GPU))
        if number < 4:
            missed = [(on_new_gpu, make_scenario(m), count_of(m)) for m in range(400, 440)]
            misses.count_misses(database, CI, "main", missed)
        send(database, CI, "pr-7", make_context(name, H100, "3.6.0"), range(0, 625, 5), shift=1)
    wanted = make_context(KERNELS[3], B200, "3.6.0")
    with database.write() as connection:
        for m in (425, 437):
            lease = {
                "namespace": "main", "context": wanted.digest, "scenario": make_scenario(m).digest,
                "id": f"{m:032}", "holder": "runner-4 pid 311", "owner": CI.name,
                "expires_at": NOW.timestamp() + 3600,
            }  # fmt: skip
            connection.execute(insert(leases).values(lease))
    decode = make_context(KERNELS[1], H100, "3.6.0")
    imported = [make_record(decode, m, by="bob@lab-3") for m in range(625, 665)]
    lines = io.BytesIO("".join(record_set_line(decode, imported)).encode())
    transfer.import_lines(database, ANNA, "main", lines, lambda: False)
    scenario = make_scenario(100)
    record = make_record(decode, 100)
    slow = max(record.measurements, key=lambda measured: measured.median or 0)
    call = call_on(database)._replace(principal=ANNA)
    choice = records.PinRequest(config=slow.config)
    records.put_pin("main", decode.digest, scenario.digest, choice, call)
    spread_over_weeks(database)
    home = f"/pages/main/contexts/{decode.digest}"
    other = make_context(KERNELS[1], H200, "3.6.0").digest
    return {
        "saved": "/pages/main?sort=saved",
        "tuning": "/pages/main?sort=seconds",
        "new-gpu": f"/pages/main?device={B200}",
        "missing": f"/pages/main/misses?device={B200}",
        "kernel": f"/pages/main/kernel?name={KERNELS[1]}",
        "context": home,
        "scenario": f"{home}/scenarios/{scenario.digest}",
        "compare": f"{home}/compare?other={other}",
        "promote": "/pages/pr-7/compare?to=main",
        "activity": "/pages/main/activity",
        "sweep": "/pages/main/misses",
        "namespaces": "/namespaces",
        "error": "/pages/main/contexts/000000000000000000000000",
    }


def make_context(kernel: str, device: str, triton: str) -> Context:
    """Return a context of a kernel."""
    return Context(
        kernel=Kernel(name=kernel, source="0123456789abcdef" * 4),
        environment=Environment(
            device=Device(name=device, arch="sm_90", units=132, memory_gib=140),
            triton=triton,
            codegen="ptxas 12.8",
        ),
        problem=Problem(keys=("M", "N", "K"), method="events-cold"),
    )


def count_of(number: int) -> MissCount:
    """Return how often the scenario of a number was missed; every third is worth nobody knows."""
    saving = Saving(expected=number % 7 / 3, at_least=number % 7 / 5, takes=0.5 + number % 5)
    return MissCount(50 * (30 - number % 23), saving if number % 3 else None)


def make_scenario(number: int) -> Scenario:
    """Return the scenario of a number."""
    return Scenario(
        args={
            "M": 16 * (number // 16 + 1),
            "N": 2 ** (number % 16 // 4 + 10),
            "K": 128 << number % 4,
        },
        dtypes={"x_ptr": "bf16", "w_ptr": "fp8e4nv"},
    )


def make_record(context: Context, number: int, shift: int = 0, by: str = "ci@runner-4") -> Record:
    """Return a record with times that grow with the sizes, and one failure in some."""
    draw = random.Random(f"{context.kernel.name} {context.environment.device.name} {number // 7}")
    best, base = draw.randrange(4), 0.004 * (number + 20) * draw.uniform(0.9, 1.1)
    measured = []
    for index in range(4):
        options = {"num_warps": 4 if index < 2 else 8, "num_stages": 3}
        config = Config(params={"BLOCK_M": 32 << index, "BLOCK_N": 64}, options=options)
        if index == 3 and best != 3 and number % 9 == 0:
            reason = "shared memory: 295 KiB of 227 KiB"
            failure = Failure(kind="out_of_resources", reason=reason)
            measured.append(Measurement(config=config, failure=failure, at=NOW, by=by))
            continue
        median = base * (1 + 0.11 * abs(index - (best + shift) % 4) + draw.uniform(0, 0.01))
        quantiles = {"median": median, "p20": median * 0.98, "p80": median * 1.03}
        measured.append(Measurement(config=config, **quantiles, at=NOW, by=by, seconds=0.4))
    winner = min(measured, key=lambda item: item.median or 1e9).config
    return Record(
        scenario=make_scenario(number),
        winner=Winner(config=winner, at=NOW, results={"out": OutputVerdict(outcome="equal")}),
        measurements=tuple(measured),
    )


def send(
    database: Database,
    by: Principal,
    namespace: str,
    context: Context,
    numbers: Iterable[int],
    shift: int = 0,
) -> None:
    """Send records as somebody."""
    made = tuple(make_record(context, number, shift) for number in numbers)
    with database.write() as connection:
        sent = RecordSet(context=context, records=made)
        records.merge_record_set(connection, by, namespace, sent)


def spread_over_weeks(database: Database) -> None:
    """Date what was sent back, as if kernels had been tuned one after the other for four weeks."""
    draw = random.Random(7)
    with database.write() as connection:
        rows = connection.execute(select(contexts.c.id, contexts.c.device)).all()
        for identity, device in rows:
            age = draw.uniform(0, 3) if device == B200 else draw.uniform(2, 26)
            moment = (NOW - timedelta(age)).timestamp()
            connection.execute(
                update(contexts)
                .where(contexts.c.id == identity)
                .values(changed_at=moment, fetches=draw.randrange(4000))
            )
            connection.execute(
                update(stored).where(stored.c.context_id == identity).values(changed_at=moment)
            )
            connection.execute(
                update(parts)
                .where(parts.c.context_id == identity, parts.c.sender == CI.name)
                .values(received_at=moment)
            )
        today = int(NOW.timestamp() // 86400)
        counted = [
            {
                "namespace": "main",
                "day": today - back,
                "missed": draw.randrange(20, 90) * (6 if back < 3 else 1),
                "reused": draw.randrange(150, 420) * ((today - back + 3) % 7 < 5),
            }
            for back in range(1, 28)
        ]
        connection.execute(insert(days), counted)


DOCUMENTED = ("missing", "activity", "scenario", "compare", "sweep", "saved")


def take_for_documentation(browser: Browser, base: str, pages: dict[str, str]) -> None:
    """Take the pictures that docs/pages.md shows."""
    folder = ROOT / "docs/pictures"
    folder.mkdir(exist_ok=True)
    browser.show(1100)
    for name in DOCUMENTED:
        browser.open(base + pages[name])
        take_picture(browser, folder / f"{name}.png", 590)


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
                take_picture(browser, folder / f"{name}-{width}-{scheme}.png", 2000)
    browser.complaints[:] = [text for text in browser.complaints if "404" not in text]


def take_picture(browser: Browser, file: Path, most: int) -> None:
    """Write a picture of the page as PNG, at most so many pixels high."""
    height = min(int(browser.run("document.documentElement.scrollHeight")), most)
    width = int(browser.run("document.documentElement.clientWidth"))
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    answer = browser.send("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
    file.write_bytes(base64.b64decode(answer["data"]))


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
