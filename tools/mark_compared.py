"""Mark the winners of a folder of records as compared, if nothing is said of them.

For records of a sweep that compared its winners and did not say so yet: `tools/mark_compared.py
FOLDER`. No timing, and no other part of a record, changes.
"""

from __future__ import annotations

import sys

from dejavu_cache.model.record import ALL_OUTPUTS, OutputVerdict, Record
from dejavu_cache.stores import FileStore

VERDICT = OutputVerdict(outcome="equal", reason="compared by the sweep that recorded it")


def mark(record: Record) -> Record | None:
    """Return a record's winner with the verdict, or None where there is nothing to say."""
    winner = record.winner
    if winner is None or winner.results is not None or not record.is_finished:
        return None
    winner = winner.model_copy(update={"results": {ALL_OUTPUTS: VERDICT}})
    return Record(scenario=record.scenario, winner=winner)


def main(folder: str) -> None:
    """Mark all winners of a folder, and say how many."""
    store, count = FileStore(folder), 0
    for context in list(store.contexts()):
        marked = [addition for record in store.records(context) if (addition := mark(record))]
        store.put(context, marked)
        count += len(marked)
    print(f"{count} winners marked as compared in {folder}")


if __name__ == "__main__":
    main(sys.argv[1])
