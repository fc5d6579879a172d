"""What the pages show, and the metrics."""

import csv
import io
import re
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import httpx
import pytest
from dejavu_service import monitoring
from dejavu_service.pages import rendering
from dejavu_service.services.access import ANYBODY
from dejavu_service.services.transfer import import_lines
from dejavu_service.storage import summaries
from dejavu_service.storage.database import Database
from fastapi import FastAPI
from support.service import (
    RECORDS,
    START,
    config,
    context,
    home,
    lease_wish,
    measurement,
    miss,
    pin,
    post,
    record,
    scenario,
)

from dejavu_cache.model.record import OutputVerdict, Record, Winner, record_set_line

Tokens = Callable[..., dict[str, str]]
PAGE = f"/pages/main/contexts/{context().digest}"
SCENARIO = f"{PAGE}/scenarios/{scenario(1).digest}"


def fill(client: httpx.Client) -> None:
    for name in ("shop.kernels.matmul", "shop.kernels.<script>alert(1)</script>"):
        for device in ("NVIDIA H200", "AMD Instinct MI300X"):
            post(client, record(1), record(64), of=context(name, device))
    client.post("/v1/main/misses", json={"misses": [miss(7)]})


def show(
    client: httpx.Client, path: str, headers: dict[str, str] | None = None, **query: Any
) -> str:
    """Return a page, with each run of spaces as one."""
    answer = client.get(path, params=query, headers=headers)
    assert answer.status_code == 200, answer.text
    return " ".join(answer.text.split())


def test_the_overview_has_kernels_by_devices(client: httpx.Client) -> None:
    assert "No records" in show(client, "/pages/main")
    fill(client)
    page = show(client, "/pages/main")
    for shown in (
        "8 records of 2 kernels; measuring them took <strong>10 s</strong>.",
        "<b>2 of 3</b>",  # the scenario that was missed counts
        "AMD Instinct MI300X",
        context().digest,
        "shop.<wbr>kernels.<wbr>matmul",
    ):
        assert shown in page
    assert "<script" not in page
    assert client.get("/").headers["location"] == "/pages/main"
    for path, kind in (("/style.css", "text/css"), ("/favicon.ico", "image/svg+xml")):
        assert client.get(path).headers["content-type"].startswith(kind)


def test_a_context_shows_scenarios_in_numeric_order_and_loud_pins(client: httpx.Client) -> None:
    post(client, *map(record, (2, 100, 16, 1024)))
    for m, block in ((2, 64), (16, 16)):
        pin(client, block, m)

    def order(**query: Any) -> list[str]:
        return re.findall(r'<tr> <td class="number">(\d+)</td>', show(client, PAGE, **query))

    assert order() == ["2", "16", "100", "1024"]
    assert order(sort="excess")[0] == "2"
    page = show(client, PAGE)
    assert page.count("<b>4096</b>") == 2, "what all scenarios share stands above the table, once"
    assert "<strong>1 pinned config costs 5% or more</strong>" in page
    assert '<td class="number bad">+20.0%</td>' in page
    assert client.get(f"/pages/main/contexts/{'0' * 24}").status_code == 404


def test_many_scenarios_come_in_pages(client: httpx.Client) -> None:
    for start in (0, 40):
        post(client, *(record(m, configs=1) for m in range(start, start + 40)))
    first, second = show(client, PAGE), show(client, PAGE, page=2)
    assert (first.count("/scenarios/"), second.count("/scenarios/")) == (50, 30)
    assert "Page 2 of 2, 80 scenarios" in second


def test_a_kernel_is_shown_across_gpus(client: httpx.Client) -> None:
    post(client, record(1), record(2))
    post(client, record(1), of=context(device="AMD Instinct MI300X"))
    page = show(client, "/pages/main/kernel", name="shop.kernels.matmul")
    assert "2 scenarios over 2 GPUs and Tritons" in page
    assert page.count("not tuned") == 1
    assert '<td class="number">1 of 1</td><td class="number">2 of 2</td>' in page
    assert page.count("not compared") == 3
    won = record(1).winner
    assert won is not None
    compared = won.model_copy(update={"results": {"out": OutputVerdict(outcome="equal")}})
    post(client, Record(scenario=scenario(1), winner=compared))
    page = show(client, "/pages/main/kernel", name="shop.kernels.matmul")
    assert page.count("not compared") == 2
    assert "were <strong>compared</strong> with the default config's" in show(client, SCENARIO)
    assert client.get("/pages/main/kernel", params={"name": "matmul"}).status_code == 404


