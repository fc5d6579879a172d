"""On a Ray cluster: workers anywhere, results in one store, a lost worker's cases taken over."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from support.sweeping import Sweeps

from dejavu_cache.sweep.hosts import SweepSpec
from dejavu_cache.sweep.runner import Sweep

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Ray warns of what it will change one day
]


@pytest.fixture
def ray() -> Any:
    """Return Ray, which takes a second to import."""
    return pytest.importorskip("ray", reason="the extra `ray` is not installed")


@pytest.fixture
def cluster(sweeps: Sweeps, ray: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sweeps]:
    """Two CPU workers in a cluster of their own."""
    for name, value in sweeps.environment(
        BENCH_SECONDS="0.2", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0"
    ).items():
        monkeypatch.setenv(name, value)
    ray.init(
        num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False, logging_level="error"
    )
    yield sweeps
    ray.shutdown()


def test_a_cluster_that_loses_a_worker_completes_the_sweep(
    cluster: Sweeps, caplog: pytest.LogCaptureFixture
) -> None:
    from dejavu_cache.sweep.hosts import ray_hosts

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


def test_what_a_store_did_not_take_is_told_by_the_machine_that_has_it(
    cluster: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dejavu_cache.sweep.hosts import ray_hosts

    monkeypatch.setenv(
        "XDG_CACHE_HOME", str(cluster.folder / "the sweep's own")
    )  # its workers are elsewhere
    options = {"cases": "2"}
    spec = SweepSpec(suite=str(cluster.suite), store=cluster.store.as_uri(), options=options)
    hosts = ray_hosts(spec, "local")
    for host in hosts:
        host.start()
    cluster.store.write_text("a file stands where the folder should be")
    report = Sweep(hosts).run()
    left = {str(path) for path in (cluster.folder / "cache" / "dejavu-cache" / "sweeps").iterdir()}
    assert set(report.kept) == left != set()
    assert not report.complete
