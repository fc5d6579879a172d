"""How few measurements find the winners that another version of Triton has made slow.

    python benchmarks/triton_upgrade.py    # reads results/configs-H100*.json; needs no GPU

`config_tables.py` measured each config of 80 drawn scenarios with two versions of Triton on an
H100. A winner of the old one has lost if with the new one it is over 3% slower than the best. It is
found once a config within 3% of the best is measured. Here the search of `sweep --tune-loss 0.03`
is run on the table of the new version, with all records of the old one in the store, and with none.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from prediction import RESULTS, Tune, read_table, share_measured, summary, times_of, tune

LOST = 0.03
FOUND = 0.95
COUNTS = (1, 2, 3, 5, 8)


class Upgrade(NamedTuple):
    """A scenario after the upgrade.

    Attributes:
        loss: how much slower the old version's winner is than the best.
        tune: the tune with the new version.
    """

    loss: float
    tune: Tune


def upgrade(old: str, new: str, known: bool, kernel: str, number: int) -> Upgrade:
    """Tune a scenario with the new version, with or without the old one's records."""
    before, after = read_table(old)[kernel], read_table(new)[kernel]
    times = times_of(after[number][1])
    winner, _ = min(times_of(before[number][1]).items(), key=itemgetter(1))
    loss = times.get(winner, math.inf) / min(times.values()) - 1
    return Upgrade(loss, tune(after[number], before if known else [], until=0.3, loss=LOST))


def summarize(upgrades: Sequence[Upgrade]) -> dict[str, Any]:
    lost = [each.tune for each in upgrades if each.loss > LOST]
    shares = [step / 100 for step in range(1, 101)]

    def found(share: float) -> float:
        return statistics.fmean(t.at(share) <= LOST for t in lost)

    return {
        "share of the configs that finds 95%": next((s for s in shares if found(s) >= FOUND), 1.0),
        **{
            f"found by {count} configs": sum(t.after(count) <= LOST for t in lost)
            for count in COUNTS
        },
        "found when it ends": sum(t.final <= LOST for t in lost),
        "measured until it ends": share_measured(each.tune for each in upgrades),
        "regret when it ends": summary(each.tune.final for each in upgrades),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", default="H100")
    parser.add_argument("--new", default="H100-3.9")
    arguments = parser.parse_args()
    after = read_table(arguments.new)
    scenarios = [(kernel, number) for kernel, rows in after.items() for number in range(len(rows))]
    columns = list(zip(*scenarios, strict=True))
    report: dict[str, Any] = {}
    with ProcessPoolExecutor() as pool:
        for name, known in {"the old records": True, "no record": False}.items():
            run = partial(upgrade, arguments.old, arguments.new, known)
            upgrades = list(pool.map(run, *columns, chunksize=4))
            report["winners of the old version"] = {
                "slower than the best": summary(each.loss for each in upgrades),
                "over 3% slower": sum(each.loss > LOST for each in upgrades),
                "of": len(upgrades),
            }
            report[name] = summarize(upgrades)
            print(name, json.dumps(report), flush=True)
    RESULTS.joinpath("triton-upgrade.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
