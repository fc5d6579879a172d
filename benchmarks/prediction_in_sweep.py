"""What a launch loses between the scenarios of a sweep, without a measurement of its own.

    python benchmarks/prediction_in_sweep.py     # reads the records that ship; needs no GPU

Attention's kernels were swept on an H200 with all configs that suit a scenario. Each scenario is
left out in turn: its launch runs what is predicted from the eight nearest others, or its default.
Losses are those of `prediction.py`, over the fastest config that was measured.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from datetime import date

from prediction import DEFAULTS, RESULTS, Guess, Known, judge, summarize_guesses, times_of

from dejavu_cache.attention import records
from dejavu_cache.model.scenario import Config
from dejavu_cache.stores import FileStore

SWEPT = 20
"""Measured configs of a scenario from which on it was swept, and is no single launch."""


def read_sweeps() -> dict[str, Known]:
    """Return the swept scenarios of each kernel, where there are many."""
    sweeps: dict[str, Known] = {}
    for found in FileStore(next(iter(records.__path__)), read_only=True).record_sets():
        environment = found.context.environment
        rows = [(environment, r) for r in found.records if len(r.measurements) > SWEPT]
        if len(rows) > SWEPT:
            sweeps[f"{found.context.kernel.name}, {environment.device.name}"] = rows
    return sweeps


def rank_configs(rows: Known) -> list[Config]:
    """Return the configs that suit 80% of the scenarios, or else the eight that suit most.

    They are in the order of their mean slowdowns.
    """
    slowdowns: dict[Config, list[float]] = {}
    for _, record in rows:
        times = {config: time for config, time in times_of(record).items() if time < math.inf}
        for config, time in times.items():
            slowdowns.setdefault(config, []).append(math.log(time / min(times.values())))
    counts = Counter({config: len(values) for config, values in slowdowns.items()})
    most = [config for config, count in counts.items() if count >= 0.8 * len(rows)]
    most = most or [config for config, _ in counts.most_common(8)]
    return sorted(most, key=lambda config: statistics.fmean(slowdowns[config]))


def guess_each(rows: Known, default: Config) -> list[Guess]:
    """Leave out each scenario that the default suits, and choose for it as a launch does."""
    return [
        judge(default, row, [other for other in rows if other is not row])
        for row in rows
        if times_of(row[1]).get(default, math.inf) < math.inf
    ]


def main() -> None:
    sweeps = read_sweeps()
    report: dict[str, object] = {"date": date.today().isoformat()}
    for name, rank in DEFAULTS.items():
        by_kernel: dict[str, Sequence[Guess]] = {}
        for kernel, rows in sweeps.items():
            ranked = rank_configs(rows)
            by_kernel[kernel] = guess_each(rows, ranked[int(rank * len(ranked))])
        by_kernel["all"] = [guess for guesses in by_kernel.values() for guess in guesses]
        report[name] = {kernel: summarize_guesses(some) for kernel, some in by_kernel.items()}
    print(text := json.dumps(report, indent=1))
    (RESULTS / "prediction-in-sweep.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
