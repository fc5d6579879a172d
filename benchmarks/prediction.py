"""How few configs must be measured, if a model of other records chooses them.

    python benchmarks/prediction.py [--wrong 1000] [--noisy 1000]     # reads results/configs-*.json
    uv run --with optuna --with matplotlib … --compare # beside other searches, with a picture

`config_tables.py` measured each config of 80 drawn scenarios of four kernels on two GPUs. Here the
product's search is run on these tables. The regret is how much slower the best measured config is
than the best of all: the mean over scenarios, and in brackets the 95th percentile, in percent. What
a scenario's search knows is one of these:

- `other scenarios`: the 19 other scenarios of the kernel on this GPU;
- `the other GPU`: all 20 on the other GPU, this scenario among them;
- `other scenarios on the other GPU`: the 19 other ones there;
- `nothing`: no record of the kernel.

Tables have no noise from one look to the next, so some tunes are run with errors and hiccups added
to what they measure, and with as many records as a tune reads.

Without a measurement, a launch runs what is predicted from the eight nearest records, or its
default; two defaults are tried, the better of which no author has. Of the other one, and of what
runs in its place, it is predicted what a launch saves once its scenario is tuned.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from datetime import datetime, timezone
from functools import cache, partial
from itertools import cycle, permutations
from operator import add, attrgetter, itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from dejavu_cache.model.record import Measurement, Record, Resources
from dejavu_cache.model.scenario import Config, Device, Environment, Scenario
from dejavu_cache.model.selection import distance, find_rivals, relative_squares, value_distance
from dejavu_cache.prediction.features import Point
from dejavu_cache.prediction.slowdown_model import SlowdownModel, expect_saving
from dejavu_cache.runtime.known_records import (
    FEW_RIVALS,
    MOST_RIVALS,
    NEAR_A_LAUNCH,
    NEAR_A_TUNE,
    NEAR_ELSEWHERE,
)
from dejavu_cache.tuning.race import FINALISTS, HOPELESS
from dejavu_cache.tuning.search import PredictedSearch

RESULTS = Path(__file__).parent / "results"
GPUS = ("H100", "H200")
SHARES = (0.02, 0.05, 0.08, 0.15)
COUNTS = (1, 3, 8)
LOSS = 0.01
AT = datetime(2026, 1, 1, tzinfo=timezone.utc)

Known = list[tuple[Environment, Record]]
Tables = dict[tuple[str, str], Known]
Times = list[dict[Config, float]]


@cache
def read_tables() -> Tables:
    """Return the records of each GPU and kernel."""
    return {(gpu, kernel): rows for gpu in GPUS for kernel, rows in read_table(gpu).items()}


@cache
def read_table(name: str) -> dict[str, Known]:
    """Return the records of each kernel in `results/configs-NAME.json`."""
    report = json.loads((RESULTS / f"configs-{name}.json").read_text())
    device = Device(
        name=report["device"],
        arch="sm_90",
        units=report["gpu"]["multiprocessors"],
        memory_gib=report["gpu"]["memory"] >> 30,
    )
    triton = report["versions"]["triton"]
    environment = Environment(device=device, triton=triton, codegen="ptxas")
    rows: dict[str, Known] = {}
    for kernel, table in report["kernels"].items():
        configs = [read_config(values) for values in table["configs"]]
        rows[kernel] = [(environment, read_record(row, configs)) for row in table["scenarios"]]
    return rows


def read_config(values: dict[str, Any]) -> Config:
    options = {name: value for name, value in values.items() if name.startswith("num_")}
    return Config(params={k: v for k, v in values.items() if k not in options}, options=options)


def read_record(table: dict[str, Any], configs: Sequence[Config]) -> Record:
    measurements = []
    for number, (time, programs, registers, spills, shared) in table["rows"].items():
        resources = Resources(programs=programs, registers=registers, spills=spills, shared=shared)
        measurements.append(
            Measurement(config=configs[int(number)], median=time / 1e3, at=AT, resources=resources)
        )
    return Record(scenario=Scenario(args=table["args"]), measurements=tuple(measurements))


def known_of(situation: str, gpu: str, kernel: str, number: int) -> Known:
    """Return what is known in a situation."""
    tables, other = read_tables(), GPUS[gpu == GPUS[0]]
    rows = tables[gpu if situation in (SITUATIONS[0], ALSO_ELSEWHERE) else other, kernel]
    if situation == "nothing":
        return []
    if situation == "the other GPU":
        return [*rows]
    others = [row for index, row in enumerate(rows) if index != number]
    return others + [tables[other, kernel][number]] * (situation == ALSO_ELSEWHERE)


def nearest(scenario: Scenario, rows: Known) -> Known:
    """Return records in the order of `KnownRecords.near`."""
    alike = [row for row in rows if distance(scenario, row[1].scenario) < math.inf]
    squares = [0.0] * len(alike)
    for name, value in scenario.args.items():
        gaps = [value_distance(value, record.scenario.args[name]) for _, record in alike]
        squares = [*map(add, squares, relative_squares(gaps))]
    return [alike[index] for index in sorted(range(len(alike)), key=squares.__getitem__)]


ALSO_ELSEWHERE = "other scenarios, and this one on the other GPU"
SITUATIONS = ("other scenarios", "the other GPU", "other scenarios on the other GPU", "nothing")


class Tune(NamedTuple):
    """A simulated tune.

    Attributes:
        regrets: after each measurement, the regret of the best that would race then.
        stopped: after how many measurements the search ended by itself.
        configs: how many configs there are.
        measured: what was measured, in its order.
    """

    regrets: list[float]
    stopped: int
    configs: int
    measured: dict[Config, float]

    @property
    def final(self) -> float:
        """The regret when the search ended by itself."""
        return self.regrets[self.stopped - 1]

    def after(self, measured: int) -> float:
        """Return the regret after a number of measurements, at least one."""
        return self.regrets[min(max(measured, 1), len(self.regrets)) - 1]

    def at(self, share: float) -> float:
        """Return the regret once a share of the configs is measured."""
        return self.after(round(share * self.configs))


def times_of(record: Record) -> dict[Config, float]:
    return {entry.config: entry.median or math.inf for entry in record.measurements}


def programs_of(record: Record) -> dict[Config, int | None]:
    return {e.config: e.resources and e.resources.programs for e in record.measurements}


def tune(
    row: tuple[Environment, Record],
    records: Known,
    until: float = 0.2,
    loss: float = LOSS,
    measure: Callable[[Config], float] | None = None,
) -> Tune:
    """Run the product's search until it ends, and at least until a share was measured."""
    environment, record = row
    times, programs = times_of(record), programs_of(record)
    measure = measure or times.__getitem__
    model = SlowdownModel(environment, record.scenario, programs, records)
    search = PredictedSearch(model, [], len(times), 0.0)
    stopping = PredictedSearch(model, [], len(times), loss)
    best, stopped, regrets = min(times.values()), 0, list[float]()
    measured = dict[Config, float]()
    while (not stopped or len(regrets) < until * len(times)) and (batch := search.ask()):
        for config in batch:
            measured[config] = measure(config)
            model.note(config, measured[config])
            regrets.append(min(map(times.__getitem__, racing(measured))) / best - 1)
        stopped = stopped or len(regrets) * stopping.is_settled
    return Tune(regrets, stopped or len(regrets), len(times), measured)


