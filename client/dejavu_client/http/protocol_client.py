"""Client of the server's HTTP protocol, which docs/protocol.md describes.

A server's answers are not to be trusted: what does not follow the protocol is a `NonsenseError`.
"""

from __future__ import annotations

import copy
import json
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, cast
from urllib.parse import parse_qsl, quote, urlsplit

from pydantic import BaseModel, Field, TypeAdapter, create_model

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.record import FORMAT, Record, RecordSet, divide
from dejavu_cache.model.scenario import Config, Context, Scenario, ValueModel
from dejavu_cache.model.worth import MissCount, Saving, Worth
from dejavu_cache.settings import NAMESPACE, NAMESPACE_RULE
from dejavu_cache.system.background_threads import uninterrupted
from dejavu_cache.system.notices import printable, warn_once

from .errors import BusyError, NonsenseError, RefusedError, ServerFaultError, UnreachableError
from .transport import ServerAnswer, TokenSource, Transport, shared_transport

Document = dict[str, Any]
"""A record set as JSON has it."""

MOST_NAMED = 200
"""Scenarios that one request names in its address."""

LONG_WORK = 3600.0
"""Seconds that calls may take which change as many records as a namespace has."""

RETRYABLE_STATUSES = {408, 425, 429, 502, 503, 504}

BUSY_STATUSES = {429, 503}
"""Statuses that ask a client to wait; 503 without `Retry-After` is that of a failed server."""

REFUSALS_FOR_GOOD = {400, 413, 422}
"""Statuses that are about the records sent, and not about who sends them or when."""

REQUEST_RECORDS, REQUEST_BYTES = 1000, 2**20
"""Limits of one request: a quarter of what a server takes, which cannot answer while it parses."""

MOST_REFUSALS = 20
"""Records of one record set that are singled out; if there are more, the rest goes in one piece."""

_LeaseId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]

Count = Annotated[int, Field(ge=0)]


def _row(name: str, **fields: Any) -> type[BaseModel]:
    """Return the model of a row whose fields of these types are all there."""
    required: dict[str, Any] = {field: (type_, ...) for field, type_ in fields.items()}
    return create_model(name, **required)


_ROWS: dict[str, Any] = {
    "writers": _row("Writer", sender=str, by=str, measurements=Count, last=str),
    "quarantines": _row(
        "Quarantine",
        id=str, created=str, actor=str, request=dict[str, Any], parts=Count, undone=str | None,
    ),
    "entries": _row(
        "Change",
        at=str, actor=str, action=str, namespace=str, kernel=str, detail=dict[str, Any],
    ),
}  # fmt: skip
"""What commands need of the rows of a list, by its name; a row may have more."""

_Quarantined = _row(
    "Quarantined",
    id=str | None, contexts=Count, records=Count, measurements=Count, winners=Count,
)  # fmt: skip
"""What a quarantine takes or gives back."""


class MissedLaunch(BaseModel, extra="allow"):
    """A scenario that was launched without a record, as a server's worklist has it."""

    context: Context
    scenario: Scenario
    count: Count
    last_seen: str = ""
    saving: Saving | None = None
    said_by: str | None = None

    @property
    def worth(self) -> Worth:
        """What a tune would have saved its launches."""
        return Worth.of(MissCount(self.count, self.saving))


class ChangedCopies(BaseModel):
    """What has changed of a context's records of which a machine has copies."""

    revision: Annotated[str, Field(max_length=64)] = ""
    records: list[Record]
    gone: set[str]
    recalls: dict[str, list[str]]


