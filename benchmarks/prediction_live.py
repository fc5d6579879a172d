"""The searches of `prediction.py` with configs that are measured when they are asked for.

    python benchmarks/prediction_live.py FOLDER     # on an H100 or H200

What is known comes from the committed tables, which another machine of the same model has measured.
Configs are timed as in a tune's screening. Those that a tune would race, and the best ones of the
table, are then launched in turns: the regret is how much slower the search's winner is than the
fastest of all of these. It takes some minutes, and writes FOLDER/prediction-live.json.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from config_tables import ROUNDS, SCENARIOS, WORKERS, Launch, Timer, compile_share, draw
from exhaustive import SPAWN
from prediction import Tune, known_of, racing, read_config, read_tables, simulate, summary, times_of
from prediction import tune as search
from reports import describe_run, write_report

from dejavu_cache.model.scenario import Config
from dejavu_cache.tuning.device_timer import SCREENING, DeviceTimer, TimedLaunch
from dejavu_cache.tuning.race import HOPELESS

SITUATIONS = ("other scenarios", "the other GPU")
SHARE, BEST_OF_TABLE = 0.05, 3
KERNELS = ("matmul", "experts", "qblock", "segmented")


class LiveTune(NamedTuple):
    """A tune that was measured, and its replay.

    Attributes:
        at_share: the regret of the winner once a share of the configs was measured.
        final: the regret when the search ended by itself.
        measured: the share of the configs that was measured until then.
        replayed: the same three figures of the replay.
    """

    at_share: float
    final: float
    measured: float
    replayed: tuple[float, float, float]


class LiveLaunch:
    """The configs of a launch, timed one by one and then in turns."""

    def __init__(self, launch: Launch) -> None:
        """Time nothing yet."""
        self._launch, self._timer, self._best = launch, Timer(launch), math.inf
        self._screening = DeviceTimer("cudagraph-warm")
        self._screening.warm_up()
        self._index = {read_config(values): at for at, values in enumerate(launch.configs)}

    def time(self, config: Config) -> float:
        """Return a screening's median in milliseconds, infinite if the config does not run."""
        grid, args, kwargs = self._launch.of(self._launch.configs[self._index[config]])
        launch = TimedLaunch(partial(self._launch.jit[grid], *args, **kwargs))
        try:
            sample = self._screening.sample(launch, SCREENING, HOPELESS * self._best)
        except Exception as error:
            print("does not run", self._launch.name, config, str(error)[:100], flush=True)
            return math.inf
        time = statistics.median(sample.times)
        self._best = min(self._best, time)
        return time

    def race(self, configs: Iterable[Config]) -> dict[Config, float]:
        """Return medians in microseconds of some configs that take turns."""
        times: dict[Config, list[float]] = {config: [] for config in configs}
        for config in times:
            self._timer.capture(self._index[config], 20)
        for _ in range(ROUNDS):
            for config, rounds in times.items():
                rounds.append(self._timer.replay(self._index[config]))
        return {config: statistics.median(rounds) for config, rounds in times.items()}


def tune(launch: Launch, situation: str, gpu: str, number: int, replay: Tune) -> LiveTune:
    """Search as a tune does, and compare what it found with the best of the table."""
    row, live = read_tables()[gpu, launch.name][number], LiveLaunch(launch)
    records = known_of(situation, gpu, launch.name, number)
    searched = search(row, records, until=SHARE, measure=live.time)
    limit, times = searched.configs, searched.measured
    early, late = racing(dict([*times.items()][: max(1, int(SHARE * limit))])), racing(times)
    table = times_of(row[1])
    known_best = sorted(table, key=table.__getitem__)[:BEST_OF_TABLE]
    raced = live.race(dict.fromkeys([*early, *late, *known_best]))
    fastest = min(raced.values())
    regrets = [min(map(raced.__getitem__, finalists)) / fastest - 1 for finalists in (early, late)]
    return LiveTune(
        *regrets,
        searched.stopped / limit,
        (replay.after(int(SHARE * limit)), replay.final, replay.stopped / limit),
    )


def summarize(tunes: list[LiveTune]) -> dict[str, str]:
    """Return regrets and shares in percent, those of the replay beside them."""
    replays = [tune.replayed for tune in tunes]
    return {
        "5% of the configs": summary(tune.at_share for tune in tunes),
        "5% of the configs, replayed": summary(replay[0] for replay in replays),
        "until it ends": summary(tune.final for tune in tunes),
        "until it ends, replayed": summary(replay[1] for replay in replays),
        "measured until it ends": f"{statistics.mean(tune.measured for tune in tunes):.1%}",
        "measured until it ends, replayed": f"{statistics.mean(r[2] for r in replays):.1%}",
    }


def main(folder: Path) -> None:
    start, name = time.time(), torch.cuda.get_device_name()
    gpu = name.split()[1]
    with ProcessPoolExecutor(WORKERS, SPAWN) as pool:
        list(pool.map(compile_share, range(WORKERS)))
        print(f"compiled in {time.time() - start:.0f} s", flush=True)
        every = [(of, number) for of in KERNELS for number in range(SCENARIOS)]
        keys = [(situation, gpu, *place) for situation in SITUATIONS for place in every]
        replays = dict(zip(keys, pool.map(simulate, *zip(*keys, strict=True)), strict=True))
        print(f"replayed in {time.time() - start:.0f} s", flush=True)
    tunes: dict[str, dict[str, list[LiveTune]]] = {situation: {} for situation in SITUATIONS}
    for kernel, scenario in draw():
        launch = Launch(kernel, scenario)
        for situation, by_kernel in tunes.items():
            some = by_kernel.setdefault(kernel, [])
            number = len(some)
            replay = replays[situation, gpu, kernel, number]
            some.append(tune(launch, situation, gpu, number, replay))
            print(situation, kernel, number, some[-1][:3], flush=True)
        del launch
        torch.cuda.empty_cache()
    report: dict[str, Any] = {
        **describe_run(name),
        "seconds": round(time.time() - start),
    }
    for situation, by_kernel in tunes.items():
        by_name = {
            "all": [measured for tunes in by_kernel.values() for measured in tunes],
            **by_kernel,
        }
        report[situation] = {kernel: summarize(some) for kernel, some in by_name.items()}
    print(json.dumps(report, indent=1))
    write_report(folder, "prediction-live.json", report)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