def racing(measured: dict[Config, float]) -> list[Config]:
    """Return the configs that a tune races after a screening."""
    fastest = sorted(measured, key=measured.__getitem__)[:FINALISTS]
    return [config for config in fastest if measured[config] <= HOPELESS * measured[fastest[0]]]


def simulate(situation: str, gpu: str, kernel: str, number: int) -> Tune:
    return tune(read_tables()[gpu, kernel][number], known_of(situation, gpu, kernel, number))


DEFAULTS = {"the best single config": 0.0, "a config better than three of four": 0.25}
"""Defaults that a launch without records runs: ranks by the mean slowdown, as shares of all."""


class Guess(NamedTuple):
    """What a launch without a measurement runs: losses against the best config of all."""

    default: float
    predicted: float
    is_default: bool


def guess(rank: float, situation: str, gpu: str, kernel: str, number: int) -> Guess:
    """Choose as a launch does, and compare the choice and the default with the best of all."""
    records = known_of(situation, gpu, kernel, number)
    return judge(ranked_configs(gpu, kernel)[rank], read_tables()[gpu, kernel][number], records)


def judge(default: Config, row: tuple[Environment, Record], records: Known) -> Guess:
    """Compare what a launch of a scenario chooses by other records, and its default."""
    chosen, times = choose(default, row, records), times_of(row[1])
    best = min(times.values())
    losses = (times.get(config, math.inf) / best - 1 for config in (default, chosen or default))
    return Guess(*losses, chosen is None)


