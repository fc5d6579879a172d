"""`watch`: what is tuned, changed and missed, as it happens."""

import json
import sys
import time
from collections.abc import Hashable, Iterator
from datetime import datetime, timezone
from typing import Annotated, Any, NamedTuple

import typer

from dejavu_cache.model.record import Record
from dejavu_cache.model.scenario import Context
from dejavu_cache.stores import Store
from dejavu_cache.system.notices import counted

from ..application import app
from ..chosen_store import is_server_url, open_existing_store, split_urls, worklist
from ..options import DeviceOption, JsonOption, OptionalKernelArgument, StoreOption, TritonOption
from ..output import note, say
from ..queries import context_matches, winning_measurement
from ..tables import ordered_values, settings_text


class Happening(NamedTuple):
    """What happened to a scenario: `tuned`, `changed`, `deleted` or `missed`."""

    what: str
    context: Context
    scenario: str
    detail: str

    def line(self, *, as_json: bool) -> str:
        """Return the happening as a line of text or of JSON."""
        at = datetime.now(timezone.utc)
        values: dict[str, Any] = {
            "at": at.isoformat(timespec="seconds"),
            "what": self.what,
            "kernel": self.context.kernel.name,
            "device": self.context.environment.device.name,
            "triton": self.context.environment.triton,
            "scenario": self.scenario,
            "detail": self.detail,
        }
        if as_json:
            return json.dumps(values, ensure_ascii=False)
        values["at"] = f"{at:%H:%M:%S}"
        return "  ".join(filter(None, values.values()))


class _Watched:
    """The state of a store when it was last looked at."""

    def __init__(self, store: Store, url: str, kernel: str, device: str, triton: str) -> None:
        self._store, self._url = store, url
        self._filters = kernel, device, triton
        self._revisions: dict[Context, Hashable | None] = {}
        self._records: dict[Context, dict[str, Record]] = {}
        self._misses: dict[tuple[str, str], int] = {}

    def look(self) -> Iterator[Happening]:
        """Yield what has changed since the last look; at the first one, everything there is."""
        contexts = [of for of in self._store.contexts() if context_matches(of, *self._filters)]
        for context in dict.fromkeys([*contexts, *self._records]):
            yield from self._changes(context)
        if self._url:
            yield from self._new_misses()

    def _changes(self, context: Context) -> Iterator[Happening]:
        revision = self._store.revision(context)
        if revision is not None and self._revisions.get(context) == revision:
            return
        self._revisions[context] = revision
        before = self._records.get(context, {})
        now = {record.scenario.digest: record for record in self._store.records(context)}
        self._records[context] = now
        for digest in dict.fromkeys([*before, *now]):
            if before.get(digest) != now.get(digest):
                yield _describe_change(context, before.get(digest), now.get(digest))

    def _new_misses(self) -> Iterator[Happening]:
        for miss in worklist(self._url):
            if not context_matches(miss.context, *self._filters):
                continue
            text = settings_text(ordered_values(miss.scenario, miss.context.problem.keys))
            key, count = (miss.context.digest, text), miss.count
            if count > self._misses.get(key, 0):
                yield Happening("missed", miss.context, text, f"{counted(count, 'time')} by now")
            self._misses[key] = count


@app.command()
def watch(
    kernel: OptionalKernelArgument = "",
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, max=86_400, help="Time between two looks.")
    ] = 2.0,
    device: DeviceOption = "",
    triton: TritonOption = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Print what is tuned, changed, deleted and missed, as it happens.

    A line is a scenario; Ctrl-C ends. Misses are those of the first server among the store's URLs.
    --json prints a document a line.
    """
    with open_existing_store(store) as source:
        server = next(filter(is_server_url, split_urls(source.url)), "")
        watched = _Watched(source, server, kernel, device, triton)
        scenarios = sum(1 for _ in watched.look())
        note(f"watching {counted(scenarios, 'scenario')} in {source.url}; Ctrl-C ends")
        try:
            while True:
                time.sleep(every)
                for happening in watched.look():
                    say(happening.line(as_json=as_json))
                sys.stdout.flush()  # a pipe's reader waits for it
        except KeyboardInterrupt:
            return


def _describe_change(context: Context, before: Record | None, record: Record | None) -> Happening:
    known = record or before
    assert known is not None
    scenario = settings_text(ordered_values(known.scenario, context.problem.keys))
    if record is None:
        return Happening("deleted", context, scenario, "")
    best = winning_measurement(record)
    parts = [counted(len(record.measurements), "config")]
    if record.pinned:
        parts.append(f"pinned {record.pinned}")
    elif best is not None:
        parts.append(f"best {best.config}")
    if best is not None and best.median is not None:
        parts.append(f"{best.median:.4g} ms")
    if best is not None and best.by:
        parts.append(f"by {best.by}")
    return Happening("changed" if before else "tuned", context, scenario, ", ".join(parts))
