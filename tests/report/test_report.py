"""The report: one page that says what the records say, and asks nobody for anything."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support import synthetic_matmul
from support.processes import dejavu
from support.records import MOMENT, config, context, measurement, record

from dejavu_cache.heuristics.fit import SlowdownTable, fit
from dejavu_cache.model.record import (
    Failure,
    Measurement,
    OutputVerdict,
    Record,
    RecordSet,
    Winner,
)
from dejavu_cache.model.scenario import Scenario
from dejavu_cache.report.page import render, tree_rule
from dejavu_cache.stores import FileStore


class Page(HTMLParser):
    """What a reader sees: text, what is shown under the pointer, and what the page would load."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.feed(html)
        self.svgs = [
            ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL)
        ]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [
            value or ""
            for name, value in attrs
            if name in ("src", "href", "data", "action", "srcset")
        ]

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())

    @property
    def text(self) -> str:
        return " ".join(" ".join(filter(None, self.texts)).split())

    def plot(self, about: str) -> list[str]:
        """Return the texts of the first picture whose description begins with `about`."""
        svg = next(
            element for element in self.svgs if element.get("aria-label", "").startswith(about)
        )
        return [text for element in svg.iter() if (text := element.text)]


def on(*scenarios: Record, **changes: str) -> RecordSet:
    return RecordSet(context=context(**changes), records=scenarios)


def page(*wholes: RecordSet, default: dict[str, str] | None = None, fitted: bool = False) -> Page:
    trees = [fit(record_set) for record_set in wholes] if fitted else []
    return Page(render(wholes, trees, default or {}, "file:///here"))


FEW = on(
    record(16, measurement(32, 1.0), measurement(64, 2.0)),
    record(32, measurement(32, 3.0), measurement(64, 2.0)),
    record(64, measurement(32, 2.0), measurement(64, 1.0)),
)


def test_it_asks_nobody_for_anything_and_runs_nothing() -> None:
    report = page(synthetic_matmul.sweep(synthetic_matmul.scenarios()[:40]), fitted=True)
    assert [address for address in report.loads if not address.startswith("#")] == []
    assert "script" not in report.tags
    assert "url(" not in report.text


def test_what_scrolls_can_be_reached_by_keyboard() -> None:
    html = render([FEW], [], {}, "file:///here")
    scrolling = re.findall(r'<div class="scroll"[^>]*>', html)
    assert len(scrolling) >= 3
    assert all('tabindex="0"' in tag and "aria-label=" in tag for tag in scrolling)


def test_the_cost_of_the_default_is_that_of_the_measurements() -> None:
    """64 costs 2x in the first scenario and 1x in the others; 32 costs 1x, 1.5x and 2x."""
    report = page(FEW, default={"BLOCK": "64"})
    assert "default 1.33x 2.00x" in report.text
    assert "one config for all 1.33x 2.00x" in report.text
    other = page(FEW, default={"BLOCK": "32"})
    assert "default 1.50x 2.00x" in other.text


def test_scenarios_without_a_winner_are_counted() -> None:
    assert "3 of the scenarios have no winner yet" in page(FEW).text


def test_winners_stand_where_their_scenarios_are() -> None:
    texts = page(FEW).plot("Winners of pkg.kernels.add where")
    assert [text for text in texts if text in ("A", "B")] == ["B", "A", "A"]
    assert texts[-1] == "M"
    assert "(M=16, N=64; x_ptr: float16): BLOCK=32, 1 ms" in texts


def test_configs_are_counted_by_wins_and_by_how_often_they_are_close() -> None:
    close = on(record(16, measurement(32, 1.0), measurement(64, 1.04)), *FEW.records[1:])
    texts = page(close).plot("Winners of pkg.kernels.add, counted")
    assert texts.index("BLOCK=64") < texts.index("BLOCK=32")
    assert {"2 / 3", "1 / 1"} <= set(texts)


def test_coverage_shows_the_holes() -> None:
    record_set = synthetic_matmul.sweep(
        [
            scenario
            for scenario in synthetic_matmul.scenarios()
            if (scenario.args["M"], scenario.args["N"]) != (64, 256)
        ]
    )
    report = page(record_set)
    assert len(report.plot("Tuned scenarios")) == 24 * 2 + 5 + 5 + 2
    assert "(64, 256)" not in report.text
    assert "M=64, N=256" not in " ".join(report.plot("Tuned scenarios"))


def test_failures_and_gaps_are_told() -> None:
    failed = Measurement(
        config=config(128), failure=Failure(kind="out_of_resources", reason="no"), at=MOMENT
    )
    report = page(
        on(
            record(16, measurement(32), measurement(64), failed),
            record(32, measurement(32), measurement(64)),
        )
    )
    assert "5 measurements: 4 timed, 1 failed (out of resources: 1), 1 not measured" in report.text


def test_a_default_that_cannot_run_somewhere_is_told_so() -> None:
    failed = Measurement(
        config=config(64), failure=Failure(kind="out_of_resources", reason="no"), at=MOMENT
    )
    record_set = on(record(16, measurement(32), failed, measurement(128)), *FEW.records[1:])
    report = page(record_set, default={"BLOCK": "64"})
    assert "default: 1.00x on average, 1.00x at worst, cannot run in 1" in report.text


