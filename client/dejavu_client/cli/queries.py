"""Questions of several commands about a store's records, and what kernels and conditions mean."""

import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.record import Measurement, Record, RecordSet
from dejavu_cache.model.scenario import Config, Context, Scenario, canonical_json
from dejavu_cache.model.selection import winner
from dejavu_cache.stores import Store
from dejavu_cache.stores.base import recorded_scenarios

from .errors import NothingFoundError


def kernel_matches(name: str, pattern: str) -> bool:
    """Return whether a kernel's full name is a pattern or ends with it, by whole components.

    The pattern may be a glob such as `*attention*`; an empty one matches all.
    """
    if not pattern:
        return True
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def matching_kernels(names: Iterable[str], pattern: str, url: str) -> list[str]:
    """Return the kernels that a pattern names, sorted; an exact name matches no other kernel.

    Raises:
        NothingFoundError: no kernel matches; the message names the URL, and similar kernels.
    """
    names = sorted(set(names))
    if pattern in names:
        return [pattern]
    matches = [name for name in names if kernel_matches(name, pattern)]
    if not matches:
        raise NothingFoundError(_explain_no_kernel(names, pattern, url))
    return matches


def shorten_kernels(names: Sequence[str]) -> list[str]:
    """Return the shortest end of each name, by whole components, that names no other kernel."""
    ends = {name: _shortest_end(name, {*names} - {name}) for name in names}
    return [ends[name] for name in names]


def _shortest_end(name: str, others: Collection[str]) -> str:
    parts = name.split(".")
    for count in range(1, len(parts)):
        end = ".".join(parts[-count:])
        if not any(kernel_matches(other, end) for other in others):
            return end
    return name


def _explain_no_kernel(names: list[str], pattern: str, url: str) -> str:
    if not names:
        return f"{url} holds no records"
    ends = {name.rpartition(".")[2]: name for name in names}
    candidates = [*names, *ends]
    close = get_close_matches(pattern.strip("*"), candidates, n=3, cutoff=0.6)
    close += [name for end, name in ends.items() if pattern.strip("*").lower() in name.lower()]
    suggestions = list(dict.fromkeys(ends.get(name, name) for name in close))[:3]
    remedy = (
        f"did you mean {' or '.join(suggestions)}?"
        if suggestions
        else "`dejavu-cache ls` lists the kernels"
    )
    return f"{url} has no kernel {pattern!r}; {remedy}"


def contexts_of(store: Store, pattern: str, device: str = "", triton: str = "") -> list[Context]:
    """Return the contexts that pass filters of the kernels that a pattern names.

    Raises:
        NothingFoundError: no kernel matches.
    """
    contexts = list(store.contexts())
    names = matching_kernels((context.kernel.name for context in contexts), pattern, store.url)
    return [
        context
        for context in contexts
        if context.kernel.name in names and context_matches(context, "", device, triton)
    ]


def record_sets_of(store: Store, pattern: str) -> Iterator[RecordSet]:
    """Yield the records of the kernels that a pattern names, or raise `NothingFoundError`."""
    for context in contexts_of(store, pattern):
        yield RecordSet(context=context, records=tuple(store.records(context)))


def context_matches(context: Context, kernel: str, device: str, triton: str) -> bool:
    """Return whether a context passes the filters of a command; an empty filter passes all.

    The kernel is a pattern, the device a part of the GPU's name, in any case, and Triton a version.
    """
    return (
        kernel_matches(context.kernel.name, kernel)
        and device.lower() in context.environment.device.name.lower()
        and triton in ("", context.environment.triton)
    )


def describe_filters(device: str, triton: str) -> str:
    """Return what the filters of a command ask for; an empty text if it has none."""
    return " and ".join(filter(None, (device, triton and f"Triton {triton}")))


def matching_records(
    store: Store, kernel: str, conditions: Sequence[str], device: str = "", triton: str = ""
) -> Iterator[tuple[Context, Record]]:
    """Yield the records that pass the filters, and whose scenarios satisfy all of `--where`.

    Raises:
        NothingFoundError: no kernel matches, or no scenario satisfies the conditions.
        SettingsError: a condition is about an argument that no scenario has.
    """
    contexts = contexts_of(store, kernel, device, triton)
    scenarios = (
        scenario for context in contexts for scenario in recorded_scenarios(store, context)
    )
    parsed = parse_conditions(conditions, scenarios)
    is_empty = True
    for context in contexts:
        for record in store.records(context):
            if all(condition.matches(record.scenario) for condition in parsed):
                is_empty = False
                yield context, record
    if is_empty:
        filters = [*conditions, device and f"a device {device!r}", triton and f"Triton {triton}"]
        wanted = " and ".join(filter(None, filters))
        raise NothingFoundError(
            f"{store.url} has no scenario of {kernel or 'any kernel'}"
            f"{f' with {wanted}' if wanted else ''}"
        )