def choose(default: Config, row: tuple[Environment, Record], records: Known) -> Config | None:
    """Return which of the nearest scenarios' winners a launch runs; None for the default.

    Of the row, its scenario and configs count, as if they had no timings.
    """
    environment, record = row
    rows_known = nearest(record.scenario, records)[:NEAR_A_LAUNCH]
    winners = [min(times_of(other).items(), key=itemgetter(1))[0] for _, other in rows_known]
    programs = programs_of(record)
    rivals = find_rivals((other for _, other in rows_known), FEW_RIVALS)
    among = {c: programs[c] for c in [default, *winners, *rivals] if c in programs}
    model = SlowdownModel(environment, record.scenario, among, rows_known, unmeasured=True)
    outdone = model.outdo(default, winners)
    return outdone[0] if outdone else None


@cache
def ranked_configs(gpu: str, kernel: str) -> dict[float, Config]:
    """Return the configs of `DEFAULTS` among those that run in all scenarios of a kernel."""
    slowdowns: dict[Config, list[float]] = {}
    for _, record in (rows := read_tables()[gpu, kernel]):
        times = times_of(record)
        for config, time in times.items():
            slowdowns.setdefault(config, []).append(math.log(time / min(times.values())))
    ranked = sorted(
        (c for c, row in slowdowns.items() if len(row) == len(rows) and max(row) < math.inf),
        key=lambda config: sum(slowdowns[config]),
    )
    return {rank: ranked[int(rank * len(ranked))] for rank in DEFAULTS.values()}


class Save(NamedTuple):
    """What a tune saves, predicted and measured."""

    expected: float
    at_least: float
    measured: float


RUNS = ("a default", "what is predicted in its place")
"""What launches run whose saving is predicted; elsewhere, only defaults are surely run."""


def save(runs: str, situation: str, gpu: str, kernel: str, number: int) -> Save:
    """Predict what launches save of what they run, and say what they do."""
    environment, record = row = read_tables()[gpu, kernel][number]
    records = known_of(situation, gpu, kernel, number)
    config = ranked_configs(gpu, kernel)[DEFAULTS["a config better than three of four"]]
    if runs != RUNS[0]:
        config = choose(config, row, records) or config
    near, times = nearest(record.scenario, records)[:NEAR_A_TUNE], times_of(record)
    counts = programs_of(record)
    rivals = find_rivals((other for _, other in near), MOST_RIVALS)
    programs = {rival: counts[rival] for rival in rivals if rival in counts}
    asked = Point(environment, record.scenario, config, counts[config])
    saving = expect_saving(asked, programs, near)
    assert saving is not None
    return Save(saving.expected, saving.at_least, times[config] - min(times.values()))


