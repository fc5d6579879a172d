"""A sweep: the cases of a suite, handed to hosts until all are tuned."""

from __future__ import annotations

import itertools
import math
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import DejavuError, SettingsError
from .hosts import HostLostError, SweepHost
from .messages import CaseJob, CaseOutcome, ConfigCrash, Task

__all__ = ["Sweep", "SweepReport", "shard_of"]

LEASE_WAIT = 2.0
"""Seconds to wait at a time for a case that another sweep measures."""

PATIENCE = 900.0
"""Seconds after which a case that another sweep measures is left to it, if nothing else happens."""

LIVES = 2
"""How many workers one config, or one case, may take down before it is given up."""

OnEvent = Callable[[Mapping[str, Any]], None]


def shard_of(cases: Sequence[str], shard: str) -> list[str]:
    """The part of the cases that `i/n` names, counted from 1; the parts are disjoint and make up the whole.

    Raises:
        SettingsError: it is not of this form.
    """
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", shard)
    number, parts = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= parts:
        raise SettingsError(f"--shard {shard!r}: write i/n with i from 1 to n, as in 2/8")
    return list(cases[number - 1 :: parts])


def _in_parts(cases: Sequence[str], parts: int) -> list[Sequence[str]]:
    """The cases in so many runs of neighbours, about equally long."""
    edges = [number * len(cases) // parts for number in range(parts + 1)]
    return [cases[start:end] for start, end in itertools.pairwise(edges)]


@dataclass
class SweepReport:
    """What became of a sweep.

    Attributes:
        outcomes: by case, in the order in which they came.
        left: cases that nobody came to, or came to an end with.
        stopped: why not all were, or nothing.
        kept: the files, on whatever machine, with what the store has not taken.
        workers: how many there were at once.
    """

    outcomes: dict[str, CaseOutcome] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    stopped: str = ""
    kept: list[str] = field(default_factory=list)
    seconds: float = 0.0
    workers: int = 1

    def of(self, *statuses: str) -> list[CaseOutcome]:
        """The outcomes with these statuses."""
        return [each for each in self.outcomes.values() if each.status in statuses]

    @property
    def measured(self) -> int:
        """How many configs were."""
        return sum(each.measured for each in self.outcomes.values())

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        return not (
            self.left
            or self.stopped
            or self.kept
            or self.of("failed", "skipped", "partial", "busy")
        )


class Sweep:
    """Hands cases to hosts, one thread each.

    A case whose host is lost is taken over by the next one. A config that takes down two workers, or says itself
    that it was to blame, is recorded as a crash and not tried again. A case that another sweep measures is
    come back to at the end.

    Each host goes through a part of its own, then helps where most is left. Neighbours in a suite mostly share their
    binaries: side by side, two hosts would compile all of them twice.

    Args:
        cases: names, in order.
        do: `measure`, `plan` or `verify`.
        budget: seconds for all of it.
        on_event: is told `case`, `config`, `outcome` and `lost`, from any thread. If it raises, the sweep stops.
    """

    def __init__(
        self,
        hosts: Sequence[SweepHost],
        cases: Sequence[str],
        *,
        do: Task = "measure",
        budget: float | None = None,
        on_event: OnEvent = lambda event: None,
    ) -> None:
        self._hosts = hosts
        self._cases = cases
        self._do = do
        self._on_event = on_event
        self._until = math.inf if budget is None else time.monotonic() + budget
        self._parts = [deque(part) for part in _in_parts(cases, len(hosts))]
        self._working = 0
        self._later: deque[str] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._crashes: dict[str, list[ConfigCrash]] = {}
        self._lost: Counter[tuple[str, str]] = Counter()
        self._since_progress = time.monotonic()
        self._errors: list[Exception] = []
        self.report = SweepReport(workers=len(hosts))

    def run(self) -> SweepReport:
        """Works until all cases are done, time is over, or somebody presses Ctrl-C.

        Raises:
            DejavuError: no host can work at all.
        """
        start = time.monotonic()
        threads = [
            threading.Thread(target=self._work, args=each, daemon=True)
            for each in enumerate(self._hosts)
        ]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads) and not self._done:
                time.sleep(0.05)
        except KeyboardInterrupt:
            self.report.stopped = "interrupted"
        finally:
            self._stopping = True
            for host in self._hosts:
                host.close()
            for thread in threads:
                thread.join(1.0)
            for host in self._hosts:  # what was started meanwhile
                host.close()
        if self._errors and not self.report.outcomes:
            raise self._errors[0]
        if time.monotonic() > self._until and (self._waiting or self._later):
            self.report.stopped = self.report.stopped or "the budget is used up"
        if self._errors:
            self.report.stopped = self.report.stopped or _told(self._errors[0])
        self.report.left = [case for case in self._cases if case not in self.report.outcomes]
        self.report.kept = sorted({each for host in self._hosts for each in host.kept()})
        self.report.seconds = time.monotonic() - start
        return self.report

    @property
    def _waiting(self) -> list[str]:
        return [case for part in self._parts for case in part]

    @property
    def _done(self) -> bool:
        """Whether nothing is left to do, though a host may still be getting ready."""
        with self._changed:
            return not (self._waiting or self._later or self._working)

    def _work(self, number: int, host: SweepHost) -> None:
        while not self._done:
            try:
                host.cases()  # a host that has to be replaced holds no case meanwhile
            except Exception as error:
                if not self._stopping:
                    self._errors.append(error)
                return
            taken = self._take(self._parts[number])
            if taken is None:
                return
            outcome = None
            try:
                outcome = self._attempt(host, *taken)
            except Exception as error:
                self._errors.append(error)
                return
            finally:  # whatever happens, others must not wait for this case
                self._note(taken[0], outcome, self._parts[number])

    def _take(self, own: deque[str]) -> tuple[str, float] | None:
        """The next case, and how long to wait for another sweep that measures it; None at the end."""
        with self._changed:
            while not self._stopping and time.monotonic() < self._until:
                if self._waiting:
                    self._working += 1
                    return own.popleft() if own else max(self._parts, key=len).pop(), 0.0
                if self._later and time.monotonic() < self._since_progress + PATIENCE:
                    self._working += 1
                    return self._later.popleft(), LEASE_WAIT
                if not self._working:
                    return None
                self._changed.wait(0.2)  # a host that is lost gives its case back
            return None

    def _attempt(self, host: SweepHost, case: str, wait: float) -> CaseOutcome | None:
        """A case's outcome, or None if it must be tried again."""
        left = None if self._until == math.inf else max(self._until - time.monotonic(), 0.001)
        try:
            job = CaseJob(
                do=self._do,
                case=case,
                wait=wait,
                seconds=left,
                crashes=tuple(self._crashes.get(case, ())),
            )
            return host.do(job, self._tell)
        except HostLostError as error:
            if self._stopping:
                return None
            self._tell({"event": "lost", "case": case, "reason": error.reason})
            return self._after_loss(case, error)
        except Exception as error:
            return CaseOutcome(
                case=case, status="failed", message=f"{type(error).__name__}: {error}"[:2000]
            )

    def _tell(self, event: Mapping[str, Any]) -> None:
        """Tells what happens; what is begun is ended even if whoever listens raises, and nothing else is begun."""
        try:
            self._on_event(event)
        except Exception as error:
            self._errors.append(error)
            self._stopping = True

    def _after_loss(self, case: str, error: HostLostError) -> CaseOutcome | None:
        if error.blame == "machine":
            return None
        self._lost[case, str(error.config)] += 1
        to_blame = error.blame == "config" or self._lost[case, str(error.config)] >= LIVES
        if not to_blame:
            return None
        if error.config is None or self._do != "measure":
            return CaseOutcome(
                case=case, status="failed", message=f"it took down its worker: {error.reason}"
            )
        self._crashes.setdefault(case, []).append(
            ConfigCrash(config=error.config, reason=error.reason[:2000])
        )
        return None

    def _note(self, case: str, outcome: CaseOutcome | None, own: deque[str]) -> None:
        with self._changed:
            self._working -= 1
            if outcome is None:
                own.appendleft(case)
            elif outcome.status == "busy":
                self._later.append(case)
                self.report.outcomes[case] = outcome
            else:
                self._since_progress = time.monotonic()
                before = self.report.outcomes.pop(case, None)
                if before is not None and before.status == "busy" and outcome.status == "known":
                    outcome = outcome.model_copy(update={"message": "measured by another sweep"})
                self.report.outcomes[case] = outcome
            self._changed.notify_all()
        if outcome is not None and outcome.status != "busy":
            self._tell({"event": "outcome", "outcome": outcome})


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, DejavuError) else f"{type(error).__name__}: {error}"