def split_server_url(url: str, namespace: str) -> tuple[str, str]:
    """Split a store's URL into the server's base URL and the namespace.

    Args:
        url: `https://host[:port][/path][?namespace=NAME]`.
        namespace: returned if the URL names none.

    Raises:
        SettingsError: the URL carries a user, a password or an unknown part, or names no server.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    namespace = options.pop("namespace", namespace)
    if parts.username or parts.password:
        raise SettingsError("a server's URL carries no user or password: set DEJAVU_CACHE_TOKEN")
    try:
        is_whole = bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:  # the port is no port
        is_whole = False
    if not is_whole or options or parts.fragment:
        raise SettingsError(
            f"{url!r}: a server's URL is https://host[:port][/path][?namespace=NAME]"
        )
    if not re.fullmatch(NAMESPACE, namespace):
        raise SettingsError(f"{url!r}: {namespace!r} is no namespace: {NAMESPACE_RULE}")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", namespace


class ProtocolClient:
    """Calls on one namespace of one server. Thread-safe.

    Every call raises a `RemoteError` if it fails.

    Args:
        url: the server's base URL.
        token: bearer token to send, or where to read it; empty for none.
        namespace: the namespace that all calls are about.
        transport: the connections; by default those of the process.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | TokenSource = "",
        namespace: str = "main",
        transport: Transport = shared_transport,
    ) -> None:
        """Set up the calls; nothing is sent yet."""
        self.url = url
        self.namespace = namespace
        self._namespace_url = f"{url}/v1/{namespace}"
        self._token = token if isinstance(token, TokenSource) else TokenSource(token)
        self._transport = transport
        self._silence = math.inf

    def waiting(self, silence: float) -> ProtocolClient:
        """Return this client for callers who leave a server that is silent for some seconds."""
        client = copy.copy(self)
        client._silence = silence
        return client

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        """Yield the contexts that have records, of one kernel or of all."""
        for page in self._pages("/contexts", "after", kernel=kernel, limit=1000):
            yield from self._validate(list[Context], page.get("contexts"))

    def records(self, context: Context) -> tuple[Record, ...]:
        """Return all records of a context."""
        answer = self._send("GET", f"/contexts/{context.digest}/records")
        if answer.status == 404:
            return ()
        record_set: RecordSet = self._parse(RecordSet, answer.body)
        if record_set.format > FORMAT:
            raise NonsenseError(
                f"{self.url} sends format {record_set.format}; this version of dejavu-cache reads "
                f"formats up to {FORMAT}: upgrade it"
            )
        if record_set.context != context:
            raise NonsenseError(
                f"{self.url} sent records of {record_set.context.kernel.name} instead"
            )
        return record_set.records

    def record(self, context: Context, scenario: Scenario) -> Record | None:
        """Return one record, or None if the server has none."""
        answer = self.fetch_record(context, scenario)
        if answer.status == 404:
            return None
        record: Record = self._parse(Record, answer.body)
        if record.scenario != scenario:
            raise NonsenseError(f"{self.url} sent the record of {record.scenario} instead")
        return record

    def fetch_record(self, context: Context, scenario: Scenario, etag: str = "") -> ServerAnswer:
        """Ask for one record, unless `etag` is still current, and do not parse it."""
        path = f"/contexts/{context.digest}/records/{scenario.digest}"
        return self._send("GET", path, headers={"If-None-Match": etag} if etag else {})

    def scenario_texts(self, context: Context) -> list[str]:
        """Return the texts of a context's scenarios."""
        answer = self._send("GET", f"/contexts/{context.digest}/scenarios")
        rows = [] if answer.status == 404 else self.read_object(answer.body).get("scenarios")
        scenarios: list[Scenario] = self._validate(list[Scenario], rows)
        with uninterrupted():
            return [scenario.text for scenario in scenarios]

    def send(self, record_set: RecordSet) -> None:
        """Merge records into the server's; return only once the server says that it has them.

        Raises:
            RefusedError: the server does not take some of the records; it has the others.
        """
        document = record_set.model_dump(mode="json", exclude_none=True)
        for _, error in self.upload(document):
            raise error

    def upload(self, document: Document) -> list[tuple[Document, RefusedError]]:
        """Send a record set in parts, and return the parts that the server refuses for good.

        A part that is refused is sent again in halves, down to single records, so that the other
        records of the set arrive.

        Raises:
            RemoteError: the server does not answer, or refuses the sender. Some parts may have
                arrived; to send them again changes nothing.
        """
        refusals: list[tuple[Document, RefusedError]] = []
        parts = [*_divide(document["records"])]
        while parts:
            records = parts.pop(0)
            part = {**document, "records": records}
            try:
                self.send_json(encode(part), len(records))
            except RefusedError as error:
                if error.status not in REFUSALS_FOR_GOOD:
                    raise
                if len(records) == 1 or len(refusals) >= MOST_REFUSALS:
                    refusals.append((part, error))
                else:
                    middle = len(records) // 2
                    parts[:0] = records[:middle], records[middle:]
        return refusals

    def send_json(self, body: bytes, records: int) -> None:
        """Send a record set, encoded as JSON, in one request; `records` is their number."""
        answer = self._json("POST", "/records", body)
        if answer.get("records") != records:
            raise NonsenseError(f"{self.url} does not confirm that it took {records} records")
        if answer.get("refused"):
            warn_once(
                f"passed over {self.url}",
                f"{self.url} passed over some of these timings: they are older than a deletion, or "
                "cannot be true. Are the clocks of both machines right?",
            )

    def revalidate(self, copies: Mapping[str, Any]) -> dict[str, ChangedCopies]:
        """Return what has changed of copies, by the digest of their context.

        A copy is sent as its revision and its scenarios' tags.
        """
        contexts = self._json("POST", "/revalidation", {"contexts": copies}).get("contexts")
        changes: dict[str, ChangedCopies] = self._validate(dict[str, ChangedCopies], contexts)
        return changes

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        """Delete a context's records, all or those of some scenarios, and return their number.

        A request is sent once: the answer to another one would not count what the first deleted.
        """
        path = f"/contexts/{context.digest}/records"
        named = None if scenarios is None else [scenario.digest for scenario in scenarios]
        deleted = 0
        # Proxies refuse a head of more than 16 KiB.
        for start in range(0, 1 if named is None else len(named), MOST_NAMED):
            params = {"scenario": named[start : start + MOST_NAMED]} if named else {}
            answer = self._json("DELETE", path, params=params, repeatable=False)
            deleted += int(self._validate(Count, answer.get("deleted")))
        return deleted

    def lease(self, context: Context, scenario: Scenario, holder: str, ttl: float) -> str | None:
        """Return the id of a new lease on a scenario, or None while another holder has it.

        It ends after `ttl` seconds unless it is renewed. The server's pages show who holds it.
        """
        key = {"context": _to_json(context), "scenario": _to_json(scenario)}
        answer = self._json("POST", "/leases", {**key, "holder": holder, "ttl": ttl})
        lease: str | None = self._validate(_LeaseId | None, answer.get("lease"))
        return lease

    def renew(self, lease: str, ttl: float) -> None:
        """Extend a lease by `ttl` seconds from now."""
        self._json("PUT", f"/leases/{lease}", {"ttl": ttl})

    def release(self, lease: str) -> None:
        """Release a lease; one that has ended already is no error."""
        self._send("DELETE", f"/leases/{lease}")

    def report_misses(self, misses: Mapping[tuple[Context, Scenario], MissCount]) -> None:
        """Add to the server's worklist launches without a record, and what tunes would save."""
        rows = list[Any]()
        for (place, scenario), (launches, saving) in misses.items():
            row = {"context": _to_json(place), "scenario": _to_json(scenario)}
            rows.append({**row, "count": min(launches, 10**9), "saving": saving and dict(saving)})
        for part in _divide(rows):
            self._json("POST", "/misses", {"misses": part})

    def misses(self, kernel: str | None = None, limit: int = 100) -> list[MissedLaunch]:
        """Return the worklist: scenarios that are not tuned, in the order of `Worth`."""
        params = {"limit": limit, **({"kernel": kernel} if kernel else {})}
        misses = self._json("GET", "/misses", params=params).get("misses")
        return cast(list[MissedLaunch], self._validate(list[MissedLaunch], misses))

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return a list, `writers` or `quarantines`, with all that the server has of its rows."""
        return self._rows(self._json("GET", f"/{name}"), name)

    def quarantine(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Take back what a token or a host wrote, or count it; the body is the protocol's."""
        repeatable = bool(body.get("preview"))
        answer = self._json("POST", "/quarantines", body, seconds=LONG_WORK, repeatable=repeatable)
        self._validate(_Quarantined, answer)
        return answer

    def undo_quarantine(self, identity: str) -> dict[str, Any]:
        """Give back what a quarantine took, and return the counts."""
        path = f"/quarantines/{quote(identity, safe='')}"
        answer = self._json("DELETE", path, seconds=LONG_WORK, repeatable=False)
        self._validate(_Quarantined, answer)
        return answer

    def log_entries(
        self, filters: Mapping[str, str], all_namespaces: bool
    ) -> Iterator[dict[str, Any]]:
        """Yield the entries of the log of changes, newest first, and ask for them page by page.

        Args:
            filters: parameters of the request, as the protocol names them; empty ones are left out.
            all_namespaces: whether entries of all namespaces, and of none, are wanted.
        """
        root = f"{self.url}/v1" if all_namespaces else None
        for page in self._pages("/log", "before", root=root, limit=1000, **filters):
            yield from self._rows(page, "entries")

    def pin(self, context: Context, scenario: Scenario, config: Config | None, by: str) -> None:
        """Pin a scenario's config for all users, or remove the pin if `config` is None."""
        path = f"/contexts/{context.digest}/pins/{scenario.digest}"
        self._json("PUT", path, {"config": config and _to_json(config), "by": by})

    def promote(self, to: str, kernel: str | None = None, writers: Iterable[str] = ()) -> int:
        """Copy this namespace's records and winners into another; return the number of records.

        Writers are names of tokens: what others wrote is refused.
        """
        body = {"to": to, "kernel": kernel, "writers": list(writers) or None}
        answer = self._json("POST", "/promote", body, seconds=LONG_WORK)
        return int(self._validate(Count, answer.get("records")))

    def _send(
        self, method: str, path: str, *, root: str | None = None, **request: Any
    ) -> ServerAnswer:
        """Send a request; return an answer with a status of 2xx, 304 or 404, and raise any other.

        Raises:
            UnreachableError: the server does not answer, or a proxy answers in its place.
            BusyError: the server says for how long it wants to be left alone.
            ServerFaultError: the server failed on this request.
            RefusedError: the server does not take the request.
            NonsenseError: the answer is too large, a redirect, or compressed in an unknown way.
        """
        headers = {**self._token.headers(), **request.pop("headers", {})}
        if "content" in request:
            headers["Content-Type"] = "application/json"
        url = (self._namespace_url if root is None else root) + path
        answer = self._transport.send(
            method, url, server=self.url, silence=self._silence, headers=headers, **request
        )
        status = answer.status
        if status in (304, 404) or status < 300:
            return answer
        if status < 400:
            raise NonsenseError(f"{self.url} answered with a redirect, which is not followed")
        message = f"{self.url} answered {status}: {_problem_detail(answer.body)}"
        if status == 500:
            raise ServerFaultError(message)
        if status in RETRYABLE_STATUSES:
            pause = answer.headers.get("retry-after", "" if status == 429 else None)
            if status in BUSY_STATUSES and pause is not None:
                # A date is by another clock: such a server is asked at ever longer intervals.
                raise BusyError(message, status, float(pause) if pause.isdecimal() else 0.0)
            raise UnreachableError(message)
        raise RefusedError(
            f"{self.url} refused with {status}: {_problem_detail(answer.body)}", status
        )

    def _pages(
        self, path: str, following: str, *, root: str | None = None, **params: Any
    ) -> Iterator[dict[str, Any]]:
        """Yield a list's pages, while a server may be silent; `following` asks for the next."""
        seen, until = set[Any](), time.monotonic() + self._silence
        while True:
            wanted = {name: value for name, value in params.items() if value}
            page = self._json("GET", path, root=root, params=wanted)
            yield page
            params[following] = str(page.get("next") or "")
            if not params[following]:
                return
            if params[following] in seen or time.monotonic() > until:
                raise NonsenseError(f"{self.url} lists {path} without end, or too slowly")
            seen.add(params[following])

    def _json(self, method: str, path: str, body: Any = None, **request: Any) -> dict[str, Any]:
        """Send a JSON value, which may be encoded already, and return the answer's object."""
        if body is not None:
            request["content"] = body if isinstance(body, bytes) else json.dumps(body)
        answer = self._send(method, path, **request)
        if answer.status == 404:
            raise RefusedError(f"{self.url}: {_problem_detail(answer.body) or 'not found'}", 404)
        return self.read_object(answer.body)

    def read_object(self, body: bytes) -> dict[str, Any]:
        """Parse a JSON object, without pydantic."""
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise NonsenseError(f"{self.url} answered what is not JSON: {error}") from None
        if not isinstance(answer, dict):
            raise NonsenseError(f"{self.url} answered {str(answer)[:80]!r}")
        return answer

    def _parse(self, kind: Any, text: bytes | str) -> Any:
        """Parse JSON as a model or another type."""
        try:
            with uninterrupted():
                return TypeAdapter(kind).validate_json(text)
        except ValueError as error:
            reason = str(error).splitlines()[0]
            raise NonsenseError(f"{self.url} does not follow the protocol: {reason}") from None

    def _validate(self, kind: Any, value: Any) -> Any:
        """Return a JSON value as a model or another type."""
        return self._parse(kind, json.dumps(value))

    def _rows(self, answer: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
        """Return the rows of a list, with all that they have."""
        rows = answer.get(name)
        for row in self._validate(list[Any], rows):
            self._validate(_ROWS[name], row)
        return cast(list[dict[str, Any]], rows)


def encode(document: Document) -> bytes:
    """Encode a record set, in ASCII: a damaged one may have halves of characters."""
    return json.dumps(document).encode()


def _divide(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Divide records or misses into parts of one request each."""
    return divide(((row, len(json.dumps(row))) for row in rows), REQUEST_RECORDS, REQUEST_BYTES)


def _to_json(model: ValueModel) -> Any:
    """Return a model as the JSON value that requests carry."""
    with uninterrupted():
        return json.loads(model.text)


def _problem_detail(body: bytes) -> str:
    """Return the human-readable text of a problem+json body as one line, or an empty string."""
    try:
        problem = json.loads(body)
        text = str(problem.get("detail") or problem.get("title") or "")[:500]
        return printable(" ".join(text.split()))
    except (ValueError, AttributeError, RecursionError):
        return ""