def report_savings(pool: Executor, columns: Sequence[Sequence[Any]]) -> dict[str, Any]:
    cells = [(RUNS[0], situation) for situation in SITUATIONS[:3]] + [(RUNS[1], SITUATIONS[0])]
    report: dict[str, Any] = {}
    for runs, situation in cells:
        saves = list(pool.map(partial(save, runs, situation), *columns, chunksize=4))
        report.setdefault(runs, {})[situation] = summarize_saves(saves)
        print("what a tune saves of", runs, situation, report[runs][situation], flush=True)
    return report


def summarize_saves(saves: Sequence[Save]) -> dict[str, Any]:
    """Compare predictions with measurements, also the order of pairs and of twelve drawn ones."""
    pairs = [(more, less) for more, less in permutations(saves, 2) if more.measured > less.measured]
    drawn, shares = random.Random(0), list[float]()
    for _ in range(1000):
        tunes = drawn.sample(saves, 12)
        first = sorted(tunes, key=attrgetter("expected"))[-4:]
        best = sorted(tunes, key=attrgetter("measured"))[-4:]
        shares.append(sum(t.measured for t in first) / sum(t.measured for t in best))
    errors = [abs(t.expected - t.measured) / t.measured for t in saves if t.measured]
    return {
        "mean error": round(statistics.fmean(errors), 2),
        "median error": round(statistics.median(errors), 2),
        "within 30%": sum(abs(t.expected - t.measured) <= 0.3 * t.measured for t in saves),
        "saves at least the bound": sum(t.measured >= t.at_least for t in saves),
        "of": len(saves),
        "pairs in order": round(
            statistics.fmean(more.expected > less.expected for more, less in pairs), 3
        ),
        "share of what the best 4 of 12 save": round(statistics.fmean(shares), 3),
    }


def summarize_guesses(guesses: Sequence[Guess]) -> dict[str, Any]:
    return {
        "the default": summary(guess.default for guess in guesses),
        "what is predicted": summary(guess.predicted for guess in guesses),
        "a predicted config": summary(g.predicted for g in guesses if not g.is_default),
        "runs the default": sum(guess.is_default for guess in guesses),
        "over 2% slower than the default": sum(
            guess.predicted - guess.default > 0.02 * (1 + guess.default) for guess in guesses
        ),
        "of": len(guesses),
    }


def shuffle_all(tables: Times, drawn: random.Random) -> None:
    times = [time for table in tables for time in table.values()]
    drawn.shuffle(times)
    for table in tables:
        table.update({config: times.pop() for config in table})


def shuffle_each(tables: Times, drawn: random.Random) -> None:
    for table in tables:
        times = [*table.values()]
        drawn.shuffle(times)
        table.update(zip(table, times, strict=True))


def reverse(tables: Times, _: random.Random) -> None:
    for table in tables:
        fastest = sorted(table, key=table.__getitem__)
        table.update(zip(fastest, sorted(table.values(), reverse=True), strict=True))


def mistake_kernel(tables: Times, drawn: random.Random) -> None:
    """Take another kernel's timings: those of a table with other numbers of configs."""
    own = max(map(len, tables))
    rows = drawn.choice(
        [rows for rows in read_tables().values() if len(rows[0][1].measurements) != own]
    )
    for table, (_, record) in zip(tables, rows, strict=False):
        times = cycle(times_of(record).values())
        table.update({config: next(times) for config in table})


def lie(tables: Times, drawn: random.Random) -> None:
    """Multiply each config's times by a factor of its own, often 2 and seldom 4."""
    factors: dict[Config, float] = {}
    for table in tables:
        for config in table:
            factor = factors.setdefault(config, math.exp(drawn.gauss(0, 0.7)))
            table[config] *= factor


def mistake_one(tables: Times, drawn: random.Random) -> None:
    table = drawn.choice(tables)
    table[drawn.choice([*table])] *= drawn.choice([0.001, 0.1, 10, 1000])


