"""Records with any content, mixed with honest ones: launches run what the kernel declares."""

import itertools
import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.addition import CONFIGS, equal_times, make
from support.kernels import launch
from support.strategies import SCALARS

from dejavu_cache import open_store
from dejavu_cache.model.record import MOST_MEASUREMENTS, Failure, Measurement, Pin, Record, Winner
from dejavu_cache.model.scenario import Config, now
from dejavu_cache.system.notices import whoami
from dejavu_cache.triton_internals.config_names import describe

DECLARED = [describe(config) for config in CONFIGS]
_folders = itertools.count()

CONFIGS_IN_RECORDS = st.sampled_from(DECLARED) | st.builds(
    Config,
    params=st.dictionaries(st.sampled_from(["BLOCK", "ir_override", "x"]), SCALARS, max_size=2),
    options=st.dictionaries(st.sampled_from(["num_warps", "pre_hook", "y"]), SCALARS, max_size=2),
)
MOMENTS = st.datetimes(datetime(2000, 1, 1), datetime(2199, 1, 1), timezones=st.just(timezone.utc))
AUTHORS = st.sampled_from(["", "root@broken-node", "ann@h200-1", whoami()])
TIMES = st.floats(0, 1.7e308) | st.sampled_from([0.0, 5e-324, 1e-9, 0.0006])
TIMINGS = st.builds(
    Measurement,
    config=CONFIGS_IN_RECORDS,
    median=TIMES,
    p20=TIMES,
    p80=TIMES,
    seconds=TIMES,
    at=MOMENTS,
    by=AUTHORS,
)
FAILURES = st.builds(
    Measurement,
    config=CONFIGS_IN_RECORDS,
    failure=st.builds(
        Failure,
        kind=st.sampled_from(
            ["out_of_resources", "compile_error", "ptxas_error", "crash", "skipped", "wrong"]
        ),
        reason=st.text(max_size=20),
    ),
    at=MOMENTS,
    by=AUTHORS,
)
RECORD_FIELDS = st.fixed_dictionaries(
    {
        "measurements": st.lists(
            TIMINGS | FAILURES, max_size=6, unique_by=lambda measurement: measurement.config
        ),
        "winner": st.none() | st.builds(Winner, config=CONFIGS_IN_RECORDS, at=MOMENTS),
        "pin": st.none() | st.builds(Pin, config=st.none() | CONFIGS_IN_RECORDS, at=MOMENTS),
    }
)


def start_process(store: Path, **options: Any) -> Any:
    """Return a kernel as a new process would decorate it."""
    return make(store=store, do_bench=equal_times, check=False, **options)


@settings(
    max_examples=settings().max_examples // 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(hostile=RECORD_FIELDS, mode=st.sampled_from(["tune", "reuse"]))
def test_launches_run_declared_configs_and_other_records_survive(
    tmp_path: Path, hostile: dict[str, Any], mode: str
) -> None:
    folder = tmp_path / str(next(_folders))
    kernel = start_process(folder)
    launch(kernel, 100)
    store = open_store(str(folder))
    (context,) = store.contexts()
    (honest,) = store.records(context)
    scenario = kernel.request(torch.ones(300), torch.ones(300), 300).scenario
    store.put(context, [Record(scenario=scenario, **hostile)])
    for _ in range(2):
        kernel = start_process(folder, mode=mode)
        launch(kernel, 300)
        assert kernel.best_config in CONFIGS
        kernel = start_process(folder, mode=mode)
        launch(kernel, 100)
        assert kernel.best_config in CONFIGS
    found = open_store(str(folder)).get(context, honest.scenario)
    assert found is not None
    assert found.record == honest
    shutil.rmtree(folder)


def test_invented_configs_displace_no_later_measurement(tmp_path: Path) -> None:
    request = start_process(tmp_path).request(torch.ones(100), torch.ones(100), 100)
    yesterday = now() - timedelta(hours=23)
    invented = tuple(
        Measurement(config=Config(params={"x": number}), median=1.0, at=yesterday)
        for number in range(MOST_MEASUREMENTS)
    )
    store = open_store(str(tmp_path))
    store.put(request.context, [Record(scenario=request.scenario, measurements=invented)])
    kernel = start_process(tmp_path)
    launch(kernel, 100)
    (record,) = store.records(request.context)
    assert len(record.measurements) == MOST_MEASUREMENTS
    assert set(DECLARED) <= set(record.by_config)