def test_a_scenario_tells_why_its_config_runs(client: httpx.Client, token: Tokens) -> None:
    admin, reader = token("admin"), token("read")
    post(client, record(1), record(2), headers=admin)
    post(client, record(1, median=0.3), headers=admin)
    post(client, record(1), of=context(device="AMD Instinct MI300X"), headers=admin)
    page = show(client, SCENARIO, reader)
    for shown in (
        "it won when the scenario was tuned on 2026-01-02 03:04 UTC",
        "<strong>Not compared</strong> with the default config's results: all outputs: no",
        "The runner-up, BLOCK_M=32, is 10.0% slower",
        "AMD Instinct MI300X</a></th><td>3.6.0</td> <td>the same</td> <td>the same</td>",
        "<td>ann@h200-1</td>",  # measured, and a token sent
        "An admin of this namespace also sees here",
    ):
        assert shown in page
    assert page.count("no: an earlier one stands") == 3
    assert "a admin (" in show(client, "/pages/main", reader), "who changed it last"
    pin(client, 64, headers=admin)
    page = show(client, SCENARIO, admin)
    assert "<strong>This pin costs 20.0%.</strong>" in page
    assert "<strong>ann</strong> pinned" in page
    assert "--device &#39;NVIDIA H200&#39; --triton 3.6.0 --remove</code>" in page, "only here"
    assert re.search(r"<td>a admin \(\w+\)</td><td>pin BLOCK_M=64", page)
    assert "BLOCK_M=16 was measured 16.7% faster." in page, "and no other is near the best"


@pytest.mark.parametrize("mark", ["\u061c", "\u200b", "\u200e", "\u202e", "\u2069", "\ufeff"])
def test_a_name_neither_turns_the_text_around_it_nor_hides_a_letter(
    client: httpx.Client, mark: str
) -> None:
    of = context(f"shop.kernels.matmul{mark}")
    post(client, record(1), of=of)
    for path in ("/pages/main", f"/pages/main/contexts/{of.digest}"):
        page = client.get(path).text
        assert f"matmul\\u{ord(mark):04x}" in page
        assert mark not in page


def test_times_have_three_digits() -> None:
    shown = {
        0.0005: "0.500 µs", 0.006: "6.00 µs", 0.27: "270 µs", 1.5: "1.50 ms", 0.9996: "1.00 ms",
        123.4: "123 ms", 999.6: "1.00 s", 1234.5: "1.23 s", 86_400_000: "86,400 s",
    }  # fmt: skip
    assert {value: rendering.format_milliseconds(value) for value in shown} == shown


def test_the_worklist(client: httpx.Client) -> None:
    worklist = "/pages/main/misses"
    assert "No program missed a scenario" in show(client, worklist)
    fill(client)
    page = show(client, worklist)
    assert "shop.<wbr>kernels.<wbr>matmul" in page
    assert "<td>nobody</td>" in page
    client.post("/v1/main/leases", json=lease_wish(7, "node7"))
    here = show(client, worklist, device="NVIDIA H200", kernel="shop.kernels.matmul")
    assert "<td>node7 by anybody</td>" in here
    unused = "No program has used NVIDIA B200 here: what is tuned on other GPUs is missing there"
    assert unused in show(client, worklist, device="NVIDIA B200")
    assert "has a record" not in show(client, worklist, kernel="zzz"), "it may be misspelled"