NOISES, HICCUPS = (0.005, 0.01, 0.02), 0.005
"""Standard deviations of errors' logarithms, and the share of times that are far too long: in the
tables, over 1.5 times what both others say. A tune times again what seems `HOPELESS`."""


def simulate_noisy(seed: int) -> tuple[str, float, Tune]:
    """Run a tune that measures with errors, in a drawn situation, and say which and how large."""
    drawn, noise = random.Random(seed), NOISES[seed % len(NOISES)]

    def measure(config: Config) -> float:
        hiccup = drawn.uniform(1.5, HOPELESS) if drawn.random() < HICCUPS else 1.0
        return times[config] * hiccup * math.exp(drawn.gauss(0, noise))

    gpu, kernel = drawn.choice(sorted(read_tables()))
    situation, rows = drawn.choice(SITUATIONS[:3]), read_tables()[gpu, kernel]
    number = drawn.randrange(len(rows))
    times = times_of(rows[number][1])
    most = NEAR_A_TUNE if situation == SITUATIONS[0] else NEAR_ELSEWHERE
    records = nearest(rows[number][1].scenario, known_of(situation, gpu, kernel, number))[:most]
    return situation, noise, tune(rows[number], records, until=0.0, measure=measure)


def summarize_noisy(simulated: Sequence[tuple[str, float, Tune]]) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for part in (*SITUATIONS[:3], *NOISES, "all"):
        tunes = [tune for *of, tune in simulated if part in (*of, "all")]
        name = f"errors of {part:.1%}" if isinstance(part, float) else part
        report[name] = summarize_ends(tunes)
    return report


def summarize_ends(tunes: Sequence[Tune]) -> dict[str, Any]:
    return {
        "tunes": len(tunes),
        "until it ends": summary(t.final for t in tunes),
        "largest regret, %": round(100 * max(t.final for t in tunes), 2),
        **{f"over {limit}%": sum(100 * t.final > limit for t in tunes) for limit in (1, 2, 10)},
        "measured until it ends": share_measured(tunes),
    }


WRONG: dict[str, Callable[[Times, random.Random], None]] = {
    "all timings shuffled": shuffle_all,
    "shuffled in each scenario": shuffle_each,
    "in reversed order": reverse,
    "another kernel's": mistake_kernel,
    "of a GPU that lies": lie,
    "one absurd timing": mistake_one,
}


def simulate_wrong(seed: int) -> tuple[str, Tune]:
    """Run a tune whose records are wrong, and say in what way."""
    drawn, kind = random.Random(seed), [*WRONG][seed % len(WRONG)]
    gpu, kernel = drawn.choice(sorted(read_tables()))
    number = drawn.randrange(len(read_tables()[gpu, kernel]))
    known = known_of(drawn.choice(SITUATIONS[:3]), gpu, kernel, number)
    tables = [times_of(record) for _, record in known]
    WRONG[kind](tables, drawn)
    wrong: Known = []
    for (environment, record), times in zip(known, tables, strict=True):
        measurements = [
            entry.model_copy(update={"median": times[entry.config]})
            for entry in record.measurements
        ]
        wrong.append((environment, record.model_copy(update={"measurements": measurements})))
    return kind, tune(read_tables()[gpu, kernel][number], wrong, until=0.0)


def summarize_wrong(simulated: Sequence[tuple[str, Tune]]) -> dict[str, Any]:
    return {
        kind: summarize_ends([tune for own, tune in simulated if kind in (own, "all")])
        for kind in (*WRONG, "all")
    }


def summary(regrets: Iterable[float]) -> str:
    ordered = sorted(regrets)
    high = ordered[min(math.ceil(0.95 * len(ordered)), len(ordered)) - 1]
    return f"{100 * statistics.fmean(ordered):.2f} ({100 * high:.1f})"


