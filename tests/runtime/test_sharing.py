"""Processes, threads and ranks share what one of them found, wait for it, and survive forks."""

import concurrent.futures.thread
import json
import sys
import textwrap
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support.addition import CONFIGS, Bench, add_one, equal_times, make
from support.fork_server import Child, kernel_nursery
from support.kernels import ADD, launch, load
from support.processes import PROGRAMS, fork_python, in_fork, in_own_process
from support.records import context, record
from support.sweeping import wait_until

from dejavu_cache import CheckOptions, cached_autotune
from dejavu_cache.model.record import Measurement
from dejavu_cache.stores import FileStore, MemoryStore
from dejavu_cache.stores.tiered import default_store
from dejavu_cache.system.fork_lock import ForkLock

pretended = in_own_process(TRITON_INTERPRET="0", DEJAVU_CACHE_CHECK="0")


class Fleet:
    """Processes over one store, and the log of every benchmark that any of them ran."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.store = folder / "store"
        self.log = folder / "log"
        self.log.touch()
        self.source = folder / "kernels.py"
        self.source.write_text(textwrap.dedent(ADD))

    def start(self, sizes: list[int], **env: str) -> Child:
        return kernel_nursery().start(
            (PROGRAMS / "tune_sizes.py").read_text(),
            self.source,
            self.log,
            json.dumps(sizes),
            folder=self._folder,
            **{"BENCH_SECONDS": "0.002", **env},
            TRITON_INTERPRET="1",
            DEJAVU_CACHE_URL=self.store.as_uri(),
        )

    def finish(self, process: Child) -> dict[str, object]:
        return json.loads(process.finish())  # type: ignore[no-any-return]

    def run(self, *sizes: int, **env: str) -> dict[str, object]:
        return self.finish(self.start(list(sizes), **env))

    def edit(self, old: str, new: str) -> None:
        text = self.source.read_text()
        assert old in text
        self.source.write_text(text.replace(old, new, 1))

    @property
    def measurements(self) -> list[Measurement]:
        """All measurements in the store."""
        record_sets = FileStore(self.store).record_sets()
        return [item for found in record_sets for r in found.records for item in r.measurements]

    @property
    def benchmarks(self) -> list[str]:
        return [line.split()[1] for line in self.log.read_text().splitlines()]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_edits_cost_what_they_must(fleet: Fleet) -> None:
    """Comments and moves cost nothing, a config one benchmark, a helper's code all of them."""
    assert fleet.run(100)["benchmarked"] == 3
    fleet.edit("@cached_autotune", "# a comment\n@cached_autotune")
    fleet.edit("import triton\n", "import triton\n\n\nMOVED = True\n\n")
    fleet.source = fleet.source.rename(fleet.source.with_name("moved.py"))
    assert fleet.run(100)["benchmarked"] == 0
    fleet.edit("(16, 32, 64)", "(32, 128)")
    assert fleet.run(100) == {"benchmarked": 1, "winners": {"100": 32}}
    fleet.edit("(32, 128)", "(16, 32, 64, 128)")
    assert fleet.run(100) == {"benchmarked": 0, "winners": {"100": 16}}
    fleet.edit("return x + SHIFT", "return x * 1 + SHIFT")
    assert fleet.run(100)["benchmarked"] == 4


def test_processes_at_once_benchmark_every_config_once(fleet: Fleet) -> None:
    sizes = [64 + n for n in range(12)]
    processes = [fleet.start(sizes) for _ in range(6)]
    results = [fleet.finish(process) for process in processes]
    assert len(fleet.benchmarks) == len(set(fleet.benchmarks)) == 36
    assert sum(result["benchmarked"] for result in results) == 36  # type: ignore[misc]
    assert all(result["winners"] == results[0]["winners"] for result in results)
    store = FileStore(fleet.store)
    (context,) = store.contexts()
    assert [len(record.measurements) for record in store.records(context)] == [3] * 12


def test_a_killed_tuner_loses_one_config_at_most(fleet: Fleet) -> None:
    process = fleet.start([100], HANGS_AT="2")
    wait_until(lambda: len(fleet.benchmarks) == 2 and len(fleet.measurements) == 1)
    process.kill()
    assert fleet.run(100)["benchmarked"] in (1, 2)
    assert len(fleet.benchmarks) <= 4


