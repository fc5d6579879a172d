"""Sweeps measure each config once and lose nothing, whatever is killed or started twice."""

from __future__ import annotations

import io
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from support.sweeping import Sweeps, kill_tree, wait_until

from dejavu_cache.model.scenario import Context, Scenario
from dejavu_cache.stores import FileStore, Found
from dejavu_cache.sweep import hosts
from dejavu_cache.sweep.hosts import CaseJob, LocalHost, SweepSpec, ray_hosts
from dejavu_cache.sweep.journal import Journal
from dejavu_cache.sweep.runner import Sweep
from dejavu_cache.sweep.worker import SweepWorker
from dejavu_cache.system.workers import ParentConnection, WorkerLostError


def test_killed_three_times_it_ends_as_one_whole_sweep(sweeps: Sweeps) -> None:
    """At most the config that was being measured is measured again."""
    chance = random.Random(7)
    for _ in range(3):
        before = len(sweeps.measurements_taken)
        process = sweeps.start_family(BENCH_SECONDS="0.1")
        sweeps.wait_for(before + chance.randint(1, 6))
        time.sleep(chance.random() / 5)
        kill_tree(process)
    sweeps.run()
    assert sweeps.recorded_times == sweeps.whole()
    assert len(sweeps.measurements_taken) - len(set(sweeps.measurements_taken)) <= 3


def test_a_worker_outlives_a_killed_sweep_by_no_more_than_a_moment(sweeps: Sweeps) -> None:
    process = sweeps.start_family(BENCH_SECONDS="0.2")
    sweeps.wait_for(2)
    (worker,) = psutil.Process(process.pid).children()
    process.kill()
    process.communicate()
    worker.wait(timeout=240)
    sweeps.run()
    assert sweeps.recorded_times == sweeps.whole()
    assert len(sweeps.measurements_taken) - len(set(sweeps.measurements_taken)) <= 1


def test_two_sweeps_at_once_measure_nothing_twice(sweeps: Sweeps) -> None:
    processes = [sweeps.start(BENCH_SECONDS="0.05") for _ in range(2)]
    outputs = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert Counter(sweeps.measurements_taken).most_common(1)[0][1] == 1
    assert sweeps.recorded_times == sweeps.whole()


class OvertakenStore(FileStore):
    """A folder whose lease another sweep holds, which ends just after this one has given up."""

    sweeps: Sweeps
    given_up = False

    @contextmanager
    def lease(self, context: Context, scenario: Scenario, *, wait: float) -> Iterator[bool]:
        """Yield that the lease is not to be had."""
        yield False
        self.given_up = True

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        """Read the record, at the first fresh look after the lease as the other sweep left it."""
        if fresh and self.given_up:
            self.given_up = False
            self.sweeps.run("--option", "cases=1")
        return super().get(context, scenario, fresh=fresh)


def test_what_another_sweep_has_just_finished_is_known(
    sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in sweeps.environment().items():
        monkeypatch.setenv(name, value)
    spec = SweepSpec(suite=str(sweeps.suite), store=sweeps.store.as_uri(), options={"cases": "1"})
    worker = SweepWorker(spec, ParentConnection(io.StringIO(), io.StringIO()))
    worker.journal = Journal(store := OvertakenStore(sweeps.store))
    store.sweeps = sweeps
    outcome = worker.run(CaseJob(do="measure", case="n=100"))
    assert (outcome.status, outcome.message) == ("known", "")
    assert sweeps.recorded_times == sweeps.whole(1)


def test_a_config_that_takes_its_worker_down_is_contained(sweeps: Sweeps) -> None:
    """Other configs are measured all the same, and no later sweep tries the fatal one again."""
    out = sweeps.run("--option", "cases=3", FATAL="101 32")
    assert out.count("ended with signal 9; another process takes it over") == 2
    expected = sweeps.whole(3)
    expected[101][32] = "crash"
    assert sweeps.recorded_times == expected
    assert Counter(sweeps.measurements_taken).most_common(1)[0][1] == 1
    assert "0 configs measured" in sweeps.run("--option", "cases=3", FATAL="101 32")


def test_a_worker_that_starts_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "suite.py").write_text(f"""
import pathlib, time
pathlib.Path({str(tmp_path / "begun")!r}).touch()
time.sleep(3600)
""")
    monkeypatch.setattr(hosts, "GRACE", 0.1)
    host = LocalHost(SweepSpec(suite=str(tmp_path / "suite.py"), store="memory://"))
    lost: list[WorkerLostError] = []

    def start() -> None:
        with pytest.raises(WorkerLostError) as error:
            host.start()
        lost.append(error.value)

    thread = threading.Thread(target=start)
    thread.start()
    while not (tmp_path / "begun").exists():
        thread.join(0.05)
    host.close()
    thread.join(240)
    assert "no worker can be started" in str(lost[0])


