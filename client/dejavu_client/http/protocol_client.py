"""Client of the server's HTTP protocol, which docs/protocol.md describes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast
from urllib.parse import SplitResult, parse_qsl, quote, urlsplit

import httpx
from pydantic import BaseModel

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.model.scenario import Config, Context, Scenario
from dejavu_cache.settings import NAMESPACE, NAMESPACE_RULE
from dejavu_cache.system.notices import warn_once

from .answers import (
    parse_json,
    parse_record_set,
    parse_scenarios,
    problem_detail,
    to_json,
    validate,
)
from .errors import NonsenseError, RefusedError
from .http_exchange import HttpExchange, ServerAnswer
from .listed_rows import (
    Count,
    ListedChange,
    ListedMiss,
    ListedQuarantine,
    ListedWriter,
    QuarantineCounts,
)
from .token_source import TokenSource
from .uploads import TOO_LARGE, upload

__all__ = ["Bulk", "ProtocolClient", "split_server_url"]

_LONG_WORK = httpx.Timeout(3600.0, connect=5.0)
"""Limits of calls that change as many records as a namespace has."""

_LEASE_ID = re.compile(r"[0-9a-f]{32}")


class Bulk(NamedTuple):
    """All records of a context, and the HTTP entity tag that tells whether they have changed."""

    records: tuple[Record, ...]
    etag: str


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
    is_whole = not options and not parts.fragment and _names_server(parts)
    if is_whole and not re.fullmatch(NAMESPACE, namespace):
        raise SettingsError(f"{url!r}: {namespace!r} is no namespace: {NAMESPACE_RULE}")
    if not is_whole:
        raise SettingsError(
            f"{url!r}: a server's URL is https://host[:port][/path][?namespace=NAME]"
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", namespace


def _names_server(parts: SplitResult) -> bool:
    """Return whether a URL has a host and a port that a connection can be tried to."""
    try:
        host = (parts.hostname or "").encode("idna").decode()
        is_address = re.fullmatch(r"[\w.:%-]+", host) is not None and parts.port != 0
    except ValueError:  # a part of the host is empty or too long, or the port is no port
        return False
    return is_address and parts.path.isprintable()


class ProtocolClient:
    """Calls on one namespace of one server. Thread-safe.

    Every call raises `UnreachableError`, `RefusedError` or `NonsenseError` if it fails.

    Args:
        url: the server's base URL.
        token: bearer token to send, or where to read it; empty for none.
        namespace: the namespace that all calls are about.
        attempts: how often a call is tried while the server is unreachable.
        http_client: replaces the client's own connections, for tests and special transports; its
            base URL is not used, and `close` leaves it open.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | TokenSource = "",
        namespace: str = "main",
        attempts: int = 1,
        http_client: httpx.Client | None = None,
    ) -> None:
        """Set up the calls; nothing is sent yet."""
        self.url = url
        self.namespace = namespace
        self._namespace_url = f"{url}/v1/{namespace}"
        self._exchange = HttpExchange(url, token=token, attempts=attempts, http_client=http_client)

    def close(self) -> None:
        """Close the connections once their requests are answered; the next call opens new ones."""
        self._exchange.connections.close()

    def interrupt(self) -> None:
        """Make all requests fail at once, those that wait for an answer and later ones."""
        self._exchange.connections.interrupt()

    def abandon_connections(self) -> None:
        """Drop the connections without closing them: after a fork they belong to the parent."""
        self._exchange.connections.abandon()

    def check_ready(self) -> None:
        """Raise an error unless the server and its database answer."""
        self._exchange.send("GET", f"{self.url}/readyz")

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        """Yield the contexts that have records, of one kernel or of all."""
        after = ""
        while True:
            filters = {"kernel": kernel, "after": after}
            page = self._json(
                "GET", "/contexts", params={name: value for name, value in filters.items() if value}
            )
            yield from validate(list[Context], page.get("contexts"), self.url)
            earlier, after = after, str(page.get("next") or "")
            if not after:
                return
            if after <= earlier:
                raise NonsenseError(f"{self.url} lists its contexts without end")

    def bulk(self, context: Context, etag: str = "") -> Bulk | None:
        """Return all records of a context in one request, or None if `etag` is still current."""
        return self.parse_bulk(context, self.fetch_bulk(context, etag))

    def fetch_bulk(self, context: Context, etag: str = "") -> ServerAnswer:
        """Ask for all records of a context."""
        return self._get(f"/contexts/{context.digest}/records", etag)

    def parse_bulk(self, context: Context, answer: ServerAnswer) -> Bulk | None:
        """Return the records of an answer to `fetch_bulk`, or None if they are unchanged."""
        if answer.status == 304:
            return None
        if answer.status == 404:
            return Bulk((), "")
        record_set = parse_record_set(answer.body, self.url)
        if record_set.context != context:
            raise NonsenseError(
                f"{self.url} sent records of {record_set.context.kernel.name} instead"
            )
        return Bulk(record_set.records, answer.etag)

    def record(self, context: Context, scenario: Scenario) -> Record | None:
        """Return one record, or None if the server has none."""
        return self.parse_record(scenario, self.fetch_record(context, scenario))

    def fetch_record(self, context: Context, scenario: Scenario, etag: str = "") -> ServerAnswer:
        """Ask for one record, unless `etag` is still current."""
        return self._get(f"/contexts/{context.digest}/records/{scenario.digest}", etag)

    def parse_record(self, scenario: Scenario, answer: ServerAnswer) -> Record | None:
        """Return the record of an answer to `fetch_record`, or None if there is none."""
        if answer.status == 404:
            return None
        record: Record = validate(Record, parse_json(answer.body, self.url), self.url)
        if record.scenario != scenario:
            raise NonsenseError(f"{self.url} sent the record of {record.scenario} instead")
        return record

    def scenario_texts(self, context: Context, etag: str = "") -> tuple[str, list[str]] | None:
        """Return the entity tag and the texts of a context's scenarios; None if it is current."""
        answer = self._get(f"/contexts/{context.digest}/scenarios", etag)
        if answer.status == 304:
            return None
        return answer.etag, [] if answer.status == 404 else parse_scenarios(answer.body, self.url)

    def send(self, record_set: RecordSet) -> None:
        """Merge records into the server's; return only once the server says that it has them.

        Raises:
            RefusedError: the server does not take some of the records; it may have the others.
        """
        document = record_set.model_dump(mode="json", exclude_none=True)
        for refused in upload(document, self.send_json, divide_on={TOO_LARGE}):
            raise refused.error

    def send_json(self, body: bytes, records: int) -> None:
        """Send a record set, encoded as JSON, in one request; `records` is their number."""
        answer = self._json("POST", "/records", content=body)
        if answer.get("records") != records:
            raise NonsenseError(f"{self.url} does not confirm that it took {records} records")
        if answer.get("refused"):
            warn_once(
                f"passed over {self.url}",
                f"{self.url} passed over some of these timings: they are older than a deletion, or "
                "cannot be true. Are the clocks of both machines right?",
            )

    def revalidate(self, copies: Mapping[str, Any]) -> dict[str, Any]:
        """Return what has changed of the records that this machine has copies of.

        Args:
            copies: the revision and the scenarios' tags, by the digest of their context.

        Returns:
            The changes by the digest of their context, as the server sent them.
        """
        content = json.dumps({"contexts": copies})
        changes = self._json("POST", "/revalidation", content=content).get("contexts")
        if not isinstance(changes, dict):
            raise NonsenseError(f"{self.url} does not answer what has changed")
        return changes

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        """Delete a context's records, all or those of some scenarios, and return their number.

        The request is sent once: the answer to another one would not count what the first deleted.
        """
        params = (
            [] if scenarios is None else [("scenario", scenario.digest) for scenario in scenarios]
        )
        path = f"/contexts/{context.digest}/records"
        answer = self._json("DELETE", path, params=params, repeatable=False)
        return self._count(answer, "deleted")

    def lease(self, context: Context, scenario: Scenario, holder: str, ttl: float) -> str | None:
        """Acquire the lease on a scenario.

        Args:
            context: the scenario's context.
            scenario: the scenario to tune.
            holder: who asks, for the server's pages.
            ttl: seconds after which the lease ends unless it is renewed.

        Returns:
            The lease's id, or None while another holder has it.
        """
        request = {
            "context": to_json(context),
            "scenario": to_json(scenario),
            "holder": holder,
            "ttl": ttl,
        }
        lease = self._json("POST", "/leases", content=json.dumps(request)).get("lease")
        if lease is not None and not (isinstance(lease, str) and _LEASE_ID.fullmatch(lease)):
            raise NonsenseError(f"{self.url} granted a lease with the id {str(lease)[:80]!r}")
        return lease

    def renew(self, lease: str, ttl: float) -> None:
        """Extend a lease by `ttl` seconds from now."""
        self._json("PUT", f"/leases/{lease}", content=json.dumps({"ttl": ttl}))

    def release(self, lease: str) -> None:
        """Release a lease; one that has ended already is no error."""
        self._exchange.send("DELETE", f"{self._namespace_url}/leases/{lease}")

    def report_misses(self, misses: Mapping[tuple[Context, Scenario], int]) -> None:
        """Add to the server's counts of scenarios that were launched without a record."""
        rows = [
            {"context": to_json(context), "scenario": to_json(scenario), "count": count}
            for (context, scenario), count in misses.items()
        ]
        self._json("POST", "/misses", content=json.dumps({"misses": rows}))

    def misses(self, kernel: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Return the worklist: scenarios that are not tuned, the most frequently missed first."""
        params = {"limit": limit, **({"kernel": kernel} if kernel else {})}
        return self._rows(self._json("GET", "/misses", params=params), "misses", ListedMiss)

    def list_writers(self) -> list[dict[str, Any]]:
        """Return the tokens and hosts that wrote measurements, as the server lists them."""
        return self._rows(self._json("GET", "/writers"), "writers", ListedWriter)

    def quarantine(self, wish: Mapping[str, Any]) -> dict[str, Any]:
        """Take back what a token or a host wrote, or count it; the wish is the protocol's body."""
        content = json.dumps(wish)
        repeatable = bool(wish.get("preview"))
        answer = self._json(
            "POST", "/quarantines", content=content, timeout=_LONG_WORK, repeatable=repeatable
        )
        validate(QuarantineCounts, answer, self.url)
        return answer

    def list_quarantines(self) -> list[dict[str, Any]]:
        """Return the quarantines of the namespace, the latest first, as the server lists them."""
        return self._rows(self._json("GET", "/quarantines"), "quarantines", ListedQuarantine)

    def undo_quarantine(self, identity: str) -> dict[str, Any]:
        """Give back what a quarantine took, and return the counts."""
        path = f"/quarantines/{quote(identity, safe='')}"
        answer = self._json("DELETE", path, timeout=_LONG_WORK, repeatable=False)
        validate(QuarantineCounts, answer, self.url)
        return answer

    def log_entries(
        self, filters: Mapping[str, str], page_size: int, all_namespaces: bool
    ) -> Iterator[dict[str, Any]]:
        """Yield the entries of the log of changes, newest first, and ask for them page by page.

        Args:
            filters: parameters of the request, as the protocol names them; empty ones are left out.
            page_size: the entries of a page, of which a server gives at most 1000.
            all_namespaces: whether entries of all namespaces, and of none, are wanted.
        """
        root = f"{self.url}/v1" if all_namespaces else self._namespace_url
        params: dict[str, Any] = {name: value for name, value in filters.items() if value}
        params["limit"] = min(page_size, 1000)
        before = math.inf
        while True:
            page = self._json("GET", "/log", root=root, params=params)
            yield from self._rows(page, "entries", ListedChange)
            params["before"] = page.get("next")
            if not isinstance(params["before"], int) or params["before"] >= before:
                return  # the last page, or a server that would go on for ever
            before = params["before"]

    def pin(self, context: Context, scenario: Scenario, config: Config | None, by: str) -> None:
        """Pin a scenario's config for all users, or remove the pin if `config` is None."""
        path = f"/contexts/{context.digest}/pins/{scenario.digest}"
        if config is None:
            self._json("DELETE", path)
        else:
            self._json("PUT", path, content=json.dumps({"config": to_json(config), "by": by}))

    def promote(self, to: str, kernel: str | None = None, writers: Iterable[str] = ()) -> int:
        """Copy this namespace's records and winners into another; return the number of records.

        Args:
            to: the other namespace.
            kernel: the only kernel to copy.
            writers: names of tokens; what others wrote is refused.
        """
        content = json.dumps({"to": to, "kernel": kernel, "writers": list(writers) or None})
        answer = self._json("POST", "/promote", content=content, timeout=_LONG_WORK)
        return self._count(answer, "records")

    def _get(self, path: str, etag: str = "", **request: Any) -> ServerAnswer:
        headers = {"If-None-Match": etag} if etag else {}
        return self._exchange.send("GET", self._namespace_url + path, headers=headers, **request)

    def _json(self, method: str, path: str, *, root: str = "", **request: Any) -> dict[str, Any]:
        url = (root or self._namespace_url) + path
        status, _, body = self._exchange.send(method, url, **request)
        if status == 404:
            raise RefusedError(f"{self.url}: {problem_detail(body) or 'not found'}", status)
        answer = parse_json(body, self.url)
        if not isinstance(answer, dict):
            raise NonsenseError(f"{self.url} answered {str(answer)[:80]!r}")
        return answer

    def _count(self, answer: Mapping[str, Any], name: str) -> int:
        count: int = validate(Count, answer.get(name), self.url)
        return count

    def _rows(
        self, answer: Mapping[str, Any], name: str, kind: type[BaseModel]
    ) -> list[dict[str, Any]]:
        """Return the rows of a list, which may have more than the model of one asks for."""
        rows = answer.get(name)
        validate(list[kind], rows, self.url)  # type: ignore[valid-type]
        return cast(list[dict[str, Any]], rows)
