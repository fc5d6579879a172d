"""The pages and the metrics."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import httpx
import pytest
from dejavu_service import monitoring, server
from dejavu_service.pages import overview, rendering
from dejavu_service.pages.scenario import timing_bars
from dejavu_service.storage import summaries
from fastapi import FastAPI
from support.service import body, config, context, measurement, record, record_set, scenario

from dejavu_cache.model.record import OutputVerdict, Record
from dejavu_cache.model.scenario import Context


def fill(client: httpx.Client) -> None:
    for name in ("shop.kernels.matmul", "shop.kernels.<script>alert(1)</script>"):
        for device in ("NVIDIA H200", "AMD Instinct MI300X"):
            client.post(
                "/v1/main/records",
                json=body(record_set(record(1), record(64), of=context(name, device))),
            )
    client.post(
        "/v1/main/misses",
        json={"misses": [{"context": body(context()), "scenario": body(scenario(7))}]},
    )


def test_the_overview_has_kernels_by_devices(client: httpx.Client) -> None:
    assert "No records" in client.get("/pages/main").text
    fill(client)
    page = client.get("/pages/main")
    shown = " ".join(page.text.split())
    assert "8 records of 2 kernels; measuring them took <strong>10 s</strong>." in shown
    assert "<b>2 of 3</b>" in shown, "the scenario that was missed counts"
    for shown in (
        "NVIDIA H200",
        "AMD Instinct MI300X",
        context().digest,
        "shop.<wbr>kernels.<wbr>matmul",
    ):
        assert shown in page.text
    assert "<script" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert client.get("/").headers["location"] == "/pages/main"
    assert client.get("/style.css").headers["content-type"].startswith("text/css")


def test_a_context_shows_scenarios_in_numeric_order_and_loud_pins(client: httpx.Client) -> None:
    sizes = (2, 100, 16, 1024)
    client.post("/v1/main/records", json=body(record_set(*map(record, sizes))))
    where = f"contexts/{context().digest}"
    for m, block in ((2, 64), (16, 16)):
        pin = f"/v1/main/{where}/pins/{scenario(m).digest}"
        client.put(pin, json={"config": body(config(block)), "by": "ann"})
    page = client.get(f"/pages/main/{where}").text
    rows = re.findall(r'<tr>\s*<td class="number">(\d+)</td>', page)
    assert rows == ["2", "16", "100", "1024"]
    assert page.count("<b>4096</b>") == 2, "what all scenarios share stands above the table, once"
    shown = " ".join(page.split())
    assert "<strong>1 pinned config costs 5% or more</strong>" in shown
    assert '<td class="number bad">+20.0%</td>' in shown
    assert client.get(f"/pages/main/contexts/{'0' * 24}").status_code == 404
    costly = client.get(f"/pages/main/{where}", params={"sort": "excess"}).text
    assert re.findall(r'<tr>\s*<td class="number">(\d+)</td>', costly)[0] == "2"


def test_a_context_compares_all_configs_with_a_default(client: httpx.Client) -> None:
    client.post("/v1/main/records", json=body(record_set(record(1), record(2))))
    path = f"/pages/main/contexts/{context().digest}"
    page = " ".join(client.get(path, params={"reference": config(64).digest}).text.split())
    assert "Compared with <strong>BLOCK_M=64</strong>: on average 1.20" in page
    assert "-16.7%" in page
    assert "-8.3%" in page


def test_many_scenarios_come_in_pages(client: httpx.Client) -> None:
    for start in (0, 40):
        client.post(
            "/v1/main/records",
            json=body(record_set(*(record(m, configs=1) for m in range(start, start + 40)))),
        )
    path = f"/pages/main/contexts/{context().digest}"
    first, second = client.get(path).text, client.get(f"{path}?page=2").text
    assert first.count("/scenarios/") == 50
    assert "Page 2 of 2" in second
    assert second.count("/scenarios/") == 30


def test_a_kernel_is_shown_across_gpus(client: httpx.Client) -> None:
    client.post("/v1/main/records", json=body(record_set(record(1), record(2))))
    other = record_set(record(1), of=context(device="AMD Instinct MI300X"))
    client.post("/v1/main/records", json=body(other))
    page = client.get("/pages/main/kernel", params={"name": "shop.kernels.matmul"}).text
    shown = " ".join(page.split())
    assert "2 scenarios over 2 GPUs and Tritons" in shown
    assert page.count("not tuned") == 1
    assert '<td class="number">1 of 1</td><td class="number">2 of 2</td>' in shown
    assert page.count("not compared") == 3
    won = record(1).winner
    assert won is not None
    compared = won.model_copy(update={"results": {"out": OutputVerdict(outcome="equal")}})
    client.post(
        "/v1/main/records", json=body(record_set(Record(scenario=scenario(1), winner=compared)))
    )
    page = client.get("/pages/main/kernel", params={"name": "shop.kernels.matmul"}).text
    assert page.count("not compared") == 2
    assert client.get("/pages/main/kernel", params={"name": "matmul"}).status_code == 404


def test_a_scenario_tells_why_its_config_runs(
    client: httpx.Client, token: Callable[..., dict[str, str]]
) -> None:
    admin, reader = token("admin"), token("read")
    client.post("/v1/main/records", json=body(record_set(record(1), record(2))), headers=admin)
    again = body(record_set(record(1, median=0.3)))
    client.post("/v1/main/records", json=again, headers=admin)
    path = f"/pages/main/contexts/{context().digest}/scenarios/{scenario(1).digest}"
    page = " ".join(client.get(path, headers=reader).text.split())
    assert "it won when the scenario was tuned" in page
    assert "Not compared with the default config's results: all outputs: no comparison" in page
    assert "The runner-up, BLOCK_M=32, is 10.0% slower" in page
    assert "M=2" in page, "its neighbour"
    assert page.count("no: an earlier one stands") == 3
    assert "An admin of this namespace also sees here" in page
    pin = f"/v1/main/contexts/{context().digest}/pins/{scenario(1).digest}"
    client.put(pin, json={"config": body(config(64)), "by": "ann"}, headers=admin)
    page = " ".join(client.get(path, headers=admin).text.split())
    assert "<strong>This pin costs 20.0%.</strong>" in page
    assert "<strong>ann</strong> pinned" in page
    assert re.search(r"<td>a admin \(\w+\)</td><td>pin BLOCK_M=64", page)


@pytest.mark.parametrize("mark", ["\u061c", "\u200b", "\u200e", "\u202e", "\u2069", "\ufeff"])
def test_a_name_neither_turns_the_text_around_it_nor_hides_a_letter(
    client: httpx.Client, mark: str
) -> None:
    name = f"shop.kernels.matmul{mark}"
    client.post("/v1/main/records", json=body(record_set(record(1), of=context(name))))
    for path in ("/pages/main", f"/pages/main/contexts/{context(name).digest}"):
        page = client.get(path).text
        assert f"matmul\\u{ord(mark):04x}" in page
        assert mark not in page


def test_times_have_three_digits() -> None:
    shown = {
        0.0005: "0.500 µs",
        0.006: "6.00 µs",
        0.27: "270 µs",
        1.5: "1.50 ms",
        0.9996: "1.00 ms",
        123.4: "123 ms",
        999.6: "1.00 s",
        1234.5: "1.23 s",
        86_400_000: "86,400 s",
    }
    assert {value: rendering.format_milliseconds(value) for value in shown} == shown


def test_the_worklist(client: httpx.Client) -> None:
    assert "No program missed a scenario" in client.get("/pages/main/misses").text
    fill(client)
    page = client.get("/pages/main/misses").text
    assert "shop.<wbr>kernels.<wbr>matmul" in page
    assert "<td>nobody</td>" in page
    lease = {"context": body(context()), "scenario": body(scenario(7)), "holder": "node7", "ttl": 9}
    client.post("/v1/main/leases", json=lease)
    query = {"device": "NVIDIA H200", "kernel": "shop.kernels.matmul"}
    assert "<td>node7 by anybody, now</td>" in client.get("/pages/main/misses", params=query).text
    elsewhere = client.get("/pages/main/misses", params={"device": "NVIDIA B200"}).text
    assert "node7" not in elsewhere
    assert "Nothing is known on NVIDIA B200 that is missing there" in elsewhere
    unknown = client.get("/pages/main/misses", params={"kernel": "zzz"}).text
    assert "has a record" not in unknown, "it may have been misspelled"


def test_what_is_tuned_elsewhere_is_missing_on_a_new_gpu(client: httpx.Client) -> None:
    """Nobody has asked for it there yet, so that no report of a miss tells."""
    new, old = "NVIDIA B200", "NVIDIA H200"
    for name, there in (("a.whole", 3), ("b.half", 1), ("c.none", 0)):
        tuned = [record(m) for m in range(3)]
        client.post("/v1/main/records", json=body(record_set(*tuned, of=context(name, old))))
        if there:
            sent = record_set(*tuned[:there], of=context(name, new))
            client.post("/v1/main/records", json=body(sent))
    overview = client.get("/pages/main", params={"device": new}).text
    assert re.findall(r"<b>(\d of \d)</b>", overview) == ["3 of 3", "1 of 3", "0 of 3"]
    assert "4 records of 3 kernels on NVIDIA B200;" in " ".join(overview.split()), "not of all GPUs"
    everywhere = client.get("/pages/main").text
    assert re.findall(r"<b>(\d of \d)</b>", everywhere).count("0 of 3") == 1
    missing = client.get("/pages/main/misses", params={"device": new}).text
    assert re.findall(r'"number">(\d of \d)</td><td class="number"><b>(\d)', missing) == [
        ("0 of 3", "3"),
        ("1 of 3", "2"),
    ]
    assert "dejavu-cache sweep SUITE</code>" in missing
    complete = client.get("/pages/main/misses", params={"device": old}).text
    assert "Nothing is missing on NVIDIA H200" in complete
    one = client.get("/pages/main/misses", params={"device": new, "kernel": "c.none"}).text
    assert "0 of 3" in one
    assert "1 of 3" not in one


def tuned_again(of: Context) -> Context:
    kernel = of.kernel.model_copy(update={"source": "f" * 16})
    return Context.model_validate(of.model_copy(update={"kernel": kernel}).model_dump())


def test_the_overview_folds_earlier_sources_and_names_who_changed_them(
    client: httpx.Client, token: Callable[..., dict[str, str]]
) -> None:
    ci = token("write")
    client.post("/v1/main/records", json=body(record_set(record(1), record(2))), headers=ci)
    again = record_set(record(1), of=tuned_again(context()))
    client.post("/v1/main/records", json=body(again), headers=ci)
    page = " ".join(client.get("/pages/main", headers=ci).text.split())
    assert "<b>1 of 2</b>" in page
    assert "1 of earlier source" in page
    assert "a write (" in page


def test_the_overview_is_searched_sorted_and_filtered(client: httpx.Client) -> None:
    fill(client)
    client.post("/v1/main/records", json=body(record_set(*map(record, range(5)), of=context("z"))))

    def rows(**query: str) -> list[str]:
        page = client.get("/pages/main", params=query).text
        return re.findall(r'<th scope="row">.*?<code>(.*?)</code>', page)

    assert len(rows()) == 3
    assert [name[-6:] for name in rows(q="MATMUL")] == ["matmul"]
    assert rows(sort="records")[0] == "z"
    assert rows(sort="missing")[0].endswith("matmul")
    assert len(rows(device="AMD Instinct MI300X")) == 3, "what has nothing there is shown, too"
    assert rows(triton="3.4.0") == []
    assert len(rows(days="1")) == 3
    assert client.get("/pages/main", params={"sort": "password"}).status_code == 422


def test_reuse_is_counted_where_a_machine_had_nothing(client: httpx.Client, app: FastAPI) -> None:
    fill(client)
    home = f"/v1/main/contexts/{context().digest}/records"
    tag = client.get(home).headers["etag"]
    client.get(f"{home}/{scenario(1).digest}")
    client.get(home, headers={"If-None-Match": tag})
    client.get(home, headers={"If-None-Match": '"an earlier one"'})
    app.state.server.reader.flush()
    # Two fetches, of a kernel whose scenarios cost 3 configs at 0.4 s.
    assert "reuse saved about <strong>2 s" in " ".join(client.get("/pages/main").text.split())


def test_namespaces_are_searched_and_opened(client: httpx.Client) -> None:
    for number in range(3):
        client.post(f"/v1/pr-{number}/records", json=body(record_set()))
    assert client.get("/namespaces", params={"q": "PR-"}).text.count('scope="row"') == 3
    opened = client.get("/namespaces", params={"open": "pr-1"})
    assert (opened.status_code, opened.headers["location"]) == (303, "/pages/pr-1")
    assert "like <strong>pr-9" in client.get("/namespaces", params={"open": "pr-9"}).text


def test_pages_stay_small_however_many_names_a_writer_invents(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "_MOST_NAMES", 2)
    monkeypatch.setattr(overview, "_MOST_NAMESPACES", 3)
    for number, records in enumerate((1, 3, 2, 1)):
        sent = record_set(*(record(m) for m in range(records)))
        client.post(f"/v1/pr-{number}/records", json=body(sent))
    listed = client.get("/namespaces").text
    assert re.findall(r'<option value="(.*?)"', listed) == ["pr-1", "pr-2"]
    assert listed.count('scope="row"') == 3
    assert "4 namespaces match" in listed
    monkeypatch.setattr(summaries, "MOST_BYTES", 1200)
    fill(client)
    refused = client.get("/pages/main", headers={"Accept": "text/html"})
    assert (refused.status_code, "quarantine list --writers" in refused.text) == (413, True)
    assert client.get("/pages/main/kernel", params={"name": "shop.kernels.matmul"}).is_success
    monkeypatch.setattr(summaries, "MOST_SCENARIOS", 1)
    where = f"/pages/main/contexts/{context().digest}"
    for path in (where, f"{where}/scenarios/{scenario(1).digest}", f"{where}/compare?to=pr-1"):
        assert client.get(path).status_code == 413, path
    client.post("/v1/main/quarantines", json={"host": "ann@h200-1"}).raise_for_status()
    assert client.get("/pages/main").status_code == 200, "what is in quarantine is not loaded"


def test_icons_need_no_token(client: httpx.Client, token: Callable[..., dict[str, str]]) -> None:
    token("admin")
    for path in ("/favicon.svg", "/favicon.ico"):
        assert client.get(path).headers["content-type"] == "image/svg+xml"


def test_activity_names_who_changed_what(
    client: httpx.Client, token: Callable[..., dict[str, str]]
) -> None:
    admin, reader, writer = token("admin"), token("read"), token("write")
    client.post("/v1/main/records", json=body(record_set()), headers=writer)
    pin = f"/v1/main/contexts/{context().digest}/pins/{scenario(1).digest}"
    page = client.get("/pages/main/activity", headers=reader).text
    assert "a write (" in page
    assert "An admin of this namespace sees here" in page
    client.put(pin, json={"config": body(config(64))}, headers=admin)
    page = client.get("/pages/main/activity", headers=admin).text
    assert re.search(r"<td>a admin \(\w+\)</td><td>pin</td>", page)
    for name, shown in (("a admin", True), ("zoe", False), ("A admin", False)):
        page = client.get("/pages/main/activity", params={"actor": name}, headers=admin).text
        assert ("<td>pin</td>" in page) == shown, name
        assert ("<td>a admin (" in page) == shown, "the lists of changes and of tunes agree"


def test_pages_answer_head(client: httpx.Client) -> None:
    for path in ("/pages/main", "/pages/main/misses", "/favicon.ico", "/style.css", "/namespaces"):
        assert client.head(path).status_code == 200, path


def test_configs_are_shown_fastest_first_and_then_those_that_failed() -> None:
    medians = {128: None, 64: 0.3, 16: 0.1, 32: 0.101}
    measured = tuple(measurement(config(block), median) for block, median in medians.items())
    bars = timing_bars(Record(scenario=scenario(), measurements=measured), config(16))
    assert [bar.measurement.median for bar in bars] == [0.1, 0.101, 0.3, None]
    assert [bar.chosen for bar in bars] == [True, False, False, False]
    assert [bar.share for bar in bars] == [33, 34, 100, 0]


def test_a_record_without_timings_is_shown_too(client: httpx.Client) -> None:
    measured = (measurement(config(), None), measurement(config(16), 0.0))
    untimed = Record(scenario=scenario(), measurements=measured)
    client.post("/v1/main/records", json=body(record_set(untimed))).raise_for_status()
    where = f"/pages/main/contexts/{context().digest}"
    assert "no winner yet" in client.get(where).text
    page = client.get(f"{where}/scenarios/{scenario().digest}")
    assert "No config has won yet" in page.text


def test_metrics_tell_what_there_is(client: httpx.Client) -> None:
    fill(client)
    home = f"/v1/main/contexts/{context().digest}/records"
    tag = client.get(home).headers["etag"]
    client.get(home, headers={"If-None-Match": tag})
    client.get(f"/v1/main/contexts/{'0' * 24}/records")
    client.post(
        "/v1/main/leases",
        json={"context": body(context()), "scenario": body(scenario()), "holder": "a", "ttl": 9},
    )
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
        sent = record_set(*map(record, range(records)), of=context(kernel=kernel))
        client.post("/v1/main/records", json=body(sent))
    lines = [line for line in client.get("/metrics").text.splitlines() if "records{" in line]
    assert lines == [
        'dejavu_records{device="NVIDIA H200",kernel="b",namespace="main"} 3.0',
        'dejavu_records{device="NVIDIA H200",kernel="c",namespace="main"} 2.0',
        'dejavu_records{device="(others)",kernel="(others)",namespace="(others)"} 2.0',
    ]


def test_few_pages_are_made_at_a_time(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may take much memory, and threads that programs' requests need."""
    making: list[int] = []
    numbers: list[int] = []
    render = rendering.render

    def render_slowly(template: str, **values: object) -> str:
        making.append(1)
        numbers.append(len(making))
        time.sleep(0.05)
        making.pop()
        return render(template, **values)

    monkeypatch.setattr(server, "LONGEST_WAIT", 60.0)
    monkeypatch.setattr(rendering, "render", render_slowly)
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(client.get, ["/pages/main"] * 20))
    assert {answer.status_code for answer in answers} == {200}
    assert max(numbers) <= 4


def test_a_page_waits_for_others_that_take_long_no_longer_than_its_reader(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, render = threading.Event(), rendering.render

    def render_at_the_end(template: str, **values: object) -> str:
        over.wait(60)
        return render(template, **values)

    monkeypatch.setattr(server, "LONGEST_WAIT", 0.2)
    monkeypatch.setattr(rendering, "render", render_at_the_end)
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(client.get, "/pages/main") for _ in range(8)]
        refused, _ = wait(answers, 30, FIRST_COMPLETED)
        over.set()
        (first, *_) = refused
        assert first.result().status_code == 503
        assert first.result().headers["retry-after"] == "2"
    assert 200 in {answer.result().status_code for answer in answers}
    assert client.get("/pages/main").status_code == 200, "every turn was given back"
