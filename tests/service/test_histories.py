"""What readers get of a record, by what was done to it before."""

import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import httpx
import pytest
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import CopyCheck
from dejavu_service.storage import summaries
from dejavu_service.storage.database import Database
from support.remote_stores import through
from support.service import START, Token, body, config, context, measurement, record_set, scenario

from dejavu_cache.model import scenario as clock
from dejavu_cache.model.record import Failure, OutputVerdict, Pin, Record, RecordSet, Winner
from dejavu_cache.model.scenario import canonical_json
from dejavu_cache.stores import MemoryStore
from dejavu_cache.stores.copies import take_over

HOME = f"contexts/{context().digest}"
RECORDS, PIN = f"{HOME}/records", f"{HOME}/pins/{scenario().digest}"
WRITERS = dict.fromkeys(("ann", "bob", "eve", "spy"), "write")
ROLES = {**WRITERS, "ops": "admin", "boss": "admin"}
_numbers = itertools.count()

HISTORIES = {
    # What stands.
    "the first timing of a config": ("ann 16=1 32=2; bob 16=9", "16=1 32=2"),
    "a timing, where there was a failure": ("ann 16=x; bob 16=2; eve 16=x 32=x", "16=2 32=x"),
    "a failure, where results were wrong": ("ann 16=1 !16; eve 16=w; bob 16=1.5", "16=w"),
    "a timing over more cases": ("ann 16=1; bob 16=2/a; eve 16=5/ab; ann 16=4/a", "16=5/ab"),
    "the first of two timings over other cases": ("ann 16=2/a; bob 16=3/b; eve 16=4", "16=2/a"),
    "no time that cannot be": ("eve 16=0 32=5e-324; ann 64=1", "64=1"),
    "no measurement that is dated ahead": ("eve 16=1 !16 ahead; ann 32=1 !32", "32=1 !32"),
    "what is measured now": ("ann 16=1 !16 now", "16=1 !16"),
    "the first winner": ("ann 16=1 32=2 !16; bob !32", "16=1 32=2 !16"),
    "the first winner that was compared": ("ann 16=1 !16; bob !16+; ann !32", "16=1 !16+"),
    "no winner whose results are wrong": ("ann 16=1 !16; eve 16=w; bob !32", "16=w !32"),
    # Clocks that are days slow or fast: the database's counts.
    "a winner, for a server that is slow": (
        "ann 16=1 !16 now; clock -3; bob 32=2",
        "16=1 32=2 !16",
    ),
    "what is measured now, for a slow server": ("clock -3; ann 16=1 !16 now", "16=1 !16"),
    "nothing dated ahead, for a fast server": ("clock +3; ann 16=1 !16 later", ""),
    "the later pin, of a slow server": ("ann 16=1; pin 16; clock -3; pin 32", "16=1 ^32"),
    "a promotion by a slow server": (
        "ann 16=1 !16 now; ann@pr 16=2 32=1 !32; clock -3; promote ops",
        "16=2 32=1 !32",
    ),
    # Pins.
    "a pin": ("ann 16=1 32=2 !16; pin 32", "16=1 32=2 !16 ^32"),
    "no pin that was taken back": ("ann 16=1; pin 32; unpin; unpin", "16=1 ^-"),
    "no pin that a writer sends": ("ann 16=1 ^32", "16=1"),
    "a pin that an admin sends": ("ops 16=1 ^32; ann 16=1 ^64", "16=1 ^32"),
    "no pin that was replaced": ("ops 16=1 ^32; pin 64; ops ^32", "16=1 ^64"),
    "a pin instead of one that is dated ahead": ("ann 16=1; ops ^32 ahead; pin 64", "16=1 ^64"),
    "a pin, before one that is dated ahead": ("ann 16=1; pin 64; ops ^32 ahead", "16=1 ^64"),
    # Deletions.
    "nothing that was deleted": ("ann 16=1 !16; pin 16; delete; ann 16=1 !16; ops ^16", ""),
    "nothing that was in quarantine when it was deleted": (
        "eve 16=1 !16; ann 32=2; hide eve; delete; undo nothing",
        "",
    ),
    "what was measured since a deletion": ("ann 16=1 !16; delete; bob 16=2 !16 now", "16=2 !16"),
    "no winner of a deleted timing": ("ann 16=1 !16; delete; bob 32=2 now; ann !16", "32=2"),
    "what an import brings back": ("ann 16=1 !16; pin 32; delete; import", "16=1 !16 ^32"),
    # Promotions.
    "what is promoted, and the rest": (
        "ann 16=1 32=2 !16; bob@pr 16=5 64=0.1 !64; promote ops",
        "16=5 32=2 64=0.1 !64",
    ),
    "a promoted record": ("ann@pr 16=1 !16; promote ops", "16=1 !16"),
    "a pin, whatever is promoted": (
        "ann 16=1; pin 16; ann@pr 16=2 !16; promote ops",
        "16=2 !16 ^16",
    ),
    "a promoted winner, if one is dated ahead": (
        "ann 16=1 32=2; ann !32 soon; ann@pr 16=1 !16; promote ops",
        "16=1 32=2 !16",
    ),
    "a winner of the same config": ("ann 16=1 !16; bob@pr 16=2 !16 now; promote ops", "16=2 !16"),
    "a compared winner": ("ann 16=1 !16+; bob@pr 64=1 !64; promote ops", "16=1 64=1 !16+"),
    "a promoted winner that was compared": (
        "ann 16=1 !16+; bob@pr 64=1 !64+ now; promote ops",
        "16=1 64=1 !64+",
    ),
    "what was replaced and is promoted again": (
        "ann 16=1; bob@pr 16=5; promote ops; ann@pr2 16=1; promote ops pr2",
        "16=1",
    ),
    # Quarantines: what readers would have got without a token.
    "what lay beside": ("eve 16=0.1 32=0.2 !16; ann 16=5 64=6; hide eve", "16=5 64=6"),
    "nothing of a withdrawn token": ("eve 16=1 !16; hide eve", ""),
    "a winner that comes again": (
        "eve 16=0.1 !16; ann 16=5 !16 now; hide eve; ann 16=5 !16 now",
        "16=5 !16",
    ),
    "no winner that came alone": (
        "ann 16=1 32=2; eve !32; hide eve; ann 16=1 32=2 !32",
        "16=1 32=2",
    ),
    "no comparison by that token": ("ann 16=1 !16; eve !16+; hide eve", "16=1 !16"),
    "a winner that was called wrong": ("ann 16=1 !16; eve 16=w !32; hide eve", "16=1 !16"),
    "the winner that the caller put there": ("ann 16=1 !16; eve 16=w !32; bob 16=2", "16=w !32"),
    "none while another calls it wrong": ("ann 16=1 !16; eve 16=w; spy 16=w; hide eve", "16=w"),
    "a winner that two called wrong": (
        "ann 16=1 !16; eve 16=w; spy 16=w; hide eve; hide spy",
        "16=1 !16",
    ),
    "what a promotion replaced": ("ann 16=1; bob@pr 16=5; promote ops; hide ops", "16=1"),
    "the winner that a promotion replaced": (
        "ann 16=1 32=2 !16; eve@pr !32; promote ops; promote boss; hide ops",
        "16=1 32=2 !16",
    ),
    "what the other promotion put there": (
        "ann 16=1; bob@pr 16=5; promote ops; bob@pr2 16=3; promote boss pr2; hide ops",
        "16=3",
    ),
    "what the earlier promotion put there": (
        "ann 16=1; bob@pr 16=5; promote ops; bob@pr2 16=3; promote boss pr2; hide boss",
        "16=5",
    ),
    "what stood before both promotions": (
        "ann 16=1; bob@pr 16=5; promote ops; bob@pr2 16=3; promote boss pr2; hide ops; hide boss",
        "16=1",
    ),
    "all but what one machine measured": ("ann 16=1 32=2 !16; bob 64=3; hide host ann-1", "64=3"),
    # Undone quarantines.
    "everything, as it was": ("eve 16=1 32=2 !16; pin 32; hide eve; undo", "16=1 32=2 !16 ^32"),
    "what came since, before that": ("eve 16=1 !16; hide eve; ann 16=5 !16; undo", "16=5 !16"),
    "what a promotion put there": ("ann 16=1; bob@pr 16=5; promote ops; hide ops; undo", "16=5"),
    "a wrong result again": ("ann 16=1 !16; eve 16=w !32; hide eve; undo", "16=w !32"),
}


