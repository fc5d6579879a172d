"""A suite whose every measurement is logged, and sweeps of it in real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dejavu_cache.stores import FileStore, Store
from support.processes import environment

SUITE = """
    import os, sys, time
    from functools import partial
    import torch, triton, triton.language as tl
    from dejavu_cache import cached_autotune
    from dejavu_cache.sweep.suite import Case, Suite

    @triton.jit
    def add_one(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)

    def bench(kernel_call, quantiles):
        kernel_call()
        if os.environ.get("FATAL") == f"{latest}":
            os.kill(os.getpid(), 9)
        if os.environ.get("FULL") == f"{latest}":
            full()
        time.sleep(float(os.environ.get("BENCH_SECONDS", "0.02")))
        with open(os.environ["LOG"], "a") as log:  # appending a short line is atomic
            log.write(f"{latest}\\n")
        return [float(latest.split()[1])] * 3

    class Logged:
        def __init__(self, fn):
            self.fn, self.arg_names = fn, fn.arg_names
        def run(self, *args, **kwargs):
            global latest
            latest = f"{args[2]} {kwargs['BLOCK']}"
            return self.fn.run(*args, **kwargs)

    CONFIGS = [triton.Config({"BLOCK": block}) for block in (16, 32, 64, 128)]
    add = cached_autotune(configs=CONFIGS, key=["n"], do_bench=bench)(add_one)
    add.fn = Logged(add.fn)

    few = cached_autotune(configs=CONFIGS, key=["n"], do_bench=bench, tune_configs=2)(add_one)
    few.fn = Logged(few.fn)

    def arguments(n):
        if "MAKING" in os.environ:
            open(os.environ["MAKING"], "a").write("x")
            time.sleep(0.5)
        return {"x_ptr": torch.zeros(n), "y_ptr": torch.zeros(n), "n": n}

    def case(n):
        grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)
        return Case(f"n={n}", add, grid, partial(arguments, n))

    def suite(cases="8", bad=""):
        good = [case(100 + n) for n in range(int(cases))]
        return [*(BAD[name] for name in bad.split()), *good]

    def raises():
        raise ZeroDivisionError("mine")

    def full():
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    BAD = {
        "raises": Case("raises", add, (1,), raises),
        "full": Case("full", add, (1,), full),
        "plain": Case("plain", add_one, (1,), partial(arguments, 1)),
        "asks": Case("asks", add, (1,), lambda: arguments(int(input("how many? ")))),
    }
    def die(*args):
        os.kill(os.getppid(), 9)
        os.kill(os.getpid(), 9)

    if "DIES_BEFORE_THE_WINNER" in os.environ:
        from dejavu_cache.runtime import scenario_tuner
        scenario_tuner.tuned_launches = die

    met = Suite(lambda: [case(100)], lambda kernel, scenario: case(scenario.args["n"]))
    broken = raises

    def leaves():
        sys.exit(3)

    def stuck():
        open(os.environ["MAKING"], "a").write("x")
        time.sleep(60)

    def strange():
        return [case(100), "n=101"]

    def numbered():
        return [Case(5, add, (1,), partial(arguments, 1))]

    def budgeted():
        return [Case("few", few, (1,), partial(arguments, 1))]
"""


class Sweeps:
    """Sweeps of one suite into one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.log = folder / "log"
        self.log.touch()
        self.suite = folder / "cases.py"
        self.suite.write_text(textwrap.dedent(SUITE))

    def copy(self, folder: Path) -> Sweeps:
        """Goes on from here in another folder."""
        copied = Sweeps(folder)
        shutil.copytree(self.store, copied.store)
        shutil.copy(self.log, copied.log)
        return copied

    def environment(self, **env: str) -> dict[str, str]:
        cache = str(self.folder / "cache")
        return environment(TRITON_INTERPRET="1", LOG=str(self.log), XDG_CACHE_HOME=cache, **env)

    def start(self, *arguments: str, suite: str = "", **env: str) -> subprocess.Popen[str]:
        store = [] if "--store" in arguments else ["--store", str(self.store)]
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "dejavu_client",
                "sweep",
                str(self.suite) + suite,
                *store,
                *arguments,
            ],
            env=self.environment(**env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, code: int = 0, suite: str = "", **env: str) -> str:
        """Sweeps to the end; standard output and error together."""
        process = self.start(*arguments, suite=suite, **env)
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, out + err
        return out + err

    def json(self, *arguments: str, code: int = 0, **env: str) -> dict[str, Any]:
        process = self.start("--json", *arguments, **env)
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, out + err
        return json.loads(out)  # type: ignore[no-any-return]

    def wait_for(self, measurements: int) -> None:
        wait_until(lambda: len(self.measurements_taken) >= measurements)

    @property
    def measurements_taken(self) -> list[str]:
        """Every measurement that was taken, as size and block, in order."""
        return self.log.read_text().splitlines()

    @property
    def recorded_times(self) -> dict[int, dict[int, str]]:
        """By size and block: what the folder has, a time or a failure, and which one won."""
        return self.recorded_in(FileStore(self.store))

    def recorded_in(self, store: Store) -> dict[int, dict[int, str]]:
        """Return the outcomes in another store, as `recorded_times` does."""
        return {
            int(record.scenario.args["n"] or 0): {
                int(measurement.config.params["BLOCK"] or 0): (
                    measurement.failure.kind if measurement.failure else f"{measurement.median}"
                )
                + (", wins" if record.winner and record.winner.config == measurement.config else "")
                for measurement in record.measurements
            }
            for context in store.contexts()
            for record in store.records(context)
        }

    def whole(self, cases: int = 8) -> dict[int, dict[int, str]]:
        """Return what one undisturbed sweep records."""
        return {
            100 + n: {16: "16.0, wins", 32: "32.0", 64: "64.0", 128: "128.0"} for n in range(cases)
        }


def wait_until(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < until, "it does not happen"
        time.sleep(0.005)


def kill_tree(process: subprocess.Popen[str]) -> None:
    """Kill a process and all that it started."""
    import psutil

    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for process in family:
        os.kill(process.pid, signal.SIGKILL)
    process.communicate()