def test_a_worker_that_hangs_is_replaced(
    sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in sweeps.environment().items():
        monkeypatch.setenv(name, value)
    spec = SweepSpec(suite=str(sweeps.suite), store=sweeps.store.as_uri(), options={"cases": "2"})
    host = LocalHost(spec, patience=10.0)
    host.start()
    os.kill(host.worker.pid or 0, signal.SIGSTOP)
    report = Sweep([host]).run()
    assert "it gave no answer in 10 s; another process takes it over" in caplog.text
    assert {outcome.status for outcome in report.outcomes.values()} == {"failed", "tuned"}
    (failed,) = report.of("failed")
    assert failed.message.startswith("it took down its worker: ")


def test_ctrl_c_says_what_is_kept(sweeps: Sweeps) -> None:
    process = sweeps.start(BENCH_SECONDS="0.1")
    sweeps.wait_for(6)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130, out + err
    assert "stopped (interrupted)" in out
    assert "what was measured is kept" in out
    assert "run the same command again" in out
    assert sum(map(len, sweeps.recorded_times.values())) >= len(sweeps.measurements_taken) - 1
    sweeps.run()
    assert sweeps.recorded_times == sweeps.whole()
    assert len(sweeps.measurements_taken) - len(set(sweeps.measurements_taken)) <= 1


def test_ctrl_c_before_anything_is_measured_says_so(sweeps: Sweeps, tmp_path: Path) -> None:
    making = tmp_path / "making"
    process = sweeps.start(suite=":stuck", MAKING=str(making))
    wait_until(making.exists)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130, out + err
    assert "what was measured is kept" in err
    assert "Traceback" not in err


def test_an_impatient_ctrl_c_says_what_is_kept_too(sweeps: Sweeps) -> None:
    process = sweeps.start_family(BENCH_SECONDS="2")
    sweeps.wait_for(1)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130, out + err
    assert "what was measured is kept" in out + err
    assert "Traceback" not in err


def test_measurements_that_can_be_written_nowhere_are_failures(sweeps: Sweeps) -> None:
    sweeps_folder = sweeps.folder / "cache" / "dejavu-cache" / "sweeps"
    sweeps_folder.parent.mkdir(parents=True)
    sweeps_folder.touch()
    sweeps.store.touch()
    printed = sweeps.run("--option", "cases=1", code=1)
    assert "its measurements are not recorded" in printed


quiet = pytest.mark.filterwarnings("ignore")
"""Ray warns of what it will change one day."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweeps]:
    """Two CPU workers in a cluster of their own, which takes seconds to start."""
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    sweeps = Sweeps(tmp_path_factory.mktemp("cluster"))
    own = sweeps.environment(BENCH_SECONDS="0.2", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in own.items():
            monkeypatch.setenv(name, value)
        ray.init(
            num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False,
            logging_level="error",
        )  # fmt: skip
    yield sweeps
    ray.shutdown()


@quiet
def test_a_cluster_that_loses_a_worker_completes_the_sweep(
    cluster: Sweeps, caplog: pytest.LogCaptureFixture
) -> None:
    hosts = ray_hosts(SweepSpec(suite=str(cluster.suite), store=cluster.store.as_uri()), "local")
    assert len(hosts) == 2
    for host in hosts:
        host.start()  # both are ready to work
    killed: list[int] = []

    def kill_an_actor() -> None:
        cluster.wait_for(6)
        ours = {process.pid for process in psutil.Process().children(recursive=True)}
        actors = [
            process
            for process in psutil.process_iter(["cmdline"])
            if process.pid in ours and "ray::LocalHost" in " ".join(process.info["cmdline"] or [])
        ]
        killed.append(actors[0].pid)
        os.kill(actors[0].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_an_actor)
    killer.start()
    report = Sweep(hosts).run()
    killer.join()
    assert killed
    assert caplog.text.count("another process takes it over") == 1
    assert report.complete
    assert cluster.recorded_times == cluster.whole()
    assert len(cluster.measurements_taken) - len(set(cluster.measurements_taken)) <= 1


@quiet
def test_what_a_store_did_not_take_is_told_by_the_machine_that_has_it(cluster: Sweeps) -> None:
    """The cache of this process is another folder than that of its workers."""
    journals = cluster.folder / "cache" / "dejavu-cache" / "sweeps"
    before = {*map(str, journals.glob("*"))}  # that of an actor which was killed
    store, options = cluster.folder / "records", {"cases": "2"}
    spec = SweepSpec(suite=str(cluster.suite), store=store.as_uri(), options=options)
    hosts = ray_hosts(spec, "local")
    for host in hosts:
        host.start()
    store.write_text("a file stands where the folder should be")
    report = Sweep(hosts).run()
    assert {*report.kept} == {*map(str, journals.glob("*"))} - before != set()
    assert not report.complete
