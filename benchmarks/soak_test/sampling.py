"""Memory and open files of processes, sampled over time."""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple


class Sample(NamedTuple):
    """One look at a process: seconds since the start, resident megabytes, open descriptors."""

    at: float
    megabytes: float
    descriptors: int


class Sampler:
    """Collects samples of named processes."""

    def __init__(self, processes: dict[str, int]) -> None:
        """Watch processes, given by name and id."""
        self.samples: dict[str, list[Sample]] = defaultdict(list)
        self._processes = processes

    def sample(self, at: float) -> None:
        """Look at every process that still runs."""
        for name, pid in self._processes.items():
            folder = Path(f"/proc/{pid}")
            try:
                pages = int((folder / "statm").read_text().split()[1])
                descriptors = len(list((folder / "fd").iterdir()))
            except (OSError, IndexError):
                continue
            self.samples[name].append(Sample(round(at, 1), round(pages / 256, 1), descriptors))


def is_flat(samples: list[Sample]) -> bool:
    """Return whether the last quarter of samples is about as large as the second one."""
    quarter = len(samples) // 4
    if not quarter:
        return False
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    before = statistics.median(sample.megabytes for sample in early)
    after = statistics.median(sample.megabytes for sample in late)
    more_files = max(s.descriptors for s in late) - max(s.descriptors for s in early)
    return after <= 1.2 * before + 8 and more_files <= 20
