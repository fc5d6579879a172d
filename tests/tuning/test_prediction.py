"""Configs that records and measurements make unlikely to win are left out, and nothing else."""

from __future__ import annotations

import ctypes
import importlib
import math
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dejavu_cache.model.record import Measurement, Record, Resources
from dejavu_cache.model.scenario import Config, Device, Environment, Scenario, now
from dejavu_cache.prediction.features import Point
from dejavu_cache.prediction.slowdown_model import SlowdownModel, expect_saving, one_thread
from dejavu_cache.tuning.search import PredictedSearch

CONFIGS = [
    Config(params={"BM": m, "BN": n, "BK": k}, options={"num_warps": w})
    for m, n, k, w in product((16, 32, 64, 128), (16, 32, 64, 128), (16, 32, 64), (2, 4, 8))
]
SIZES = [2**power for power in range(6, 14)]
HERE = Environment(
    device=Device(name="GPU", arch="sm_90", units=132, memory_gib=80), triton="3.6", codegen="ptxas"
)
THERE = HERE.model_copy(update={"device": HERE.device.model_copy(update={"name": "other GPU"})})


def time_of(config: Config, m: int, n: int) -> float:
    """Milliseconds of a made-up product on a GPU of 132 units."""
    sizes: dict[str, Any] = {**config.params, **config.options}
    bm, bn, bk, warps = map(int, sizes.values())
    programs = math.ceil(m / bm) * math.ceil(n / bn)
    waves = math.ceil(programs / 132)
    stall = 1 + abs(math.log2(bm * bn / 512) - math.log2(warps)) / 8
    return waves * bm * bn * (1 / bm + 1 / bn + 0.01) * stall * (1 + 4 / bk)


def record_of(m: int, n: int, times: Mapping[Config, float] | None = None) -> Record:
    times = times or {config: time_of(config, m, n) for config in CONFIGS}
    return Record(
        scenario=Scenario(args={"M": m, "N": n}),
        measurements=tuple(Measurement(config=c, median=t, at=now()) for c, t in times.items()),
    )


def search(
    times: Mapping[Config, float],
    records: Sequence[tuple[Environment, Record]] = (),
    loss: float = 0.01,
) -> list[Config]:
    """Return the configs that a search measures of a scenario of 1024 x 2048."""
    scenario = Scenario(args={"M": 1024, "N": 2048})
    model = SlowdownModel(HERE, scenario, dict.fromkeys(times), records)
    chosen, measured = PredictedSearch(model, [CONFIGS[0]], len(times), loss), list[Config]()
    while batch := chosen.ask():
        measured += batch
        chosen.tell(Measurement(config=c, median=times[c], at=now()) for c in batch)
    return measured


def loss_of(times: Mapping[Config, float], measured: Sequence[Config]) -> float:
    return min(times[config] for config in measured) / min(times.values()) - 1


TRUE = {config: time_of(config, 1024, 2048) for config in CONFIGS}
NEIGHBOURS = [(HERE, record_of(m, n)) for m, n in product((512, 1024, 4096), (512, 1024, 4096))]


@pytest.mark.parametrize(
    ("records", "most"),
    [([], 60), (NEIGHBOURS, 28), ([(THERE, record_of(1024, 2048))], 16)],
    ids=["nothing", "other scenarios", "another GPU"],
)
def test_what_is_known_spares_measurements(
    records: list[tuple[Environment, Record]], most: int
) -> None:
    measured = search(TRUE, records)
    assert measured[0] == CONFIGS[0], "the default"
    assert len({*measured}) == len(measured) <= most
    assert loss_of(TRUE, measured) <= 0.01


def test_no_loss_measures_all() -> None:
    assert {*search(TRUE, NEIGHBOURS, loss=0)} == {*CONFIGS}


@pytest.mark.parametrize("are_reversed", [False, True], ids=["shuffled", "reversed"])
def test_records_that_are_wrong_cost_measurements_and_no_speed(are_reversed: bool) -> None:
    drawn, wrong = random.Random(0), []
    for m, n in product((512, 1024, 4096), (512, 1024, 4096)):
        times = [time_of(config, m, n) for config in CONFIGS]
        times = [1 / time for time in times] if are_reversed else drawn.sample(times, len(times))
        wrong.append((HERE, record_of(m, n, dict(zip(CONFIGS, times, strict=True)))))
    assert loss_of(TRUE, search(TRUE, wrong)) <= 0.01