def test_who_waits_too_long_runs_a_fallback(fleet: Fleet) -> None:
    tuner = fleet.start([100], HANGS_AT="1")
    wait_until(lambda: bool(fleet.benchmarks))
    assert fleet.run(100, DEJAVU_CACHE_TUNE_WAIT="0.1")["benchmarked"] == 0
    tuner.kill()


def test_an_unwritable_home_costs_the_reuse_and_nothing_else(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    fleet.store = tmp_path / "file" / "store"
    process = fleet.start([100, 200, 100])
    assert fleet.finish(process)["benchmarked"] == 6
    assert process.err.read_text().count("cannot be written") == 1


def test_the_first_process_that_tunes_a_folder_says_what_it_kept(tmp_path: Path) -> None:
    code = """
        import json, sys
        from support.addition import CONFIGS, add_one, equal_times
        from support.kernels import launch
        from dejavu_cache import cached_autotune

        kernel = cached_autotune(configs=CONFIGS, key=["n"], do_bench=equal_times)(add_one)
        for size in json.loads(sys.argv[1]):
            launch(kernel, size)
    """
    env = {"DEJAVU_CACHE_URL": (tmp_path / "a, b").as_uri(), "TRITON_INTERPRET": "1"}
    first, later = (fork_python(code, sizes, **env).stderr for sizes in ("[128, 300]", "[500]"))
    assert first.startswith("dejavu-cache: 2 scenarios tuned in ")
    assert first.endswith(f"to see them: dejavu-cache ls --store {env['DEJAVU_CACHE_URL']}\n")
    assert later == ""


def test_a_kernel_that_waits_for_a_lease_does_not_stop_another() -> None:
    waiting, other = (cached_autotune(configs=CONFIGS, key=["n"])(add_one) for _ in range(2))
    request = waiting.request(torch.ones(1), torch.ones(1), 100)
    with default_store().lease(request.context, request.scenario, wait=0):
        thread = threading.Thread(target=launch, args=(waiting, 100), daemon=True)
        thread.start()
        thread.join(1)
        launch(other, 300)
        assert other.benchmarked == len(CONFIGS)
        assert thread.is_alive(), "it still waits"
    thread.join(240)
    assert waiting.benchmarked == len(CONFIGS)


def test_a_launch_within_a_tune_does_not_wait_for_a_thread_that_waits_for_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DEJAVU_CACHE_TUNE_WAIT", "600")
    helper = make(Bench())
    other_thread = threading.Thread(target=launch, args=(helper, 100), daemon=True)

    def launch_helper(arguments: Mapping[str, Any]) -> None:
        if not other_thread.is_alive():
            other_thread.start()
        request = helper.request(arguments["x_ptr"], arguments["y_ptr"], 100)
        while True:
            with default_store().lease(request.context, request.scenario, wait=0) as is_free:
                if not is_free:
                    break
        helper[(7,)](arguments["x_ptr"], arguments["y_ptr"], 100)

    check = CheckOptions(reference=launch_helper)
    launch(cached_autotune(configs=CONFIGS, key=["n"], check=check)(add_one), 100)
    other_thread.join(240)
    assert helper.benchmarked == len(CONFIGS)


def test_ranks_agree_without_a_collective(tmp_path: Path) -> None:
    """All run what the first has chosen; a version mismatch and a death hold nobody up."""
    from torch.distributed import TCPStore

    master = TCPStore("127.0.0.1", 0, 3, is_master=True, wait_for_workers=False)
    program, nursery = PROGRAMS / "agree_as_rank.py", kernel_nursery("1")
    folder, env = tmp_path / "printed", {"TRITON_INTERPRET": "1"}
    ranks = [
        nursery.start_file(program, master.port, rank, tmp_path, folder=folder, **env)
        for rank in range(3)
    ]
    outputs = [rank.communicate(timeout=240) for rank in ranks]
    del master
    assert [rank.returncode for rank in ranks] == [0, -9, 0], outputs
    # Some versions of Gloo print their connections to the standard output, before the result.
    first, third = (json.loads(outputs[rank][0].splitlines()[-1]) for rank in (0, 2))
    assert first["same"] == third["same"]
    assert {first["how"], third["how"]} <= {"exact", "tuned"}
    assert third["alone"] in (16, 32, 64)
    assert first["other"] == 128
    assert "which this rank does not declare" in outputs[0][1]
    assert first["after a death"] == third["after a death"]


@in_own_process(TRITON_INTERPRET="1")
def test_versions_of_one_kernel_agree_separately(tmp_path: str) -> None:
    """Both have one name and one scenario; a helper's constant differs."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/job", rank=0, world_size=1)
    for version, best, times in ((1, 16, (1.0, 2.0, 3.0)), (2, 64, (3.0, 2.0, 1.0))):
        source = ADD.replace("tl.constexpr(1)", f"tl.constexpr({version})")
        module: Any = load(Path(tmp_path) / str(version) / "kernels.py", source)
        decorate = cached_autotune(module.CONFIGS, ["n"], do_bench=Bench(times), consensus="ranks")
        kernel = decorate(module.add.fn)
        kernel[(7,)](torch.ones(100), torch.ones(100), 100)
        assert kernel.best_config.kwargs == {"BLOCK": best}

    def launch_alone() -> None:
        kernel[(7,)](torch.ones(100), torch.ones(100), 99)
        assert not kernel.explain(torch.ones(1), torch.ones(1), 99).agreed

    in_fork(launch_alone)  # else it would read what its parent is answered
    dist.distributed_c10d._get_default_store = None  # as in a version of torch without it
    launch_alone()


@in_own_process(TRITON_INTERPRET="1")
def test_a_child_that_a_benchmark_forks_may_exit() -> None:
    def bench(kernel_call: Any, quantiles: Any) -> list[float]:
        in_fork(sys.exit)
        return equal_times(kernel_call, quantiles)

    launch(cached_autotune(configs=CONFIGS, key=["n"], do_bench=bench)(add_one))


@pretended
def test_a_thread_tunes_after_the_main_one_has_ended() -> None:
    from support.pretended_gpu import launch as run_pretended
    from support.pretended_gpu import make

    kernel = make(cached_autotune)
    threading.main_thread().is_alive = bool  # type: ignore[method-assign]
    concurrent.futures.thread._python_exit()  # as Python calls it at that end
    run_pretended(kernel, 3)
    assert kernel.benchmarked == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pretended
def test_a_child_that_was_forked_while_a_thread_tuned_can_tune() -> None:
    from support.pretended_gpu import launch as run_pretended
    from support.pretended_gpu import make

    started, finish = threading.Event(), threading.Event()

    def bench(kernel_call: Any, quantiles: Any) -> list[float]:
        kernel_call()
        started.set()
        finish.wait()
        return [1.0] * 3

    def tune_other() -> None:
        run_pretended(other, 4)
        assert other.benchmarked == 3

    tuned, other = make(cached_autotune, do_bench=bench), make(cached_autotune)
    thread = threading.Thread(target=run_pretended, args=(tuned, 3))
    thread.start()
    started.wait()
    in_fork(tune_other)
    finish.set()
    thread.join()
    assert tuned.benchmarked == 3


@in_own_process(TRITON_INTERPRET="1")
def test_a_child_tunes_without_the_threads_of_torch_that_it_has_lost() -> None:
    kernel = make(store="memory://")
    torch.set_num_threads(2)
    torch.ones(1 << 22).sum()
    in_fork(lambda: launch(kernel))


@pretended
def test_a_child_finds_what_threads_of_its_parent_held_free() -> None:
    """And the thread's own locks and leases stay."""
    lock, mine, store = ForkLock(), ForkLock(), MemoryStore()
    held, finish = threading.Event(), threading.Event()

    def lease() -> Any:
        return store.lease(context(), record().scenario, wait=0)

    def hold() -> None:
        with lock, lease():
            held.set()
            finish.wait()

    def take() -> None:
        with lock, mine, lease() as leased:
            assert leased

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    with mine:  # this thread's own lock is still its own in the child
        in_fork(take)
    with lease() as leased:
        assert not leased
    finish.set()
    thread.join()
