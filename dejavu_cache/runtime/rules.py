"""What a scenario's record means to a launch.

The rules are functions of the request, the record and what this process has found out; they read
and write nothing. A launch asks them in this order:

1. `corrected_record`: which measurements count. Those of other code do not; this process's own
   stand before what others have recorded of the same config.
2. `recorded_choice`: what the record says. A person's choice, if the launch may run it, or else
   the config that `model.selection` calls the best.
3. `trusted_choice`: the same, as far as it may run without comparing its results here.
4. `settled_choice`: whether a process that may tune has nothing left to do, and what runs then.
5. `due_configs`, `untried_failures`: which configs a tune measures; `earlier_timings`: which
   earlier measurements take part in it; `may_launch_default`: whether there is a config to compare
   the others with.
6. `winner_to_record`: what a tune writes about its best config.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

from ..model.record import (
    NO_WORK,
    Measurement,
    Record,
    Results,
    Winner,
    are_compared,
    has_reason,
    reasons_not_compared,
)
from ..model.scenario import Config, now
from ..model.selection import is_credible, winner
from ..stores import Found
from ..system.notices import whoami
from ..triton_internals.config_names import describe
from ..tuning.measurement_marks import Suspect
from .request import Request, Resolution


@dataclass
class Findings:
    """What this process has found out about a scenario.

    A server keeps the first measurement of a config, so it may go on saying what this process knows
    to be false.

    Attributes:
        trials: its own measurements.
        rejected: configs that could not run at a launch.
        compared: configs whose results were compared with the default's.
        hidden: why nothing can be compared in any launch; None while something may be.
        is_raced: whether all configs are timed, and the fastest one is yet to be compared.
    """

    trials: Mapping[Config, Measurement] = field(default_factory=dict)
    rejected: set[Config] = field(default_factory=set)
    compared: set[Config] = field(default_factory=set)
    hidden: Results | None = None
    is_raced: bool = False

    def add_trials(self, measurements: Iterable[Measurement]) -> None:
        """Remember measurements; one for which memory lacked says nothing."""
        trials = dict(self.trials)  # other threads may go through the present ones
        for entry in measurements:
            if not entry.skipped:
                trials[entry.config] = entry
        self.trials = trials


def corrected_record(record: Record, findings: Findings) -> Record:
    """Return a record in which other machines' measurements give way to this process's.

    Once another config wins than the one that was adopted, the measurements are left out of which
    nobody knows that the code is equal.
    """
    since = record.winner.adopted_at if record.winner else None
    if since is None and not findings.trials:
        return record
    measured = record.by_config
    if record.winner and since:
        winning = measured.get(record.winner.config)
        if winning is None or winning.at > since:
            measured = {config: entry for config, entry in measured.items() if entry.at > since}
    for config, trial in findings.trials.items():
        if config not in measured or measured[config].by != trial.by:
            measured[config] = trial
    # In order, since the first one of equal timings wins.
    measurements = sorted(measured.values(), key=attrgetter("config.text"))
    return record.model_copy(update={"measurements": tuple(measurements)})


def recorded_choice(
    request: Request, found: Found | None, among: Collection[Config] | None = None
) -> Resolution | None:
    """Return the resolution to a record's pin, or else to the best declared config, or None.

    A record only selects among the configs that the kernel declares today, whoever wrote it. It may
    be of a scenario that stands in for the request's. `among` are the configs of which the best is
    taken; None stands for all declared ones.
    """
    if found is None:
        return None
    record, pinned = found.record, found.record.pinned
    if pinned is not None and pinned in request.declared:
        return request.resolution("pinned", request.declared[pinned], found.store)
    best = best_config(request, record, among)
    if best is None:
        return None
    is_standard = request.check is None or best == describe(request.default)
    not_compared = () if is_standard else record.reasons_not_compared(best)
    return request.resolution("exact", request.declared[best], found.store, not_compared)


def trusted_choice(
    request: Request, found: Found | None, *, uncompared: bool = False
) -> Resolution | None:
    """Return the resolution from a record to a config that runs without a comparison, or None.

    It is the first of these, where results are to be compared at all:

    1. a person's choice;
    2. the fastest config, if `trusted_configs` has it;
    3. of the trusted ones the fastest, if the winner is among them;
    4. if nothing can be compared, and the launch may not run the winner: the fastest.

    With `uncompared`, a winner may run that nobody has compared, labelled as such.
    """
    leader = recorded_choice(request, found)
    if leader is None or found is None or leader.how == "pinned" or request.check is None:
        return leader
    record = found.record
    if record.winner is None or not record.is_finished:
        return None
    trusted = trusted_configs(record, describe(request.default), uncompared=uncompared)
    if describe(leader.config) in trusted:
        return leader
    if record.winner.config not in request.declared:
        return leader if uncompared else None
    return recorded_choice(request, found, trusted) if record.winner.config in trusted else None


def trusted_configs(
    record: Record, default: Config | None, *, uncompared: bool = False
) -> set[Config]:
    """Return the configs that a launch may take from a record without comparing their results.

    They are the default config, by which the others are judged, and the winner, if its results were
    compared or `uncompared` is set. If the default has failed, there is nothing to compare with,
    and nothing else to run.
    """
    trusted = set() if default is None else {default}
    if record.winner is None or not record.is_finished:
        return trusted
    if not (uncompared or record.winner.is_compared):
        standard = record.by_config.get(default) if default else None
        if standard is None or standard.failure is None or standard.skipped:
            return trusted
    return trusted | {record.winner.config}


def is_trusted(request: Request, record: Record, config: Config) -> bool:
    """Return whether a launch may run a recorded config without comparing its results."""
    return request.check is None or config in trusted_configs(record, describe(request.default))


def settled_choice(request: Request, found: Found | None, findings: Findings) -> Resolution | None:
    """Return what a recorded scenario's launch runs, or None if a tune or a comparison is due.

    A pinned scenario is settled.
    """
    recorded = recorded_choice(request, found)
    if recorded is not None and recorded.how == "pinned":
        return recorded
    if findings.hidden is not None and request.check is not None:
        return uncompared_choice(request, found, findings.hidden)
    if recorded is None or found is None:
        return None
    fastest = describe(recorded.config)
    if fastest not in findings.compared and not is_trusted(request, found.record, fastest):
        return None
    return None if has_work(request, found.record) else recorded


def uncompared_choice(request: Request, found: Found | None, results: Results) -> Resolution:
    """Return what runs where nothing shows whether the fastest config's results are right.

    It is a recorded config that was compared elsewhere, or else the default. `results` say why.
    """
    reasons, is_idle = reasons_not_compared(results), has_reason(results, NO_WORK)
    trusted = trusted_choice(request, found)
    if trusted is not None:
        return replace(trusted, not_compared=reasons, is_idle=is_idle)
    default = request.resolution("default", request.default)
    return replace(default, not_tuned="; ".join(reasons), is_idle=is_idle)


def best_config(
    request: Request, record: Record, among: Collection[Config] | None = None
) -> Config | None:
    """Return the best config by a record's timings, or None if none is believed.

    `among` are the configs of which it is taken; None stands for all declared ones.
    """
    configs = request.declared if among is None else among
    return winner(record, configs, describe(request.default), here=True)


def unmeasured_configs(request: Request, record: Record | None) -> list[Config]:
    """Return the declared configs that have neither a timing nor a failure that counts.

    Timings of other machines that no launch can have count as unmeasured.
    """
    unmeasured = dict.fromkeys(request.declared)
    for entry in record.measurements if record else ():
        if entry.failure is None:
            counts = is_credible(entry) or entry.by == whoami()
        else:
            counts = not entry.skipped
        if counts:
            unmeasured.pop(entry.config, None)
    return list(unmeasured)


def due_configs(request: Request, record: Record | None) -> list[Config]:
    """Return the configs left to measure, the default first; none once the budget is met."""
    unmeasured = unmeasured_configs(request, record)
    if not unmeasured or budgeted_count(request, len(unmeasured)) == 0:
        return []
    if record and record.omits(request.declared.digest, request.budget.loss):
        return []
    return sorted(unmeasured, key=describe(request.default).__ne__)


def budgeted_count(request: Request, unmeasured: int) -> int:
    """Return how many of the unmeasured configs the budget still allows."""
    if request.budget.configs is None:
        return unmeasured
    measured = len(request.declared) - unmeasured
    return max(min(unmeasured, request.budget.configs - measured), 0)


def has_work(request: Request, record: Record) -> bool:
    """Return whether a tune is unfinished: configs to measure, or the race and its winner."""
    return record.winner is None or bool(due_configs(request, record))


def untried_failures(
    request: Request, record: Record, findings: Findings, suspects: Iterable[Suspect] = ()
) -> list[Config]:
    """Return the failed configs that may run by now, or on this machine, the default first.

    Crashes and wrong results of other machines are trusted, except for the default config, which
    must be tried anyway. What this process has tried, or suspects, it does not try again.
    """
    measured, default = record.by_config, describe(request.default)
    tried = {*findings.trials, *(suspect.config for suspect in suspects)}
    untried = [
        config
        for config in request.declared
        if config in measured
        and config not in tried
        and (failure := measured[config].failure) is not None
        and (config == default or failure.kind not in ("crash", "wrong"))
    ]
    return sorted(untried, key=default.__ne__)


def earlier_timings(record: Record) -> list[Measurement]:
    """Return this machine's timings of a scenario that was not raced yet: they join the race."""
    timings = []
    for entry in () if record.winner else record.measurements:
        if entry.by == whoami() and is_credible(entry):
            timings.append(entry)
    return timings


