"""What stands in for a missing record costs little to find, and this GPU has timed it."""

from itertools import count, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.addition import CONFIGS, add_one
from support.kernels import launch
from support.records import config, context, measurement, record, tuned_record

from dejavu_cache import cached_autotune
from dejavu_cache.model.record import Failure, Measurement, Record
from dejavu_cache.model.scenario import Scenario, now
from dejavu_cache.model.selection import distance
from dejavu_cache.runtime import known_records
from dejavu_cache.runtime.known_records import KnownRecords
from dejavu_cache.stores import FileStore, MemoryStore, TieredStore, file_layout, open_patiently
from dejavu_cache.triton_internals.config_names import describe

TENSORS = torch.ones(1), torch.ones(1)


def make(store: Any) -> Any:
    return cached_autotune(CONFIGS, ["n"], store=store, mode="reuse")(add_one)


def record_sizes(store: Path, *sizes: int, times: Any = (3.0, 2.0, 1.0), **differing: Any) -> None:
    """Record configs' medians for some sizes, maybe in an environment that differs."""
    request = make(store).request(*TENSORS, 1)
    environment = request.context.environment
    if "device" in differing:
        differing["device"] = environment.device.model_copy(update=differing["device"])
    environment = environment.model_copy(update=differing)
    recorded = request.context.model_copy(update={"environment": environment})
    medians = zip(map(describe, CONFIGS), times, strict=True)
    timed = [Measurement(config=config, median=median, at=now()) for config, median in medians]
    scenarios = (Scenario(args={"n": n}, dtypes=request.scenario.dtypes) for n in sizes)
    FileStore(store).put(recorded, [tuned_record(scenario, timed) for scenario in scenarios])


def note_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Any:
    """Return a list that grows by each call of a function."""
    noted = create_autospec(function := getattr(owner, name), side_effect=function)
    monkeypatch.setattr(owner, name, noted)
    return noted.mock_calls


def test_an_untuned_launch_parses_a_few_near_records_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_sizes(tmp_path, *range(100, 400))
    kernel = make(tmp_path)
    parsed = note_calls(monkeypatch, file_layout, "_read_record")
    launch(kernel, 402)
    assert (kernel.best_config, len(parsed)) == (CONFIGS[2], known_records.NEAR_A_LAUNCH)


def test_scenarios_are_those_of_the_file_as_it_is_now(tmp_path: Path) -> None:
    record_sizes(tmp_path, *range(100, 400))
    (path,) = tmp_path.glob("*/*/*/*.json")
    path.write_text(path.read_text().replace('"n": 399', '"n": 777'))  # by hand
    launch(kernel := make(tmp_path), 770)
    resolution = kernel.explain(*TENSORS, 770)
    assert (resolution.how, kernel.best_config) == ("predicted", CONFIGS[2])
    assert "777" in str(resolution.differences[0])
    assert kernel.explain(*TENSORS, 777).how == "exact"
    assert kernel.explain(*TENSORS, 399).how == "predicted"


def test_a_near_record_without_a_declared_config_gives_way_to_the_next(tmp_path: Path) -> None:
    record_sizes(tmp_path, 100)
    kernel = make(tmp_path)
    request = kernel.request(*TENSORS, 1)
    scenario = Scenario(args={"n": 110}, dtypes=request.scenario.dtypes)
    kernel.home.put(request.context, [Record(scenario=scenario)])
    launch(kernel, 111)
    assert kernel.best_config is CONFIGS[2]
    assert kernel.explain(*TENSORS, 111).how == "predicted"


@given(st.lists(st.one_of(st.integers(-4, 4), st.floats(-1e9, 1e9)), max_size=8, unique=True))
def test_near_scenarios_differ_in_numbers_alone_nearest_first(values: list[float]) -> None:
    def scenario(n: float, **others: Any) -> Scenario:
        args = {"causal": True, "kind": 'a "quoted (name', "n": n, **others}
        return Scenario(args=args, dtypes={"x": "float16"})

    store, wanted = MemoryStore(), scenario(3)
    others = [scenario(3, causal=False), scenario(3, kind="b"), scenario(3, extra=1)]
    alike = [scenario(value) for value in values]
    store.put(context(), [Record(scenario=each) for each in [*others, *alike]])
    records = KnownRecords(TieredStore([store]))
    expected = sorted(distance(wanted, scenario(value)) for value in values if value >= 0)
    assert [gap for gap, _ in records.near(context(), wanted)] == pytest.approx(expected)
    exact = [each for _, each in records.near(context(), wanted, {"n"})]
    assert exact == [each for each in alike if each == wanted]


