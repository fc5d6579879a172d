"""Merge records of one scenario, and remove parts that a server has recalled.

A merge is a union: nothing that was measured is lost, up to a number of measurements that no tune
makes, and the order of merges does not matter. A recall names parts by the digest of their text.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from operator import attrgetter

from .record import MOST_LAUNCHES, MOST_MEASUREMENTS, Measurement, Pin, Record, Winner
from .scenario import Scenario, canonical_json, moment_after


def merge_records(left: Record, right: Record) -> Record:
    """Return the union of two records of one scenario.

    The order does not matter and a repeated merge changes nothing. Where both measured one config,
    the later measurement stands, unless only one found the config wrong or measured more cases; of
    winners and pins, the later one stands, except one that was not compared beside one that was.
    """
    if left.scenario != right.scenario:
        raise ValueError(f"these are different scenarios: {left.scenario} and {right.scenario}")
    if left == right:
        return left
    by_config = left.by_config
    for config, theirs in right.by_config.items():
        ours = by_config.get(config, theirs)
        by_config[config] = ours if ours == theirs else max(ours, theirs, key=_weight)
    measurements = list(by_config.values())
    if len(measurements) > MOST_MEASUREMENTS:  # the oldest go, but for wrong results
        measurements.sort(key=lambda item: (item.is_wrong, _recency(item)), reverse=True)
    launches = sorted({*(left.launches or ()), *(right.launches or ())}, key=attrgetter("text"))
    return Record(
        scenario=left.scenario,
        winner=max(filter(None, (left.winner, right.winner)), key=_recency, default=None),
        pin=max(filter(None, (left.pin, right.pin)), key=_recency, default=None),
        launches=tuple(launches[:MOST_LAUNCHES]),
        measurements=tuple(measurements[:MOST_MEASUREMENTS]),
    )


def _weight(measurement: Measurement) -> tuple[object, ...]:
    """Return a key that is greatest for what stands of several measurements of one config."""
    is_wrong = measurement.is_wrong  # A later timing does not make wrong results right.
    return not measurement.skipped, is_wrong, measurement.case_count, _recency(measurement)


def _recency(entry: Measurement | Pin | Winner) -> tuple[bool, datetime, str]:
    """Return a key that is greatest for the latest of several entries, ties broken by their text.

    A winner that was not compared gives way to one that was.
    """
    is_compared = isinstance(entry, Winner) and entry.is_compared
    return is_compared, entry.at, canonical_json(entry)


def date_after(record: Record, earlier: Record) -> Record:
    """Return a record whose measurements and winner a merge keeps instead of an earlier record's.

    An entry is dated anew only if another machine's clock has dated the earlier one after it. The
    winner stays at least as late as the measurements, since it was selected by them.
    """
    standing, measurements = earlier.by_config, []
    for measurement in record.measurements:
        replaced = standing.get(measurement.config)
        if replaced is not None and replaced.at >= measurement.at:
            measurement = measurement.model_copy(update={"at": moment_after(replaced.at)})
        measurements.append(measurement)
    winner = record.winner
    if winner is not None:
        moments = [winner.at, *map(attrgetter("at"), measurements)]
        if earlier.winner is not None and earlier.winner.at >= winner.at:
            moments.append(moment_after(earlier.winner.at))
        winner = winner.model_copy(update={"at": max(moments)})
    return record.model_copy(update={"measurements": tuple(measurements), "winner": winner})


def merge_into(
    base: Mapping[Scenario, Record], records: Iterable[Record]
) -> dict[Scenario, Record]:
    """Return `base` with `records` merged in, as a new dictionary."""
    merged = dict(base)
    for record in records:
        before = merged.get(record.scenario)
        merged[record.scenario] = record if before is None else merge_records(before, record)
    return merged


def part_digest(part: Measurement | Pin | Winner) -> str:
    """Return the digest of a measurement, a pin or a winner, which is equal on all machines."""
    return hashlib.sha256(canonical_json(part).encode()).hexdigest()


def without_parts(record: Record, parts: Collection[str]) -> Record | None:
    """Return a record without the parts of some digests; None if nothing is left.

    Parts are measurements, pins and winners. A winner whose timing is gone goes with it.
    """
    measurements = tuple(
        measurement for measurement in record.measurements if part_digest(measurement) not in parts
    )
    pin = None if record.pin and part_digest(record.pin) in parts else record.pin
    winner = record.winner if record.winner and part_digest(record.winner) not in parts else None
    unchanged = pin is record.pin and winner is record.winner
    if unchanged and len(measurements) == len(record.measurements):
        return record
    if not measurements and pin is None:
        return None
    configs = {measurement.config for measurement in measurements}
    winner = winner if winner and winner.config in configs else None
    return record.model_copy(update={"measurements": measurements, "pin": pin, "winner": winner})