def test_what_is_tuned_elsewhere_is_missing_on_a_new_gpu(client: httpx.Client) -> None:
    """Nobody has asked for it there yet, so that no report of a miss tells."""
    new, old = "NVIDIA B200", "NVIDIA H200"
    for name, there in (("a.whole", 3), ("b.half", 1), ("c.none", 0)):
        tuned = [record(m) for m in range(3)]
        post(client, *tuned, of=context(name, old))
        if there:
            post(client, *tuned[:there], of=context(name, new))
    overview = show(client, "/pages/main", device=new)
    assert re.findall(r"<b>(\d of \d)</b>", overview) == ["3 of 3", "1 of 3", "0 of 3"]
    assert "4 records of 3 kernels on NVIDIA B200;" in overview, "not of all GPUs"
    assert re.findall(r"<b>(\d of \d)</b>", show(client, "/pages/main")).count("0 of 3") == 1
    missing = show(client, "/pages/main/misses", device=new)
    assert re.findall(r'"number">(\d of \d)</td><td class="number"><b>(\d)', missing) == [
        ("0 of 3", "3"),
        ("1 of 3", "2"),
    ]
    assert "<strong>5 scenarios</strong> of 2 kernels are missing here" in missing
    assert "dejavu-cache sweep SUITE</code>" in missing
    complete = show(client, "/pages/main/misses", device=old)
    assert "Nothing is missing on NVIDIA H200" in complete
    searched = show(client, "/pages/main/misses", device=new, kernel="c.none")
    assert re.findall(r">(\d of \d)<", searched) == ["0 of 3"]


def test_the_overview_is_searched_sorted_and_filtered(client: httpx.Client) -> None:
    fill(client)
    post(client, *map(record, range(5)), of=context("z"))

    def rows(**query: str) -> list[str]:
        page = client.get("/pages/main", params=query).text
        return re.findall(r'<th scope="row">.*?<code>(.*?)</code>', page)

    assert len(rows()) == 3
    assert [name[-6:] for name in rows(q="MATMUL")] == ["matmul"]
    assert rows(sort="records")[0] == "z"
    assert rows(sort="missing")[0].endswith("matmul")
    assert len(rows(device="AMD Instinct MI300X")) == 3, "what has nothing there is shown, too"
    assert rows(triton="3.4.0") == []
    assert client.get("/pages/main", params={"sort": "password"}).status_code == 422


def won_by(of: Record, block: int) -> Record:
    """Return a record that another config has won."""
    return of.model_copy(update={"winner": Winner(config=config(block), at=START)})


def test_two_namespaces_are_compared(client: httpx.Client) -> None:
    post(client, record(1), record(2))
    post(client, record(1), of=context("shop.only_in_main"))
    post(client, won_by(record(1), 32), record(9), to="pr-7")
    page = show(client, "/pages/pr-7/compare", to="main")
    for shown in (
        "Of the 2 records in pr-7, main lacks <strong>1</strong>",
        "another config in <strong>1</strong>",
        "they add 1 record and make 1 run the config of pr-7",
        "DEJAVU_CACHE_NAMESPACE=pr-7 dejavu-cache promote --to main</code>",
        "shop.<wbr>only_in_main",
    ):
        assert shown in page
    scenarios = show(client, f"/pages/pr-7/contexts/{context().digest}/compare", to="main")
    assert "1 is only here, 1 only there" in scenarios


def test_a_context_is_compared_with_another_gpu(client: httpx.Client) -> None:
    post(client, record(1), record(2), record(4))
    other = context(device="AMD Instinct MI300X")
    post(client, won_by(record(1, median=0.5), 64), record(4, median=0.05), of=other)
    page = show(client, f"{PAGE}/compare")
    assert "1 scenario takes at least 5% longer here" in page
    assert "1 scenario runs the same config, 1 another one; 1 is only here, 0 only there" in page
    times = "\N{MULTIPLICATION SIGN}"
    ratios = re.findall(r'<td class="number actions( bad)?">([^<]+)</td> </tr>', page)
    assert ratios == [(" bad", f"2.00{times}"), ("", f"0.17{times}"), ("", "\N{EN DASH}")]
    assert client.get(f"{PAGE}/compare?to=nowhere").status_code == 404