def read_words(words: list[str], by: str) -> Record:
    """Return the record that a step writes: 16=2 is a timing of 2 ms, =x a failure, !16 a winner.

    =w is a failure with wrong results, =2/ab a timing over two cases, !16+ a winner whose results
    were compared, ^16 a pin.
    """
    moments = {"soon": timedelta(hours=10), "later": timedelta(days=2), "ahead": timedelta(60_000)}
    moments["now"] = timedelta(0)
    at = datetime.now(timezone.utc) + moments[words.pop()] if words[-1] in moments else START
    parts: dict[str, Any] = {"measurements": []}
    for word in words:
        block, _, value = word.strip("!^+").partition("=")
        of = config(int(block))
        if word[0] == "!":
            results = {"out": OutputVerdict(outcome="equal")} if word[-1] == "+" else None
            parts["winner"] = Winner(config=of, at=at, results=results)
        elif word[0] == "^":
            parts["pin"] = Pin(config=of, at=at, by=by)
        elif value in "xw":
            failed = Failure(kind="wrong" if value == "w" else "out_of_resources", reason=by)
            change = {"failure": failed, "at": at}
            parts["measurements"].append(measurement(of, None, by=by).model_copy(update=change))
        else:
            median, _, cases = value.partition("/")
            timing = measurement(of, float(median), by=by)
            change = {"cases": dict.fromkeys(cases, timing.median) or None, "at": at}
            parts["measurements"].append(timing.model_copy(update=change))
    return Record(scenario=scenario(), **parts)


