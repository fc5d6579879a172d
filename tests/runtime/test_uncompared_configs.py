"""A recorded config that was not the tune's winner runs only once its results were compared."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from support import copying
from support.copying import DEFAULT, RIGHT, WRONG
from support.records import first_record

import dejavu_cache
from dejavu_cache import Pow2, ScenarioNotTuned
from dejavu_cache.model.record import Failure, Measurement, Pin, Record
from dejavu_cache.model.scenario import Scenario, now
from dejavu_cache.settings import current_settings
from dejavu_cache.triton_internals.config_names import describe

TIMES = (3.0, 1.0, 2.0)


def decorate(folder: Path, configs: list[triton.Config], **options: Any) -> Any:
    return copying.decorate(folder, configs, *TIMES, buckets={"n": Pow2()}, **options)


def launch(kernel: Any, n: int) -> None:
    assert copying.launch(kernel, n), kernel.best_config


def explain(kernel: Any) -> tuple[str, dict[str, Any]]:
    found = copying.explain(kernel)
    return found.how, found.config.kwargs


def failing_hook(error: BaseException, at: int) -> Callable[[Any], None]:
    """Return a hook that raises an error at one of the launches of its config."""
    launches = count(1)

    def fail(arguments: Any) -> None:
        if next(launches) == at:
            raise error

    return fail


def test_the_runner_up_of_a_winner_that_the_author_removes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = decorate(tmp_path, [DEFAULT, RIGHT, WRONG])
    launch(kernel, 100)
    assert kernel.best_config.kwargs == RIGHT.kwargs
    edited = decorate(tmp_path, [DEFAULT, WRONG])
    launch(edited, 100)
    assert edited.best_config.kwargs == DEFAULT.kwargs
    assert edited.benchmarked == 0
    assert "is fast but wrong" in caplog.text


def test_the_runner_up_of_a_winner_that_pruning_leaves_out(tmp_path: Path) -> None:
    def keep_even(configs: list[Any], named: dict[str, Any], **_: Any) -> list[Any]:
        return [config for config in configs if named["n"] % 2 == 0 or config.kwargs["STEP"] != 2]

    pruning = {"prune_configs_by": {"early_config_prune": keep_even}}
    for _ in range(2):
        kernel = decorate(tmp_path, [DEFAULT, RIGHT, WRONG], **pruning)
        for n in (100, 101, 100, 101):
            launch(kernel, n)
            assert kernel.best_config.kwargs == (DEFAULT if n % 2 else RIGHT).kwargs


@pytest.mark.parametrize(
    "error", [MemoryError("of the host"), OSError(28, "no space left on device")], ids=str
)
def test_a_default_that_the_machine_cannot_launch_now_puts_the_tune_off(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    default = triton.Config(DEFAULT.kwargs, pre_hook=failing_hook(error, 1))
    kernel = decorate(tmp_path, [default, WRONG])
    launch(kernel, 100)
    assert kernel.best_config is default
    assert "results cannot be computed now" in caplog.text
    assert next(kernel.home.records(kernel.context), None) is None
    kernel.forget_choices()
    launch(kernel, 100)
    assert (kernel.best_config, kernel.benchmarked) == (default, 2)


@pytest.fixture
def unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a store in which a tune has recorded its timings, but not yet who has won."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("dejavu_cache.tuning.result_check.ResultCheck.compare", interrupt)
        with pytest.raises(KeyboardInterrupt):
            launch(decorate(tmp_path, [DEFAULT, WRONG]), 100)
    return tmp_path


def test_a_process_that_waits_for_the_comparison_runs_the_default(
    unfinished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEJAVU_CACHE_TUNE_WAIT", "0.1")
    current_settings.cache_clear()
    kernel = decorate(unfinished, [DEFAULT, WRONG])
    context, record = first_record(kernel.home)
    assert (record.winner, len(record.measurements)) == (None, 2)
    with kernel.home.lease(context, record.scenario, wait=0):
        launch(kernel, 100)
    assert kernel.best_config.kwargs == DEFAULT.kwargs
    assert kernel.benchmarked == 0


def test_a_look_up_without_a_launch_finds_no_uncompared_config(unfinished: Path) -> None:
    """Inductor would have it launched by itself."""
    kernel = decorate(unfinished, [DEFAULT, WRONG])
    found = kernel.look_up(torch.rand(128), torch.zeros(128), 100)
    assert (found.how, found.config.kwargs) == ("default", DEFAULT.kwargs)


class TestWhereNothingMayBeMeasured:
    """Without a winner, a record is a miss, unless the author has switched the comparison off."""

    def test_a_fallback_runs_and_the_scenario_is_missed(
        self, unfinished: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kernel = decorate(unfinished, [DEFAULT, WRONG], mode="reuse")
        missed = list_misses(kernel, monkeypatch)
        launch(kernel, 100)
        explained = copying.explain(kernel)
        assert explained.how == "default"
        assert "unmeasured" not in str(explained)
        assert "no winner: configs were timed, and their results not compared" in str(explained)
        assert "the nearest record" not in str(explained)
        assert [scenario.args for scenario in missed] == [{"n": 64}]

    def test_a_neighbour_stands_in(self, unfinished: Path) -> None:
        launch(decorate(unfinished, [DEFAULT, RIGHT]), 60)
        kernel = decorate(unfinished, [DEFAULT, RIGHT, WRONG], mode="reuse")
        launch(kernel, 100)
        assert explain(kernel) == ("predicted", RIGHT.kwargs)

    def test_strict_says_what_to_do(
        self, unfinished: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kernel = decorate(unfinished, [DEFAULT, WRONG], mode="strict")
        missed = list_misses(kernel, monkeypatch)
        with pytest.raises(ScenarioNotTuned, match=r"no winner .* finish its tune by .* sweep"):
            launch(kernel, 100)
        assert len(missed) == 1

    def test_it_is_tuned_once_it_may_be(self, unfinished: Path) -> None:
        kernel = decorate(unfinished, [DEFAULT, WRONG])
        with dejavu_cache.serving():
            launch(kernel, 100)
            assert explain(kernel) == ("default", DEFAULT.kwargs)
        kernel.forget_choices()
        launch(kernel, 100)
        assert explain(kernel) == ("exact", DEFAULT.kwargs)

    def test_without_the_comparison_the_timings_serve(self, unfinished: Path) -> None:
        kernel = decorate(unfinished, [DEFAULT, WRONG], mode="strict", check=False)
        assert explain(kernel) == ("exact", WRONG.kwargs)

    def test_a_pin_serves_if_the_launch_may_run_it(self, unfinished: Path) -> None:
        kernel = decorate(unfinished, [DEFAULT, RIGHT, WRONG], mode="reuse")
        add(kernel, pin=Pin(config=describe(RIGHT), at=now()))
        assert explain(kernel) == ("pinned", RIGHT.kwargs)
        without = decorate(unfinished, [DEFAULT, WRONG], mode="reuse")
        assert explain(without) == ("default", DEFAULT.kwargs)

    def test_a_winner_that_is_found_wrong_leaves_none(self, tmp_path: Path) -> None:
        """As on a server, which drops such a winner; the runner-up was not compared."""
        configs = [DEFAULT, RIGHT, triton.Config({"STEP": 3, "LIMIT": 1024})]
        launch(decorate(tmp_path, configs), 100)
        kernel = decorate(tmp_path, configs, mode="reuse")
        assert explain(kernel) == ("exact", RIGHT.kwargs)
        failure = Failure(kind="wrong", reason="by an audit")
        add(
            kernel,
            measurements=(Measurement(config=describe(RIGHT), failure=failure, at=now()),),
        )
        assert explain(kernel) == ("default", DEFAULT.kwargs)


def add(kernel: Any, **parts: Any) -> None:
    """Add something to the only record of a kernel's store."""
    context, record = first_record(kernel.home)
    kernel.home.put(context, [Record(scenario=record.scenario, **parts)])


def list_misses(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> list[Scenario]:
    """Return a list of what comes on the worklist of a kernel's store."""
    missed: list[Scenario] = []
    monkeypatch.setattr(kernel.home, "miss", lambda context, scenario: missed.append(scenario))
    return missed