def test_a_tree_is_judged_here_and_by_what_was_held_out() -> None:
    report = page(synthetic_matmul.sweep(synthetic_matmul.scenarios()), fitted=True)
    assert re.search(
        r"decision tree 5 configs; held out: 1\.01x on average, 1\.0\dx at worst 1\.0\dx 1\.0\dx",
        report.text,
    )
    assert "No decision tree is here" in page(FEW).text


def test_two_gpus_are_compared_both_ways() -> None:
    """64 is best everywhere on the second GPU; 32, the first's winner at M=16, costs 3x there."""
    second = on(
        record(16, measurement(32, 3.0), measurement(64, 1.0)),
        record(32, measurement(32, 9.0), measurement(64, 1.0)),
        device="NVIDIA L4",
    )
    report = page(FEW, second)
    assert (
        "NVIDIA H200 1.00x 2.00x on average, 3.00x at worst same winner in 1 of 2 scenarios (50%)"
        in report.text
    )
    assert (
        "NVIDIA L4 1.50x on average, 2.00x at worst same winner in 1 of 2 scenarios (50%) 1.00x"
        in report.text
    )
    assert "winners of NVIDIA L4 on NVIDIA H200" in report.text


def test_two_triton_versions_are_compared_too_but_never_two_methods() -> None:
    assert "Triton 3.9.0" in page(FEW, on(*FEW.records, triton="3.9.0")).text
    warm = FEW.context.problem.model_copy(update={"method": "cudagraph-warm"})
    other = type(FEW.context)(
        kernel=FEW.context.kernel, environment=FEW.context.environment, problem=warm
    )
    assert (
        "between environments" not in page(FEW, RecordSet(context=other, records=FEW.records)).text
    )


def test_names_from_records_are_text_and_nothing_else() -> None:
    evil = "<script>alert(1)</script>&'\" \u202e turned"
    scenario = Scenario(args={evil: evil}, dtypes={"x": evil})
    records = [
        Record(scenario=scenario, measurements=(measurement(32), measurement(64))),
        Record(scenario=Scenario(args={evil: 1}), measurements=(measurement(32), measurement(64))),
    ]
    report = page(on(*records, kernel=evil, device=evil), on(*records, kernel=evil, device="other"))
    assert "script" not in report.tags
    assert evil.replace("\u202e", r"\u202e") in report.text, "nothing turns the text around it"


def test_a_tree_costs_what_a_launch_pays_where_its_first_choice_is_pruned() -> None:
    """32 is best wherever it is measured; where it is not, a launch runs 64."""
    times = measurement(32, 1.0), measurement(64, 2.0), measurement(128, 4.0)
    compared = {"out_ptr": OutputVerdict(outcome="equal")}
    winner = Winner(config=config(32), at=MOMENT, results=compared)
    records = [record(2**m, *times, winner=winner) for m in range(11)]
    other = winner.model_copy(update={"config": config(64)})
    pruned = record(2**11, *times[1:], winner=other)
    costs = SlowdownTable.of([*records, pruned])
    tree = fit(on(*records, pruned), leaves=1)
    assert tree.rank({"M": 2**11, "N": 64, "x_ptr": "float16"})[0] == config(32)
    chosen = tree_rule(costs, tree)
    assert (chosen.failed, chosen.worst) == (0, 1.0)


@pytest.mark.parametrize(
    "record_set",
    [
        on(record(16)),
        on(record(16, measurement(32, 0.0), measurement(64, 0.0))),
        on(
            record(
                16,
                Measurement(
                    config=config(1), failure=Failure(kind="compile_error", reason=""), at=MOMENT
                ),
            )
        ),
        on(Record(scenario=Scenario(), measurements=(measurement(32), measurement(64)))),
        on(Record(scenario=Scenario(args={"n": None}))),
        on(*(record(m, measurement(32, m), measurement(64, 1e6 - m)) for m in range(1, 400, 7))),
    ],
    ids=["one config", "no time", "nothing runs", "no inputs", "nothing measured", "many values"],
)
def test_odd_records_make_a_page_too(record_set: RecordSet) -> None:
    assert "pkg.kernels.add" in page(record_set).text


def test_the_command_writes_the_page_and_names_bad_input(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    store.put(FEW.context, FEW.records)
    out = dejavu(
        "report", "--store", store.root, "--to", tmp_path / "page.html", "--default", "BLOCK=64"
    )
    assert (out.returncode, "3 scenarios in 1 environment" in out.stdout) == (0, True)
    assert "default 1.33x 2.00x" in Page((tmp_path / "page.html").read_text()).text
    bad = dejavu(
        "report", "--store", store.root, "--to", tmp_path / "bad.html", "--default", "BLOCK=7"
    )
    assert (bad.returncode, "no measured config has these values" in bad.stderr) == (2, True)
    for nowhere in (tmp_path / "no" / "page.html", tmp_path):
        bad = dejavu("report", "--store", store.root, "--to", nowhere)
        assert (bad.returncode, f"{nowhere} cannot be written" in bad.stderr) == (3, True)
        assert "Traceback" not in bad.stderr
    (tmp_path / "nothing").mkdir()
    empty = dejavu("report", "--store", tmp_path / "nothing", "--to", tmp_path / "empty.html")
    assert (empty.returncode, "holds no records" in empty.stderr) == (1, True)
    assert not (tmp_path / "empty.html").exists()
