"""A server's protocol as Python calls: see `docs/protocol.md`."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import httpx
import stamina
from pydantic import TypeAdapter, ValidationError

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.record import FORMAT, Record, RecordSet
from dejavu_cache.model.scenario import Config, Context, Scenario

from .errors import NonsenseError, RefusedError, UnreachableError

__all__ = ["Bulk", "ProtocolClient", "split_server_url"]

LARGEST_BODY = 256 * 2**20
"""Bytes of an answer, unpacked, beyond which it is not read."""

PATIENCE = httpx.Timeout(40.0, connect=5.0)
SLOWEST_BODY = 60.0
"""Seconds that an answer may take from its first byte to its last."""

_AGAIN = {408, 425, 429, 500, 502, 503, 504}


class Bulk(NamedTuple):
    """All that a server knows of a context, and the tag by which to ask whether that has changed."""

    records: tuple[Record, ...]
    etag: str


def split_server_url(url: str, namespace: str) -> tuple[str, str]:
    """A server's base URL and namespace, from a store's URL with an optional `?namespace=`.

    Raises:
        SettingsError: it carries a password, or something else that a server's URL does not have.
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

    Args:
        url: the server's base URL.
        token: sent as a bearer token, if there is one.
        namespace: what the calls are about.
        attempts: how often a call that may be repeated is tried while the server is unreachable.
        http_client: for tests and for special transports; its base URL is not used.

    Every call raises `UnreachableError`, `RefusedError` or `NonsenseError` if it is not answered as it should be.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        namespace: str = "main",
        attempts: int = 1,
        http_client: httpx.Client | None = None,
    ) -> None:
        self.url = url
        self.namespace = namespace
        self._home = f"{url}/v1/{namespace}"
        self._attempts = attempts
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._given = http_client
        self._own: httpx.Client | None = None
        self._lock = threading.Lock()

    @property
    def _http(self) -> httpx.Client:
        with self._lock:
            if self._given is not None:
                return self._given
            if self._own is None:
                self._own = httpx.Client(timeout=PATIENCE, follow_redirects=False)
            return self._own

    def close(self) -> None:
        """Closes the connections; the next call opens new ones."""
        with self._lock:
            own, self._own = self._own, None
        if own is not None:
            own.close()

    def forget(self) -> None:
        """Leaves the connections to somebody else: to the parent, in the child after a fork."""
        self._lock = threading.Lock()
        self._own = None

    def alive(self) -> None:
        """Returns if the server answers and its database does."""
        self._call("GET", f"{self.url}/readyz")

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        """The contexts that have records, of one kernel or of all."""
        after = ""
        while True:
            wanted = {"kernel": kernel, "after": after}
            page = self._json(
                "GET", "/contexts", params={name: value for name, value in wanted.items() if value}
            )
            yield from _read(list[Context], page.get("contexts"))
            after = str(page.get("next") or "")
            if not after:
                return

    def bulk(self, context: Context, etag: str = "") -> Bulk | None:
        """All records of a context in one request; None if `etag` is still right."""
        headers = {"If-None-Match": etag} if etag else {}
        status, answered, body = self._call(
            "GET", f"{self._home}/contexts/{context.digest}/records", headers=headers
        )
        if status == 304:
            return None
        if status == 404:
            return Bulk((), "")
        whole = _record_set(body)
        if whole.context != context:
            raise NonsenseError(f"{self.url} sent records of {whole.context.kernel.name} instead")
        return Bulk(whole.records, answered.get("etag", ""))

    def record(self, context: Context, scenario: Scenario, wait: float = 0.0) -> Record | None:
        """One record; with `wait`, not before it has a winner, and None if it gets none in so many seconds."""
        path = f"{self._home}/contexts/{context.digest}/records/{scenario.digest}"
        status, _, body = self._call("GET", path, params={"wait": wait} if wait else {})
        return None if status == 404 else _read(Record, _parsed(body))

    def send(self, whole: RecordSet) -> None:
        """Merges records into the server's; who is told that they were taken may forget them."""
        taken = self._json(
            "POST", "/records", content=whole.model_dump_json(exclude_none=True)
        ).get("records")
        if taken != len(whole.records):
            raise NonsenseError(
                f"{self.url} does not say that it took {len(whole.records)} records"
            )

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        """Drops records, and says how many there were."""
        params = (
            [] if scenarios is None else [("scenario", scenario.digest) for scenario in scenarios]
        )
        return int(
            self._json("DELETE", f"/contexts/{context.digest}/records", params=params).get(
                "deleted", 0
            )
        )

    def lease(self, context: Context, scenario: Scenario, holder: str, ttl: float) -> str | None:
        """The id of a lease on a scenario, or None while somebody else holds it."""
        wanted = {
            "context": _dumped(context),
            "scenario": _dumped(scenario),
            "holder": holder,
            "ttl": ttl,
        }
        lease = self._json("POST", "/leases", content=json.dumps(wanted)).get("lease")
        return str(lease) if lease else None

    def renew(self, lease: str, ttl: float) -> None:
        """Holds a lease for longer."""
        self._json("PUT", f"/leases/{lease}", content=json.dumps({"ttl": ttl}))

    def release(self, lease: str) -> None:
        """Lets go of a lease; one that is gone already is no error."""
        self._call("DELETE", f"{self._home}/leases/{lease}")

    def report_misses(self, misses: Mapping[tuple[Context, Scenario], int]) -> None:
        """Tells the server what was wanted and not there."""
        rows = [
            {"context": _dumped(c), "scenario": _dumped(s), "count": count}
            for (c, s), count in misses.items()
        ]
        self._json("POST", "/misses", content=json.dumps({"misses": rows}))

    def misses(self, kernel: str | None = None) -> list[dict[str, Any]]:
        """The worklist: what was wanted and is not tuned, the most wanted first."""
        return list(
            self._json("GET", "/misses", params={"kernel": kernel} if kernel else {}).get(
                "misses", []
            )
        )

    def pin(self, context: Context, scenario: Scenario, config: Config | None, by: str) -> None:
        """Pins a scenario's config for everybody, or takes the pin back."""
        path = f"/contexts/{context.digest}/pins/{scenario.digest}"
        if config is None:
            self._json("DELETE", path)
        else:
            self._json("PUT", path, content=json.dumps({"config": _dumped(config), "by": by}))

    def promote(self, to: str, kernel: str | None = None) -> int:
        """Copies records into another namespace and makes this one's winners its own; says how many."""
        return int(
            self._json("POST", "/promote", content=json.dumps({"to": to, "kernel": kernel})).get(
                "records", 0
            )
        )

    def _json(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        status, _, body = self._call(method, self._home + path, **request)
        if status == 404:
            raise RefusedError(f"{self.url}: {_detail(body) or 'not found'}", status)
        answer = _parsed(body)
        if not isinstance(answer, dict):
            raise NonsenseError(f"{self.url} answered {str(answer)[:80]!r}")
        return answer

    def _call(self, method: str, url: str, **request: Any) -> tuple[int, Mapping[str, str], bytes]:
        for attempt in stamina.retry_context(
            on=UnreachableError, attempts=self._attempts, timeout=60.0
        ):
            with attempt:
                return self._once(method, url, **request)
        raise AssertionError("stamina always tries once")

    def _once(self, method: str, url: str, **request: Any) -> tuple[int, Mapping[str, str], bytes]:
        headers = {**self._headers, **request.pop("headers", {})}
        if "content" in request:
            headers["Content-Type"] = "application/json"
        try:
            with self._http.stream(method, url, headers=headers, **request) as response:
                status, body = response.status_code, self._body(response)
        except httpx.InvalidURL as error:
            raise SettingsError(f"{url}: {error}") from None
        except httpx.HTTPError as error:
            raise UnreachableError(
                f"{self.url} does not answer: {error or type(error).__name__}"
            ) from error
        if status in _AGAIN:
            raise UnreachableError(f"{self.url} answered {status}: {_detail(body)}")
        if 300 <= status < 400 and status != 304:
            raise NonsenseError(f"{self.url} wants to send us elsewhere, which is not followed")
        if status >= 400 and status != 404:
            raise RefusedError(f"{self.url} refused with {status}: {_detail(body)}", status)
        return status, response.headers, body

    def _body(self, response: httpx.Response) -> bytes:
        until = time.monotonic() + SLOWEST_BODY
        body = bytearray()
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > LARGEST_BODY:
                raise NonsenseError(f"{self.url} sent more than {LARGEST_BODY >> 20} MiB")
            if time.monotonic() > until:
                raise UnreachableError(f"{self.url} was still answering after {SLOWEST_BODY:.0f} s")
        return bytes(body)


def _dumped(model: Any) -> Any:
    return model.model_dump(mode="json", exclude_none=True)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise NonsenseError(f"the answer is no JSON: {error}") from None


def _read(kind: Any, value: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_json(json.dumps(value))
    except (ValidationError, ValueError) as error:
        raise NonsenseError(
            f"the answer is not what the protocol says: {str(error).splitlines()[0]}"
        ) from None


def _record_set(body: bytes) -> RecordSet:
    try:
        whole = RecordSet.model_validate_json(body)
    except ValidationError as error:
        raise NonsenseError(f"the answer is no record set: {str(error).splitlines()[0]}") from None
    if whole.format > FORMAT:
        raise NonsenseError(
            f"the server speaks format {whole.format}, and this version reads up to {FORMAT}: upgrade it"
        )
    return whole


def _detail(body: bytes) -> str:
    """What a problem+json body says, for a person."""
    try:
        problem = json.loads(body)
        return str(problem.get("detail") or problem.get("title") or "")[:500]
    except (ValueError, AttributeError):
        return ""