def test_an_argument_that_varies_more_decides_no_more() -> None:
    store, sizes = MemoryStore(), product((16, 32), (1, 2**11, 2**14, 2**20))
    store.put(context(), [Record(scenario=Scenario(args={"m": m, "n": n})) for m, n in sizes])
    near = KnownRecords(TieredStore([store])).near(context(), Scenario(args={"m": 16, "n": 2**10}))
    assert [each.args["m"] for _, each in near] == [16] * 4 + [32] * 4


OTHER_GPU = {"device": {"name": "A sibling"}}
OTHER_TRITON = {"triton": "0.0.1"}


@pytest.mark.parametrize(
    ("differing", "how"),
    [
        (OTHER_TRITON, "predicted"),
        (OTHER_GPU, "default"),
        ({**OTHER_GPU, **OTHER_TRITON}, "default"),
        ({**OTHER_TRITON, "variables": {"TRITON_X": "1"}}, "default"),
        ({"variables": {"TRITON_PTXAS_PATH": "ptxas 1234"}}, "predicted"),
    ],
)
def test_another_tritons_record_stands_in_labelled_and_another_gpus_never(
    tmp_path: Path, differing: dict[str, Any], how: str
) -> None:
    record_sizes(tmp_path, 100, **differing)
    launch(kernel := make(tmp_path), 100)
    resolution = kernel.explain(*TENSORS, 100)
    assert resolution.how == how
    assert kernel.best_config is (CONFIGS[0] if how == "default" else CONFIGS[2])
    assert how == "default" or {d.field[:12] for d in resolution.differences} == {"environment."}


@pytest.mark.parametrize(("arch", "n"), [({}, 105), ({"arch": "older"}, 200)])
def test_a_siblings_winner_runs_if_timed_here(tmp_path: Path, arch: Any, n: int) -> None:
    for name in ("A sibling", "Another one", "A third"):
        record_sizes(tmp_path, *range(100, 110), device={"name": name, **arch})
    record_sizes(tmp_path, 200, times=(3.0, 1.0, 2.0))
    launch(kernel := make(tmp_path), 105)
    resolution = kernel.explain(*TENSORS, 105)
    assert (resolution.recorded_for.args["n"], kernel.best_config) == (n, CONFIGS[1 if arch else 2])
    assert any("device" in each.field for each in resolution.differences) is not bool(arch)


def test_a_slow_server_holds_no_launch_up_by_naming_many_contexts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in range(9):
        record_sizes(tmp_path, 100, triton=f"2.{version}")
    monkeypatch.setattr(FileStore, "wait", property(lambda _: 0.4))
    monkeypatch.setattr(known_records, "time", SimpleNamespace(monotonic=count(0, 0.05).__next__))
    asked = note_calls(monkeypatch, FileStore, "scenario_texts")
    launch(make(open_patiently(str(tmp_path))), 100)
    assert 1 < len(asked) < 9


def test_no_launch_uses_a_remote_store_that_does_not_say_how_long_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FileStore, "remote", True)
    launch(kernel := make(tmp_path), 100)
    assert tmp_path.as_uri() not in kernel.home.url
    assert f"no launch uses {tmp_path.as_uri()}" in caplog.text


def test_later_launches_do_not_list_the_contexts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_sizes(tmp_path, 100, **OTHER_GPU)
    kernel = make(tmp_path)
    listed = note_calls(monkeypatch, FileStore, "contexts")
    launch(kernel, 100)
    first = [*listed]
    launch(kernel, 200)
    assert listed == first != []


def test_a_tuned_scenario_is_not_forgotten_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process believes its own measurements, however many it has made."""
    monkeypatch.setattr(known_records, "MOST_SCENARIOS", 2)
    records = KnownRecords(TieredStore([MemoryStore()]))
    for m, block in ((16, 32), (32, 32), (32, 64)):
        records.findings(context(), record(m).scenario).add_trials([measurement(block)])
    assert {*records.findings(context(), record(32).scenario).trials} == {config(32), config(64)}


@pytest.mark.parametrize(
    ("size", "kind"), [(105, "wrong"), (105, "crash"), (105, "out_of_resources"), (10**6, "wrong")]
)
def test_a_config_does_not_run_that_failed_here_or_was_wrong_nearby(
    tmp_path: Path, size: int, kind: Any
) -> None:
    record_sizes(tmp_path, 103, 107)
    request = (kernel := make(tmp_path)).request(*TENSORS, size)
    failure = Failure(kind=kind, reason="seen by another process")
    failed = Measurement(config=describe(CONFIGS[2]), failure=failure, at=now())
    both = failed, Measurement(config=describe(CONFIGS[0]), median=3.0, at=now())
    kernel.home.put(request.context, [Record(scenario=request.scenario, measurements=both)])
    launch(kernel, 105)
    assert kernel.best_config is not CONFIGS[2]
