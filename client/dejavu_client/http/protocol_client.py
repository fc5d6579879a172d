"""Client of the server's HTTP protocol, which docs/protocol.md describes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import httpx
import stamina

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.model.scenario import Config, Context, Scenario

from .answers import (
    parse_json,
    parse_record_set,
    parse_scenarios,
    problem_detail,
    retry_after,
    to_json,
    validate,
)
from .errors import BusyError, NonsenseError, RefusedError, ServerFaultError, UnreachableError
from .server_silence import current_clock
from .shared_client import SharedHttpClient
from .token_source import TokenSource
from .uploads import TOO_LARGE, upload

__all__ = ["Bulk", "ProtocolClient", "ServerAnswer", "split_server_url"]

LARGEST_BODY = 256 * 2**20
"""Bytes of a decompressed answer beyond which it is not read."""

SLOWEST_BODY = 60.0
"""Seconds that an answer may take from its first byte to its last."""

RETRYABLE_STATUSES = {408, 425, 429, 500, 502, 503, 504}

_LEASE_ID = re.compile(r"[0-9a-f]{32}")

BUSY_STATUSES = {429, 503}
"""Statuses that, with `Retry-After`, tell a client to wait and not that the server has failed."""


class Bulk(NamedTuple):
    """All records of a context, and the HTTP entity tag that tells whether they have changed."""

    records: tuple[Record, ...]
    etag: str


class ServerAnswer(NamedTuple):
    """An answer that is still to be parsed, which no server should be blamed for."""

    status: int
    etag: str
    body: bytes


def split_server_url(url: str, namespace: str) -> tuple[str, str]:
    """Split a store's URL into the server's base URL and the namespace.

    Args:
        url: `https://host[:port][/path][?namespace=NAME]`.
        namespace: returned if the URL names none.

    Raises:
        SettingsError: the URL carries a user, a password or an unknown part.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    namespace = options.pop("namespace", namespace)
    if parts.username or parts.password:
        raise SettingsError("a server's URL carries no user or password: set DEJAVU_CACHE_TOKEN")
    if options or parts.fragment or not parts.hostname:
        raise SettingsError(
            f"{url!r}: a server's URL is https://host[:port][/path][?namespace=NAME]"
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", namespace


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
        self._attempts = attempts
        self._token = token if isinstance(token, TokenSource) else TokenSource(token)
        self._injected_client = http_client
        self._shared_client = SharedHttpClient()

    def close(self) -> None:
        """Close the connections once their requests are answered; the next call opens new ones."""
        self._shared_client.close()

    def interrupt(self) -> None:
        """Make all requests fail at once, those that wait for an answer and later ones."""
        self._shared_client.interrupt()

    def abandon_connections(self) -> None:
        """Drop the connections without closing them: after a fork they belong to the parent."""
        self._shared_client.abandon()

    def check_ready(self) -> None:
        """Raise an error unless the server and its database answer."""
        self._call("GET", f"{self.url}/readyz")

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        """Yield the contexts that have records, of one kernel or of all."""
        after = ""
        while True:
            filters = {"kernel": kernel, "after": after}
            page = self._json(
                "GET", "/contexts", params={name: value for name, value in filters.items() if value}
            )
            yield from validate(list[Context], page.get("contexts"))
            after = str(page.get("next") or "")
            if not after:
                return

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
        record_set = parse_record_set(answer.body)
        if record_set.context != context:
            raise NonsenseError(
                f"{self.url} sent records of {record_set.context.kernel.name} instead"
            )
        return Bulk(record_set.records, answer.etag)

    def record(self, context: Context, scenario: Scenario, wait: float = 0.0) -> Record | None:
        """Return one record, or None if the server has none.

        Args:
            context: the context to look in.
            scenario: the scenario of the record.
            wait: seconds that the server may wait for the record to have a winner.
        """
        return self.parse_record(scenario, self.fetch_record(context, scenario, wait))

    def fetch_record(self, context: Context, scenario: Scenario, wait: float = 0.0) -> ServerAnswer:
        """Ask for one record; the arguments are those of `record`."""
        path = f"/contexts/{context.digest}/records/{scenario.digest}"
        return self._get(path, params={"wait": wait} if wait else {})

    def parse_record(self, scenario: Scenario, answer: ServerAnswer) -> Record | None:
        """Return the record of an answer to `fetch_record`, or None if there is none."""
        if answer.status == 404:
            return None
        record: Record = validate(Record, parse_json(answer.body))
        if record.scenario != scenario:
            raise NonsenseError(f"{self.url} sent the record of {record.scenario} instead")
        return record

    def scenario_texts(self, context: Context, etag: str = "") -> tuple[str, list[str]] | None:
        """Return the entity tag and the texts of a context's scenarios; None if it is current."""
        answer = self._get(f"/contexts/{context.digest}/scenarios", etag)
        if answer.status == 404:  # an earlier server: it lists scenarios with their records alone
            answer = self.fetch_bulk(context, etag)
        if answer.status == 304:
            return None
        return answer.etag, [] if answer.status == 404 else parse_scenarios(answer.body)

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
        """Delete a context's records, all or those of some scenarios, and return their number."""
        params = (
            [] if scenarios is None else [("scenario", scenario.digest) for scenario in scenarios]
        )
        answer = self._json("DELETE", f"/contexts/{context.digest}/records", params=params)
        return int(answer.get("deleted", 0))

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
        self._call("DELETE", f"{self._namespace_url}/leases/{lease}")

    def report_misses(self, misses: Mapping[tuple[Context, Scenario], int]) -> None:
        """Add to the server's counts of scenarios that were launched without a record."""
        rows = [
            {"context": to_json(context), "scenario": to_json(scenario), "count": count}
            for (context, scenario), count in misses.items()
        ]
        self._json("POST", "/misses", content=json.dumps({"misses": rows}))

    def misses(self, kernel: str | None = None) -> list[dict[str, Any]]:
        """Return the worklist: scenarios that are not tuned, the most frequently missed first."""
        answer = self._json("GET", "/misses", params={"kernel": kernel} if kernel else {})
        return list(answer.get("misses", []))

    def log_entries(
        self, filters: Mapping[str, str], limit: int, all_namespaces: bool
    ) -> list[dict[str, Any]]:
        """Return up to `limit` entries of the log of changes, newest first.

        Args:
            filters: parameters of the request, as the protocol names them; empty ones are left out.
            limit: the largest number of entries.
            all_namespaces: whether entries of all namespaces, and of none, are wanted.
        """
        root = f"{self.url}/v1" if all_namespaces else self._namespace_url
        params: dict[str, Any] = {name: value for name, value in filters.items() if value}
        entries: list[dict[str, Any]] = []
        while len(entries) < limit:
            params["limit"] = min(limit - len(entries), 1000)
            page = self._json("GET", "/log", root=root, params=params)
            entries += page.get("entries", [])
            params["before"] = page.get("next")
            if params["before"] is None:
                break
        return entries

    def pin(self, context: Context, scenario: Scenario, config: Config | None, by: str) -> None:
        """Pin a scenario's config for all users, or remove the pin if `config` is None."""
        path = f"/contexts/{context.digest}/pins/{scenario.digest}"
        if config is None:
            self._json("DELETE", path)
        else:
            self._json("PUT", path, content=json.dumps({"config": to_json(config), "by": by}))

    def promote(self, to: str, kernel: str | None = None) -> int:
        """Copy this namespace's records and winners into another; return the number of records."""
        answer = self._json("POST", "/promote", content=json.dumps({"to": to, "kernel": kernel}))
        return int(answer.get("records", 0))

    def _get(self, path: str, etag: str = "", **request: Any) -> ServerAnswer:
        headers = {"If-None-Match": etag} if etag else {}
        status, response_headers, body = self._call(
            "GET", self._namespace_url + path, headers=headers, **request
        )
        return ServerAnswer(status, response_headers.get("etag", ""), body)

    def _json(self, method: str, path: str, *, root: str = "", **request: Any) -> dict[str, Any]:
        status, _, body = self._call(method, (root or self._namespace_url) + path, **request)
        if status == 404:
            raise RefusedError(f"{self.url}: {problem_detail(body) or 'not found'}", status)
        answer = parse_json(body)
        if not isinstance(answer, dict):
            raise NonsenseError(f"{self.url} answered {str(answer)[:80]!r}")
        return answer

    def _call(self, method: str, url: str, **request: Any) -> tuple[int, Mapping[str, str], bytes]:
        for attempt in stamina.retry_context(
            on=UnreachableError, attempts=self._attempts, timeout=60.0
        ):
            with attempt:
                return self._call_once(method, url, **request)
        raise AssertionError("stamina always tries once")

    def _call_once(
        self, method: str, url: str, **request: Any
    ) -> tuple[int, Mapping[str, str], bytes]:
        headers = {**self._token.headers(), **request.pop("headers", {})}
        if "content" in request:
            headers["Content-Type"] = "application/json"
        try:
            status, response_headers, body = self._exchange(method, url, headers, request)
        except httpx.InvalidURL as error:
            raise SettingsError(f"{url}: {error}") from None
        except httpx.HTTPError as error:
            raise UnreachableError(
                f"{self.url} does not answer: {error or type(error).__name__}"
            ) from error
        if status == 500:
            raise ServerFaultError(f"{self.url} answered {status}: {problem_detail(body)}")
        if status in RETRYABLE_STATUSES:
            message = f"{self.url} answered {status}: {problem_detail(body)}"
            seconds = retry_after(response_headers.get("retry-after", ""))
            if status in BUSY_STATUSES and seconds is not None:
                raise BusyError(message, status, seconds)
            raise UnreachableError(message)
        if 300 <= status < 400 and status != 304:
            raise NonsenseError(f"{self.url} answered with a redirect, which is not followed")
        if status >= 400 and status != 404:
            raise RefusedError(f"{self.url} refused with {status}: {problem_detail(body)}", status)
        return status, response_headers, body

    def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], request: dict[str, Any]
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request and read its answer, once more if the connection was lost meanwhile.

        A server that restarts or has been idle closes connections, also while a request is on its
        way. All requests may be repeated: each has the same effect twice as once.
        """
        clock = current_clock()

        def trace(event: str, details: Mapping[str, Any]) -> None:
            self._shared_client.trace(event, details)
            clock.trace(event)

        for is_last in (False, True):
            try:
                with (
                    self._http_client() as client,
                    client.stream(
                        method,
                        url,
                        headers=headers,
                        extensions={"trace": trace},
                        **request,
                    ) as response,
                ):
                    return response.status_code, response.headers, self._read_body(response)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                if is_last:
                    raise
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def _http_client(self) -> Iterator[httpx.Client]:
        if self._injected_client is None:
            with self._shared_client.request() as client:
                yield client
        else:
            # It may have a transport that reports no steps.
            with current_clock().count_wait():
                yield self._injected_client

    def _read_body(self, response: httpx.Response) -> bytes:
        deadline = time.monotonic() + SLOWEST_BODY
        body = bytearray()
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > LARGEST_BODY:
                raise NonsenseError(f"{self.url} sent more than {LARGEST_BODY >> 20} MiB")
            if time.monotonic() > deadline:
                raise UnreachableError(f"{self.url} was still answering after {SLOWEST_BODY:.0f} s")
        return bytes(body)
