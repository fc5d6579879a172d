"""Process of a fleet that looks up records as launches in mode `tune` do, and tells the outcomes.

python fleet_client.py URL < contexts-and-scenarios.json
"""

from __future__ import annotations

import json
import sys
import time

started = time.time()

from dejavu_cache.errors import StoreError  # noqa: E402
from dejavu_cache.model.scenario import Context, Scenario  # noqa: E402
from dejavu_cache.stores import Store, open_store  # noqa: E402

TUNE_WAIT = 120.0
"""Seconds that a launch waits, by default, for another process that tunes its scenario."""


def look_up(store: Store, context: Context, scenario: Scenario) -> str:
    """Look up a record, once more under the lease where a launch would tune; name the outcome."""
    if is_recorded(store, context, scenario, fresh=False):
        return "found"
    with store.lease(context, scenario, wait=TUNE_WAIT) as is_leased:
        if is_recorded(store, context, scenario, fresh=True):
            return "found late"
    return "would be tuned" if is_leased else "default"


def is_recorded(store: Store, context: Context, scenario: Scenario, *, fresh: bool) -> bool:
    """Return whether a record with a winner is found; an error counts as a miss."""
    try:
        found = store.get(context, scenario, fresh=fresh)
    except StoreError:
        return False
    return found is not None and found.record.winner is not None


def main() -> None:
    """Look up what standard input lists, and print the end, the seconds and the outcome of each."""
    looked_up = []
    store = open_store(sys.argv[1])
    for context_text, scenario_text in json.load(sys.stdin):
        context = Context.model_validate_json(context_text)
        scenario = Scenario.model_validate_json(scenario_text)
        start = time.perf_counter()
        outcome = look_up(store, context, scenario)
        looked_up.append((time.time(), time.perf_counter() - start, outcome))
    print(json.dumps({"imported": looked_up[0][0] - started, "looked_up": looked_up}), flush=True)
    store.close()


if __name__ == "__main__":
    main()