def may_launch_default(request: Request, record: Record) -> bool:
    """Return whether nothing says that the default config's launch fails here, or ends programs.

    What compilers and other machines have reported may be different by now, or here.
    """
    default = record.by_config.get(describe(request.default))
    if default is None or default.failure is None or default.skipped:
        return True
    return default.by != whoami() and default.failure.kind != "crash"


def winner_to_record(
    request: Request,
    record: Record,
    best: Config,
    results: Results,
    left_out: Mapping[str, float],
    *,
    measured: bool,
) -> Winner | None:
    """Return the winner to record, or None where the recorded one stands.

    A config that could not be compared does not replace one that was, and is not recorded twice for
    it. Pruning may have left the earlier winner out of the tuned launch; it stands if it is faster.
    The record has what the tune has measured, if it has measured anything, and the winner's
    `omissions` are what it has left out.
    """
    config, recorded, omissions = best, record.winner, record.omissions_with(left_out)
    if request.prunes and recorded is not None:
        config = best_config(request, record, {best, recorded.config}) or best
    found: Results | None = results
    if recorded is not None and record.is_finished:
        is_recorded = recorded.config == config
        says_no_more = recorded.is_compared or (is_recorded and not measured)
        if not are_compared(results) and says_no_more:
            if omissions == recorded.omissions:
                return None
            return recorded.model_copy(update={"omissions": omissions, "at": now()})
        found = recorded.results if is_recorded and config != best else results
    return Winner(
        config=config,
        at=now(),
        adopted_at=recorded and recorded.adopted_at,
        results=found and dict(found),
        omissions=omissions,
    )
