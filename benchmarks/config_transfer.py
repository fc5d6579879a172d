"""How few configs must be measured, if records of other scenarios or of another GPU rank them.

    python benchmarks/config_transfer.py     # reads results/configs-*.json; needs no GPU

The regret is how much slower the best of the first configs of a ranking is than the best of all. It
is given as the mean over the drawn scenarios, and in brackets the 95th percentile. The tables are
those of `config_tables.py`: each config of a scenario was measured.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results"
MEASURED = (1, 3, 8)
DRAWS = 200


class Scenario(NamedTuple):
    """A scenario's key arguments, and the time of each config that runs, by its number."""

    args: dict[str, int]
    times: dict[int, float]

    def slowdowns(self) -> dict[int, float]:
        """Return the logarithm of each config's time over the best one's."""
        best = min(self.times.values())
        return {config: math.log(time / best) for config, time in self.times.items()}

    def regret(self, ranking: Iterable[int], measured: int) -> float:
        """Return the regret of the first configs of a ranking, those left out that do not run."""
        first = [config for config in ranking if config in self.times][:measured]
        return min(map(self.times.__getitem__, first)) / min(self.times.values()) - 1


Table = dict[str, list[Scenario]]


def read_table(path: Path) -> tuple[str, Table]:
    """Return a GPU's name and its scenarios by kernel."""
    report = json.loads(path.read_text())
    table = {}
    for kernel, measured in report["kernels"].items():
        table[kernel] = [read_scenario(**one) for one in measured["scenarios"]]
    return report["device"], table


def read_scenario(args: dict[str, int], rows: dict[str, list[float]]) -> Scenario:
    """Return a scenario of a table, whose rows begin with the time."""
    return Scenario(args, {int(config): row[0] for config, row in rows.items()})


def distance(left: Scenario, right: Scenario) -> float:
    """Return how far apart two scenarios are, in powers of two summed over the key arguments."""
    values = zip(left.args.values(), right.args.values(), strict=True)
    return math.fsum(abs(math.log2((max(a, 0) + 1) / (max(b, 0) + 1))) for a, b in values)


def by_other_scenarios(wanted: Scenario, others: list[Scenario], reach: float) -> list[int]:
    """Rank configs by their slowdown in other scenarios, which count less the farther they are."""
    sums: dict[int, float] = {}
    weights: dict[int, float] = {}
    for other in others:
        weight = math.exp(-distance(wanted, other) / reach)
        for config, slowdown in other.slowdowns().items():
            sums[config] = sums.get(config, 0.0) + weight * min(slowdown, 2.0)
            weights[config] = weights.get(config, 0.0) + weight
    return sorted(sums, key=lambda config: sums[config] / weights[config])


def regret_at_random(scenario: Scenario, measured: int) -> float:
    """Return the mean regret of some configs that are drawn."""
    rng, configs = random.Random(measured), [*scenario.times]
    draws = (rng.sample(configs, measured) for _ in range(DRAWS))
    return statistics.fmean(scenario.regret(draw, measured) for draw in draws)


def summarize(regrets: list[float]) -> str:
    """Return the mean and the 95th percentile in percent."""
    high = statistics.quantiles(regrets, n=20, method="inclusive")[-1]
    return f"{100 * statistics.fmean(regrets):.2f} ({100 * high:.1f})"


def compare(scenarios: list[Scenario], elsewhere: list[Scenario]) -> dict[str, list[str]]:
    """Return the regret of each ranking for the numbers of measured configs."""

    def others(index: int) -> list[Scenario]:
        return scenarios[:index] + scenarios[index + 1 :]

    rankings: dict[str, Callable[[int], list[int]]] = {
        "the same scenario on the other GPU": lambda index: sorted(
            elsewhere[index].times, key=elsewhere[index].times.__getitem__
        ),
        "other scenarios, the near ones first": lambda index: by_other_scenarios(
            scenarios[index], others(index), 1.0
        ),
        "other scenarios, all alike": lambda index: by_other_scenarios(
            scenarios[index], others(index), math.inf
        ),
    }
    found: dict[str, list[str]] = {}
    for name, rank in rankings.items():
        ranked = [rank(index) for index in range(len(scenarios))]
        found[name] = [
            summarize(
                [one.regret(order, count) for one, order in zip(scenarios, ranked, strict=True)]
            )
            for count in MEASURED
        ]
    found["at random"] = [
        summarize([regret_at_random(one, count) for one in scenarios]) for count in MEASURED
    ]
    return found


def main() -> None:
    tables: dict[str, Table] = dict(map(read_table, sorted(RESULTS.glob("configs-*.json"))))
    report: dict[str, Any] = {}
    for device, table in tables.items():
        (other,) = (found for name, found in tables.items() if name != device)
        print(f"\n{device}: regret in percent after measuring {MEASURED} configs")
        for kernel, scenarios in table.items():
            print(
                f"  {kernel}, {statistics.fmean(len(one.times) for one in scenarios):.0f} configs"
            )
            for name, regrets in compare(scenarios, other[kernel]).items():
                print(f"    {name:38}" + "".join(f"{regret:>18}" for regret in regrets))
                report.setdefault(device, {}).setdefault(kernel, {})[name] = regrets
    measured = {"measured configs": MEASURED, "regret in percent: mean (95th)": report}
    (RESULTS / "config-transfer.json").write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