def summarize(tunes: Sequence[Tune]) -> dict[str, Any]:
    return {
        **{f"{share:.0%} of the configs": summary(t.at(share) for t in tunes) for share in SHARES},
        **{f"{count} configs": summary(t.after(count) for t in tunes) for count in COUNTS},
        "until it ends": summary(t.final for t in tunes),
        "measured until it ends": share_measured(tunes),
    }


def share_measured(tunes: Iterable[Tune]) -> str:
    return f"{statistics.fmean(tune.stopped / tune.configs for tune in tunes):.1%}"


def search_at_random(record: Record, _: Known, seed: int) -> list[Config]:
    configs = sorted(times_of(record), key=lambda config: config.text)
    return random.Random(seed).sample(configs, len(configs))


def search_near(record: Record, records: Known, _: int) -> list[Config]:
    """Rank configs by their mean slowdown in other scenarios, weighted by how near these are."""
    totals: dict[Config, list[float]] = {config: [3.0, 1.0] for config in times_of(record)}
    for _environment, other in records:
        ours, theirs = record.scenario.args, other.scenario.args
        weight = math.exp(-sum(value_distance(ours[name], theirs[name]) for name in ours))
        times = times_of(other)
        for config in totals.keys() & times.keys():
            slowdown = math.log(times[config] / min(times.values()))
            totals[config][0] += 1e3 * weight * slowdown
            totals[config][1] += 1e3 * weight
    return sorted(totals, key=lambda config: (totals[config][0] / totals[config][1], config.text))