def in_words(record: Record | None) -> str:
    """Return the words of a record, as in the table."""
    if record is None:
        return ""
    words = {}
    for of, measured in record.by_config.items():
        cases = "".join(measured.cases or ())
        timing = f"{measured.median:g}" if measured.failure is None else "xw"[measured.is_wrong]
        words[int(str(of.params["BLOCK_M"]))] = timing + (cases and f"/{cases}")
    said = [f"{block}={words[block]}" for block in sorted(words)]
    if (winner := record.winner) is not None:
        said.append(f"!{winner.config.params['BLOCK_M']}{'+' * winner.is_compared}")
    if record.pin is not None:
        said.append(f"^{record.pin.config.params['BLOCK_M'] if record.pin.config else '-'}")
    return " ".join(said)


def without_wrong_winner(record: Record) -> Record:
    """Return a copy without the winner that no launch takes, as its results are wrong."""
    won = record.winner and record.by_config.get(record.winner.config)
    return record.model_copy(update={"winner": None}) if won and won.is_wrong else record


class History:
    """One record of a server, what is done to it, and a copy that a machine has of it."""

    def __init__(self, client: httpx.Client, tokens: dict[str, Token], database: Database) -> None:
        self._client, self._tokens, self._database = client, tokens, database
        self._name = f"history{next(_numbers)}"
        self.stands: Record | None = None
        self._hidden: dict[str, Any] = {}
        self._dump = b""
        self._copy, self._check = MemoryStore(), CopyCheck()
        bearer = tokens["ops"]["Authorization"].removeprefix("Bearer ")
        self._server = ProtocolClient(
            "http://localhost", namespace=f"{self._name}-main", token=bearer,
            transport=through(client),
        )  # fmt: skip

    def ask(
        self, method: str, path: str, who: str = "ops", at: str = "main", **sent: Any
    ) -> httpx.Response:
        path = f"/v1/{self._name}-{at}/{path}"
        return self._client.request(method, path, headers=self._tokens[who], **sent)

    def read(self) -> Record | None:
        answer = self.ask("GET", RECORDS)
        if answer.status_code == 404:
            return None
        (record,) = RecordSet.model_validate_json(answer.content).records
        return record

    def act(self, step: str) -> None:
        verb, *words = step.split()
        if verb.partition("@")[0] in self._tokens:
            self._post(*verb.split("@"), words=words)
        else:
            getattr(self, f"_{verb}")(*words)
        before, self.stands = self.stands, self.read()
        self._update_copy()
        if before is not None:
            self.ask("POST", "records", "bob", json=body(record_set(before)))
            assert self.read() == self.stands, "no copy brings back what has gone"

    def _post(self, who: str, at: str = "main", *, words: list[str]) -> None:
        """Send a record twice: again, it brings nothing."""
        sent = body(record_set(read_words(words, f"{who}@{who}-1")))
        first, again = (self.ask("POST", "records", who, at, json=sent).json() for _ in range(2))
        assert first["records"] == 1
        assert (again["measurements"], again["conflicting"]) == (0, 0)

    def _promote(self, who: str, at: str = "pr") -> None:
        wish = {"to": f"{self._name}-main"}
        tags = set()
        for _ in range(2):
            assert self.ask("POST", "promote", who, at, json=wish).json() == {"records": 1}
            tags.add(self.ask("GET", RECORDS).headers["etag"])
        assert len(tags) == 1, "promoted again, it changes nothing"

    def _pin(self, block: str) -> None:
        put = self.ask("PUT", PIN, json={"config": body(config(int(block))), "by": "ann"})
        assert Record.model_validate_json(put.content) == self.read()

    def _unpin(self) -> None:
        put = self.ask("PUT", PIN, json={"config": None})
        assert Record.model_validate_json(put.content) == self.read()

    def _delete(self) -> None:
        self._dump = self.ask("GET", "export").content
        assert self.ask("DELETE", RECORDS).json() == {"deleted": 1}
        assert self.ask("PUT", PIN, json={"config": body(config())}).status_code == 404

    def _import(self) -> None:
        assert self.ask("POST", "import", content=self._dump).json()["records"] == 1

    def _hide(self, *words: str) -> None:
        """Withdraw what a token or a host has; a preview counts the same."""
        wish = {"host": words[1]} if words[0] == "host" else {"token": words[-1]}
        preview, done, again = (
            self.ask("POST", "quarantines", json={**wish, "preview": is_preview}).json()
            for is_preview in (True, False, True)
        )
        assert done == {**preview, "id": done["id"]}
        assert (done["records"], again["records"]) == (1, 0)
        self._hidden = done

    def _undo(self, left: str = "") -> None:
        if left:
            self._hidden |= dict.fromkeys(("contexts", "records", "measurements", "winners"), 0)
        done, again = (self.ask("DELETE", f"quarantines/{self._hidden['id']}") for _ in range(2))
        assert done.json() == self._hidden
        assert again.status_code == 404

    def _update_copy(self) -> bool:
        """Let the copy learn of a step, and return whether it had to."""
        wanted = {context(): [scenario()]}
        changes = self._check.changes(self._server, wanted).get(context())
        if changes is not None:
            take_over(self._copy, context(), [scenario()], changes)
        hit = self._copy.get(context(), scenario())
        copied = without_wrong_winner(hit.record) if hit else None
        assert in_words(copied) == in_words(self.stands)
        return changes is not None and bool(changes.records)

    def check_lists(self) -> None:
        """Compare what lists and pages say with what readers get."""
        assert not self._update_copy()
        measured = self.stands.measurements if self.stands else ()
        listed = self.ask("GET", "writers").json()["writers"]
        assert sum(writer["measurements"] for writer in listed) >= len(measured)
        page = f"/pages/{self._name}-main/{HOME}"
        shown = self._client.get(page, headers=self._tokens["ann"])
        assert shown.status_code == (404 if self.stands is None else 200)
        if self.stands is None:
            return
        with self._database.read() as connection:
            (of,) = summaries.load_contexts(connection, f"{self._name}-main")
            (row,) = summaries.load(connection, of.id).values()
        winner = self.stands.winner
        chosen = self.stands.pinned or (winner.config if winner else None)
        medians = [item.median for item in measured if item.median is not None]
        assert row.chosen == (canonical_json(chosen) if chosen else None)
        assert row.median == next((m.median for m in measured if m.config == chosen), None)
        assert (row.best, row.slowest) == (min(medians, default=None), max(medians, default=None))
        assert (row.configs, row.failed) == (len(measured), len(measured) - len(medians))
        assert row.pinned == (self.stands.pinned is not None)
        assert bool(row.compared) == (winner is not None and winner.is_compared)


@pytest.fixture(scope="module")
def database(shared_url: str) -> Iterator[Database]:
    opened = Database(shared_url)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def tokens(database: Database) -> dict[str, Token]:
    return {name: Token(database, name, role) for name, role in ROLES.items()}


@pytest.mark.parametrize("stands", HISTORIES)
def test_a_record_has(
    stands: str,
    shared_client: httpx.Client,
    tokens: dict[str, Token],
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, expected = HISTORIES[stands]
    history = History(shared_client, tokens, database)
    for step in steps.split("; "):
        if step.startswith("clock"):
            set_clock(monkeypatch, timedelta(float(step.split()[1])))
        else:
            history.act(step)
    assert in_words(history.stands) == expected
    history.check_lists()


def set_clock(monkeypatch: pytest.MonkeyPatch, off: timedelta) -> None:
    """Let the server's clock, and not its database's, be fast or slow."""
    monkeypatch.setattr(clock, "now", lambda: datetime.now(timezone.utc) + off)
