"""A fallback reads scenarios and not records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.addition import CONFIGS, add_one
from support.kernels import launch
from support.records import context

from dejavu_cache import cached_autotune
from dejavu_cache.model.record import Measurement, Record, Winner
from dejavu_cache.model.scenario import Scenario, now
from dejavu_cache.model.selection import distance
from dejavu_cache.runtime.known_records import KnownRecords
from dejavu_cache.stores import MemoryStore, TieredStore, file_layout
from dejavu_cache.triton_internals.config_names import describe


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Count the records that a file store parses."""
    read, cuts = file_layout._read_record, []

    def note(cut: str, where: str) -> Record | None:
        cuts.append(cut)
        return read(cut, where)

    monkeypatch.setattr(file_layout, "_read_record", note)
    return cuts


def make(**options: Any) -> Any:
    options = {"configs": CONFIGS, "key": ["n"], "mode": "reuse", **options}
    return cached_autotune(**options)(add_one)


def fill(store: Path, values: range) -> Any:
    """Record scenarios whose winner is the last config, and return a kernel that reads them."""
    kernel = make(store=store)
    request = kernel.request(*_tensors(), 1)
    best = describe(CONFIGS[2])
    timed = Measurement(config=best, median=1.0, p20=1.0, p80=1.0, at=now())
    dtypes = request.scenario.dtypes
    records = [
        Record(
            scenario=Scenario(args={"n": n}, dtypes=dtypes),
            measurements=(timed,),
            winner=Winner(config=best, at=now()),
        )
        for n in values
    ]
    kernel.home.put(request.context, records)
    return make(store=store)


def _tensors() -> tuple[Any, Any]:
    import torch

    return torch.ones(1), torch.ones(1)


def test_an_untuned_launch_parses_the_nearest_record_only(
    tmp_path: Path, parsed: list[str]
) -> None:
    kernel = fill(tmp_path, range(100, 400))
    parsed.clear()
    launch(kernel, 402)
    assert kernel.best_config is CONFIGS[2]
    assert len(parsed) == 1
    parsed.clear()
    launch(kernel, 5000)  # too far from all of them
    assert kernel.best_config is CONFIGS[0]
    assert parsed == []


def test_scenarios_are_those_of_the_file_as_it_is_now(tmp_path: Path) -> None:
    fill(tmp_path, range(100, 400))
    (path,) = tmp_path.glob("*/*/*/*.json")
    text = path.read_text()
    path.write_text(text.replace('"n": 399', '"n": 777'))  # by hand
    launch(kernel := make(store=tmp_path), 770)
    resolution = kernel.explain(*_tensors(), 770)
    assert (resolution.how, kernel.best_config) == ("nearest", CONFIGS[2])
    assert "777" in str(resolution.differences[0])
    assert kernel.explain(*_tensors(), 777).how == "exact"
    assert kernel.explain(*_tensors(), 399).how == "nearest"


def test_a_near_record_without_a_declared_config_gives_way_to_the_next(tmp_path: Path) -> None:
    fill(tmp_path, range(100, 101))
    kernel = make(store=tmp_path)
    request = kernel.request(*_tensors(), 1)
    scenario = Scenario(args={"n": 110}, dtypes=request.scenario.dtypes)
    kernel.home.put(request.context, [Record(scenario=scenario)])
    launch(kernel, 111)
    assert kernel.best_config is CONFIGS[2]
    assert kernel.explain(*_tensors(), 111).how == "nearest"


@given(st.lists(st.one_of(st.integers(-4, 4), st.floats(-1e9, 1e9)), max_size=8, unique=True))
def test_near_scenarios_differ_in_numbers_alone_and_the_nearest_comes_first(
    values: list[float],
) -> None:
    def scenario(n: float, **others: Any) -> Scenario:
        args = {"causal": True, "kind": 'a "quoted (name', "n": n, **others}
        return Scenario(args=args, dtypes={"x": "float16"})

    store, wanted = MemoryStore(), scenario(3)
    others = [scenario(3, causal=False), scenario(3, kind="b"), scenario(3, extra=1)]
    alike = [scenario(value) for value in values]
    store.put(context(), [Record(scenario=each) for each in [*others, *alike]])
    records = KnownRecords(TieredStore([store]))
    found = list(records.near(context(), wanted))
    expected = sorted(distance(wanted, scenario(value)) for value in values if value >= 0)
    assert [gap for gap, _ in found] == pytest.approx(expected)
    assert all(gap == pytest.approx(distance(wanted, each)) for gap, each in found)
    assert [each for _, each in records.near(context(), wanted, {"n"})] == [
        each for each in alike if each == wanted
    ]
    assert all(gap <= 1.0 for gap, _ in records.near(context(), wanted, max_distance=1.0))