def test_pages_stay_small_however_many_names_a_writer_invents(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(51):
        post(client, record(1, configs=1), to=f"pr-{number}")
    listed = show(client, "/namespaces")
    assert (listed.count('scope="row"'), "Page 1 of 2, 51 namespaces" in listed) == (50, True)
    assert 'href="/pages/pr-1"' in listed
    assert show(client, "/namespaces", q="PR-4").count('scope="row"') == 11
    assert "like <strong>pr-x" in show(client, "/namespaces", q="pr-x")
    monkeypatch.setattr(summaries, "MOST_BYTES", 1200)
    fill(client)
    refused = client.get("/pages/main", headers={"Accept": "text/html"})
    assert (refused.status_code, "quarantine list --writers" in refused.text) == (413, True)
    assert client.get("/pages/main/kernel", params={"name": "shop.kernels.matmul"}).is_success
    monkeypatch.setattr(summaries, "MOST_SCENARIOS", 1)
    for path in (PAGE, f"{PAGE}/compare?to=pr-1"):
        assert client.get(path).status_code == 413, path
    client.post("/v1/main/quarantines", json={"host": "ann@h200-1"}).raise_for_status()
    assert client.get("/pages/main").status_code == 200, "what is in quarantine is not loaded"


def test_activity_names_who_wrote_what_an_import_brought_and_what_people_changed(
    client: httpx.Client, token: Tokens, database: Database
) -> None:
    admin, reader, writer = token("admin"), token("read"), token("write")
    post(client, headers=writer)
    brought = record_set_line(context("shop.imported"), [record(1, by="bob@lab-3")])
    lines = io.BytesIO("".join(brought).encode())
    import_lines(database, ANYBODY, "main", lines, lambda: False)
    pin(client, 64, headers=admin)
    page = show(client, "/pages/main/activity", reader)
    assert re.search(r"<td>a write \(\w+\)</td><td>ann@h200-1</td>", page)
    assert "<td>anybody</td><td>bob@lab-3</td> <th scope" in page
    assert "shop.<wbr>imported" in page
    assert "An admin of this namespace sees here" in page
    page = show(client, "/pages/main/activity", admin)
    assert re.search(r"<td>a admin \(\w+\)</td><td>pin</td>", page)
    for named in ("kernels: shop.imported", "measured_by: bob@lab-3", "records: 1"):
        assert named in page, "the log names whose records an import brought"
    assert f'<td><a href="/pages/main/contexts/{context().digest}?sort=excess"><code>shop.' in page
    client.post("/v1/main/quarantines", json={"host": "bob@lab-3"}, headers=admin)
    assert "dejavu-cache quarantine undo " in show(client, "/pages/main/activity", admin)
    for name, shown in (("a admin", True), ("zoe", False), ("A admin", False)):
        page = show(client, "/pages/main/activity", admin, actor=name)
        assert ("<td>pin</td>" in page) == shown, name


def test_what_was_tuned_missed_and_reused_is_counted_by_day(
    client: httpx.Client, app: FastAPI
) -> None:
    fill(client)
    tag = client.get(RECORDS).headers["etag"]
    client.get(f"{RECORDS}/{scenario(1).digest}")
    client.get(RECORDS, headers={"If-None-Match": tag})
    client.get(RECORDS, headers={"If-None-Match": '"an earlier one"'})
    app.state.server.reader.flush()
    # Two fetches, of a kernel whose scenarios cost 3 configs at 0.4 s.
    assert "reuse saved about <strong>2 s" in show(client, "/pages/main")
    page = show(client, "/pages/main/activity", days=7)
    today = f"{datetime.now(timezone.utc):%F}"
    counted = re.findall(r'class="bar".*?<title>([^<]*)</title>', page)
    assert counted == [f"{today}: {number}" for number in (8, 10, 1, 2)]
    assert page.count('class="day"') == 4 * 7


LISTS = {
    "/namespaces": ("namespaces", 2),
    "/pages/main": ("kernels", 4),
    f"{PAGE}": ("scenarios", 2),
    f"{PAGE}/compare?to=pr-1": ("scenarios", 3),
    "/pages/main/kernel?name=shop.kernels.matmul": ("scenarios", 4),
    SCENARIO: ("measurements", 3),
    f"{SCENARIO}?": ("arrivals", 3),
    f"{SCENARIO}?page=1": ("log", 1),
    "/pages/main/misses": ("misses", 1),
    "/pages/main/misses?device=NVIDIA+H200": ("gaps", 1),
    "/pages/main/activity": ("writers", 4),
    "/pages/main/activity?days=14": ("days", 14),
    "/pages/main/activity?actor=anybody": ("log", 1),
    "/pages/main/compare?to=pr-1": ("differences", 4),
}


def test_every_list_is_there_as_csv_and_json(client: httpx.Client) -> None:
    fill(client)
    post(client, to="pr-1")
    client.delete(f"{home(context('x'))}/records")
    pin(client, 16)
    for path, (name, number) in LISTS.items():
        page = client.get(path).text
        path += "&" if "?" in path else "?"
        listed = client.get(f"{path}export={name}.json")
        assert len(listed.json()) == number, path
        assert listed.headers["x-content-type-options"] == "nosniff"
        assert listed.headers["cache-control"] == "private, no-store"
        table = client.get(f"{path}export={name}.csv")
        assert len(list(csv.DictReader(io.StringIO(table.text)))) == number, path
        assert all(f"export={name}.{kind}" in page for kind in ("csv", "json"))
    (missed,) = client.get("/pages/main/misses?export=misses.json").json()
    assert (missed["scenario.M"], missed["at_least"], missed["takes"]) == (7, None, None)
    assert datetime.fromisoformat(missed["last_seen"]).utcoffset() is not None
    assert client.get("/pages/main?export=secrets.json").status_code == 404


def test_no_name_of_a_kernel_is_a_formula(client: httpx.Client) -> None:
    post(client, record(1, by="=cmd()"), of=context("=HYPERLINK(0)"))
    table = client.get("/pages/main?export=kernels.csv").text
    assert next(csv.DictReader(io.StringIO(table)))["kernel"] == "'=HYPERLINK(0)"


def test_a_record_without_timings_is_shown_too(client: httpx.Client) -> None:
    measured = (measurement(config(), None), measurement(config(16), 0.0))
    post(client, Record(scenario=scenario(), measurements=measured))
    assert "no winner yet" in show(client, PAGE)
    assert "No config has won yet" in show(client, SCENARIO)


def test_configs_are_shown_fastest_first_and_then_those_that_failed(client: httpx.Client) -> None:
    medians = {128: None, 64: 0.3, 16: 0.1, 32: 0.101}
    measured = tuple(measurement(config(block), median) for block, median in medians.items())
    post(client, Record(scenario=scenario(), measurements=measured))
    rows = re.findall(r'<th scope="row">BLOCK_M=(\d+)', show(client, SCENARIO))
    assert rows == ["16", "32", "64", "128"]
    assert re.findall(r'<meter[^>]* value="(\d+)"', show(client, SCENARIO)) == ["33", "34", "100"]


def test_metrics_tell_what_there_is(client: httpx.Client) -> None:
    fill(client)
    tag = client.get(RECORDS).headers["etag"]
    client.get(RECORDS, headers={"If-None-Match": tag})
    client.get(f"/v1/main/contexts/{'0' * 24}/records")
    client.post("/v1/main/leases", json=lease_wish())
    text = client.get("/metrics").text
    reads = 'dejavu_requests_total{method="GET",route="/v1/{namespace}/contexts/{context}/records"'
    for line in (
        *(f'{reads},status="{status}"}} 1.0' for status in (200, 304, 404)),
        "dejavu_leases_held 1.0",
        "dejavu_database_up 1.0",
        'dejavu_records{device="NVIDIA H200",kernel="shop.kernels.matmul",namespace="main"} 2.0',
        'dejavu_requests_total{method="POST",route="/v1/{namespace}/records",status="200"} 4.0',
        'dejavu_request_seconds_count{route="/v1/{namespace}/contexts/{context}/records"} 3.0',
    ):
        assert line in text, line


def test_invented_names_make_no_more_metrics(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "_MOST_SERIES", 2)
    for kernel, records in (("a", 1), ("b", 3), ("c", 2), ("d", 1)):
        post(client, *map(record, range(records)), of=context(kernel))
    lines = [line for line in client.get("/metrics").text.splitlines() if "records{" in line]
    assert lines == [
        'dejavu_records{device="NVIDIA H200",kernel="b",namespace="main"} 3.0',
        'dejavu_records{device="NVIDIA H200",kernel="c",namespace="main"} 2.0',
        'dejavu_records{device="(others)",kernel="(others)",namespace="(others)"} 2.0',
    ]