def search_by_tpe(record: Record, _: Known, seed: int) -> list[Config]:
    """Ask Optuna's TPE sampler, which knows only the configs' values."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    times = times_of(record)
    values = {config: {**config.params, **config.options} for config in times}
    choices = {
        name: sorted({v[name] for v in values.values()}) for name in values[next(iter(times))]
    }
    spaces = {
        name: optuna.distributions.CategoricalDistribution(options)
        for name, options in choices.items()
    }
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    order: list[Config] = []
    while len(order) < 0.3 * len(times):
        trial = study.ask(spaces)
        left = [config for config in times if config not in order]
        chosen = max(left, key=lambda c: sum(values[c][n] == v for n, v in trial.params.items()))
        if values[chosen] != trial.params:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            study.enqueue_trial(values[chosen])
            trial = study.ask(spaces)
        study.tell(trial, times[chosen])
        order.append(chosen)
    return order


def search_by_pattern(record: Record, _: Known, seed: int) -> list[Config]:
    """Search as Helion does: a population, and then the neighbours of the best of it.

    A neighbour differs in at most two parameters, by one step each. The population has ten configs
    instead of a hundred, which would be half of the space.
    """
    times, drawn = times_of(record), random.Random(seed)
    configs = sorted(times, key=lambda config: config.text)
    values = {config: {**config.params, **config.options} for config in configs}
    steps = {
        name: sorted({value[name] for value in values.values()}) for name in values[configs[0]]
    }
    position = {c: [steps[name].index(value) for name, value in values[c].items()] for c in configs}
    order = drawn.sample(configs, 10)
    while len(order) < 0.3 * len(configs):
        best = sorted(order, key=times.__getitem__)[:5]
        near = []
        for config in configs:
            gaps = [
                [abs(a - b) for a, b in zip(position[config], position[o], strict=True)]
                for o in best
            ]
            if config not in order and any(max(g) == 1 and sum(g) <= 2 for g in gaps):
                near.append(config)
        left = [config for config in configs if config not in order]
        order += drawn.sample(near or left, min(len(near or left), 10))
    return order


SEARCHES: dict[str, Callable[[Record, Known, int], list[Config]]] = {
    "nearest scenarios": search_near,
    "random": search_at_random,
    "Optuna's TPE": search_by_tpe,
    "pattern search": search_by_pattern,
}


def compare(name: str, gpu: str, kernel: str, number: int) -> Tune:
    """Run another search in a scenario, or a drawn one five times."""
    record = read_tables()[gpu, kernel][number][1]
    records = known_of("other scenarios", gpu, kernel, number)
    times = times_of(record)
    best, runs = min(times.values()), []
    for seed in range(1 if name == "nearest scenarios" else 5):
        order = SEARCHES[name](record, records, seed)[: math.ceil(0.3 * len(times))]
        reached = [min(times[c] for c in order[:count]) for count in range(1, len(order) + 1)]
        runs.append([time / best - 1 for time in reached])
    return Tune(
        [statistics.fmean(regrets) for regrets in zip(*runs, strict=True)], 1, len(times), {}
    )


def plot(curves: dict[str, Sequence[Tune]]) -> None:
    """Draw the mean regret over the share of measured configs."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    shares = [0.01 * step for step in range(1, 31)]
    figure, axes = plt.subplots(figsize=(7, 4))
    for name, tunes in curves.items():
        means = [100 * statistics.fmean(t.at(share) for t in tunes) for share in shares]
        axes.plot([100 * share for share in shares], means, label=name)
    axes.set(yscale="log", ylim=(0.03, 200), xlabel="measured configs, %", ylabel="mean regret, %")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(RESULTS.parents[1] / "docs" / "prediction.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wrong", type=int, default=1000, help="tunes whose records are wrong")
    parser.add_argument("--noisy", type=int, default=1000, help="tunes that measure with errors")
    parser.add_argument("--compare", action="store_true", help="run other searches too")
    arguments = parser.parse_args()
    tables = read_tables()
    cells = sorted(tables)
    scenarios = [(*cell, number) for cell in cells for number in range(len(tables[cell]))]
    columns = list(zip(*scenarios, strict=True))
    path = RESULTS / "prediction.json"
    report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    curves: dict[str, Sequence[Tune]] = {}
    report["machine"] = f"{datetime.now(timezone.utc):%Y-%m-%d}, Python {platform.python_version()}"
    with ProcessPoolExecutor() as pool:
        report["what a tune saves"] = report_savings(pool, columns)
        for situation in SITUATIONS:
            tunes = list(pool.map(partial(simulate, situation), *columns, chunksize=4))
            summaries = report.setdefault(situation, {})
            summaries["all"] = summarize(tunes)
            for cell in cells:
                own = [t for t, one in zip(tunes, scenarios, strict=True) if one[:2] == cell]
                summaries[f"{cell[1]} on an {cell[0]}"] = summarize(own)
            print(situation, json.dumps(summaries["all"]), flush=True)
            if situation in ("other scenarios", "nothing"):
                curves[f"this search, knowing {situation}"] = tunes
        for name, rank in DEFAULTS.items():
            for situation in (*SITUATIONS[:3], ALSO_ELSEWHERE):
                guesses = list(pool.map(partial(guess, rank, situation), *columns, chunksize=4))
                losses = report.setdefault("without a measurement", {}).setdefault(name, {})
                losses[situation] = summarize_guesses(guesses)
                print(name, situation, losses[situation], flush=True)
        if arguments.wrong:
            wrong = list(pool.map(simulate_wrong, range(arguments.wrong), chunksize=8))
            report["wrong records"] = summarize_wrong(wrong)
            print("wrong records", json.dumps(report["wrong records"]), flush=True)
        if arguments.noisy:
            noisy = list(pool.map(simulate_noisy, range(arguments.noisy), chunksize=8))
            report["noisy measurements"] = summarize_noisy(noisy)
            print("noisy measurements", json.dumps(report["noisy measurements"]), flush=True)
        if arguments.compare:
            for name in SEARCHES:
                curves[name] = list(pool.map(partial(compare, name), *columns, chunksize=4))
                report.setdefault("other searches", {})[name] = {
                    f"{share:.0%}": summary(t.at(share) for t in curves[name]) for share in SHARES
                }
                print(name, report["other searches"][name], flush=True)
            plot(curves)
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