def newest_versions(dated: Iterable[tuple[Context, datetime]]) -> set[Context]:
    """Return the contexts of each kernel's code that was tuned last, by environment and problem.

    Contexts without measurements, which only record launches, are left out.
    """
    newest: dict[tuple[str, ...], Context] = {}
    for context, tuned in sorted(dated, key=operator.itemgetter(1)):
        environment, problem = canonical_json(context.environment), canonical_json(context.problem)
        if tuned > NEVER:
            newest[context.kernel.name, environment, problem] = context
    return {*newest.values()}


def has_settings(config: Config, values: Mapping[str, str]) -> bool:
    """Return whether a config has all of some values, which are compared by their text."""
    own = config.values
    return all(name in own and str(own[name]) == value for name, value in values.items())


def chosen_config(record: Record) -> Config | None:
    """Return the pinned config, or else the best among all recorded ones; None if none has run."""
    return record.pinned or winner(record, set(record.by_config))


def winning_measurement(record: Record) -> Measurement | None:
    """Return the measurement of the chosen config, if it has one."""
    config = chosen_config(record)
    return record.by_config.get(config) if config else None


NEVER = datetime.min.replace(tzinfo=timezone.utc)


def last_measured(records: Iterable[Record]) -> datetime:
    """Return when the newest measurement of some records was made; `NEVER` if there is none."""
    moments = (measurement.at for record in records for measurement in record.measurements)
    return max(moments, default=NEVER)


def newest_record_sets(store: Store, kernel: str, device: str, triton: str) -> Iterator[RecordSet]:
    """Yield the records of each environment and problem that pass the filters.

    Of several versions of a kernel's code, only the one that was tuned last counts.

    Raises:
        NothingFoundError: no kernel matches, or none with the device and the version of Triton.
    """
    contexts = contexts_of(store, kernel, device, triton)
    if not contexts:
        raise NothingFoundError(
            f"{store.url} has no records of {kernel or 'any kernel'} for "
            f"{describe_filters(device, triton)}"
        )
    newest = newest_versions((each, last_measured(store.records(each))) for each in contexts)
    for context in contexts:
        if context in newest:
            yield RecordSet(context=context, records=tuple(store.records(context)))


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class Condition(NamedTuple):
    """A comparison of an argument's value, or of a tensor's dtype, with a constant."""

    name: str
    operator: str
    value: str

    def matches(self, scenario: Scenario) -> bool:
        """Return whether a scenario has the argument and its value satisfies the condition.

        Numbers are compared as numbers; other values only as equal or not, by their text.
        """
        values = scenario.values
        if self.name not in values:
            return False
        value = values[self.name]
        compare = _OPERATORS[self.operator]
        limit = _number(self.value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and limit is not None:
            return compare(value, limit)
        return self.operator in ("=", "==", "!=") and compare(str(value), self.value)


def parse_conditions(texts: Iterable[str], scenarios: Iterable[Scenario]) -> list[Condition]:
    """Parse conditions on the arguments of some scenarios, all of which one must satisfy.

    Raises:
        SettingsError: a text is no condition, or no scenario has the argument that it names.
    """
    conditions = []
    for text in texts:
        match = re.fullmatch(r"\s*([^\s=<>!]+)\s*(==|!=|>=|<=|=|>|<)\s*(|[^\s=<>].*?)\s*", text)
        if not match:
            raise SettingsError(f"{text!r}: write NAME=VALUE, NAME>=NUMBER, NAME!=VALUE, …")
        conditions.append(Condition(*match.groups()))
    known = {name for scenario in scenarios for name in scenario.values} if conditions else set()
    unknown = [condition.name for condition in conditions if known and condition.name not in known]
    if unknown:
        raise SettingsError(
            f"{', '.join(unknown)}: no such argument; scenarios have {', '.join(sorted(known))}"
        )
    return conditions


def _number(text: str) -> float | None:
    for parse in (int, float):  # a float would round a large integer
        try:
            return parse(text)
        except ValueError:
            continue
    return None