def test_what_runs_without_a_measurement_is_rarely_slower_than_the_default() -> None:
    drawn, ratios = random.Random(0), list[float]()
    for _ in range(6):
        records = [(HERE, record_of(*map(drawn.choice, (SIZES[2:], SIZES)))) for _ in range(8)]
        for m, n in product(SIZES[2::2], SIZES[2::2]):
            configs, scenario = drawn.sample(CONFIGS, 9), Scenario(args={"M": m, "N": n})
            model = SlowdownModel(HERE, scenario, dict.fromkeys(configs), records, unmeasured=True)
            for config, gain in filter(None, [model.outdo(configs[0], configs[1:7])]):
                assert (0 < gain < 1, config in configs[1:7]) == (True, True)
                ratios.append(time_of(config, m, n) / time_of(configs[0], m, n))
    assert len(ratios) > 20
    assert statistics.fmean(ratios) < 0.75
    assert sum(ratio > 1.02 for ratio in ratios) <= len(ratios) / 10


def test_what_a_tune_saves_is_predicted_by_the_times_of_other_scenarios() -> None:
    asked, ratios = Point(HERE, Scenario(args={"M": 1024, "N": 2048}), CONFIGS[0], 0), []
    for config, time in [*TRUE.items()][::3]:
        saving = expect_saving(asked._replace(config=config), dict.fromkeys(TRUE, 0), NEIGHBOURS)
        saved = time - min(TRUE.values())
        assert saving is not None
        assert saving.at_least <= saved
        ratios += [saving.expected / saved] if saved else []
    assert 0.7 < statistics.median(ratios) < 1.3
    assert expect_saving(asked._replace(config=Config(params={"BM": 1})), {}, NEIGHBOURS) is None


def test_numpy_has_one_thread_for_a_model_and_then_all_again(monkeypatch: Any) -> None:
    count = ctypes.CDLL(np.linalg._umath_linalg.__file__).scipy_openblas_get_num_threads64_
    counts = [count()]
    with one_thread():
        counts.append(count())
    assert counts == [count(), 1]
    monkeypatch.delattr(np.linalg, "_umath_linalg")  # as where NumPy is linked into the program
    monkeypatch.delitem(sys.modules, one_thread.__module__)
    importlib.import_module(one_thread.__module__)


def test_where_nothing_is_known_the_default_is_not_outdone() -> None:
    model = SlowdownModel(HERE, Scenario(args={"M": 64, "N": 64}), dict.fromkeys(CONFIGS), [])
    assert model.outdo(CONFIGS[0], CONFIGS) is None


NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([5e-324, 1.7e308, 0, True, "text", None]),
)
COUNTS = st.integers(0, 2**31 - 1)
REPORTS = st.builds(
    Resources, programs=st.integers(0, 2**63 - 1), registers=COUNTS, spills=COUNTS, shared=COUNTS
)


@given(st.data())
def test_no_record_makes_a_prediction_fail(data: st.DataObject) -> None:
    """Whoever may write records could otherwise end the programs that read them."""
    draw = data.draw
    configs = [Config(params={"B": draw(NUMBERS)}, options={"num_warps": n}) for n in (0, 1, 2)]
    sizes = range(draw(st.integers(1, 5)))
    scenarios = [Scenario(args={"n": draw(NUMBERS), "m": size}) for size in sizes]
    known = []
    for scenario in scenarios[1:]:
        reports = draw(st.lists(st.none() | REPORTS, min_size=1, max_size=3))
        medians = draw(st.lists(st.floats(0, 1e300), min_size=3, max_size=3))
        timings = tuple(
            Measurement(config=config, median=median, at=now(), resources=report, seconds=1e308)
            for config, median, report in zip(configs, medians, reports, strict=False)
        )
        known.append((HERE, Record(scenario=scenario, measurements=timings)))
    programs = draw(st.sampled_from([None, 0, 1, 2**40]))
    model = SlowdownModel(HERE, scenarios[0], dict.fromkeys(configs, programs), known)
    model.outdo(configs[0], configs)
    asked = Point(HERE, scenarios[0], configs[0], programs)
    saving = dict(expect_saving(asked, dict.fromkeys(configs[1:], 1), known) or ())
    assert all(map(math.isfinite, saving.values()))
    chosen = PredictedSearch(model, configs[:1], 3, 0.01)
    while batch := chosen.ask():
        chosen.tell(Measurement(config=config, median=2.0, at=now()) for config in batch)
    assert 0 <= model.chance_left(0.01) <= 1


@pytest.mark.parametrize(("which", "time"), [(max, 1e-9), (min, 1e4)], ids=["short", "hiccup"])
def test_a_timing_that_is_not_believed_says_nothing(which: Any, time: float) -> None:
    scenario, times = record_of(1024, 2048).scenario, {c: time_of(c, 1024, 1024) for c in CONFIGS}
    gains = []
    for known in (times, times | {which(times, key=times.__getitem__): time}):
        record = record_of(1024, 1024, known)
        model = SlowdownModel(HERE, scenario, dict.fromkeys(CONFIGS), [(HERE, record)])
        gains.append(model.gains_over(CONFIGS[0])[0])
    assert gains[1] == pytest.approx(gains[0], abs=0.05)
