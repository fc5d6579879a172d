"""Signed sets as artifacts of an OCI registry, which `oras pull` reads: `oci://host/repository:tag`.

Each file of the set is a blob under its digest, which the manifest of the tag lists by name. A new
manifest takes the tag once all blobs are there.
"""

import hashlib
import json
import os
import re
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urljoin

from pydantic_core import from_json

from dejavu_cache.errors import SettingsError, StoreError
from dejavu_cache.model.record import RecordSet
from dejavu_cache.system.notices import warn_once

from ..http.errors import RefusedError
from ..http.transport import TOKEN, ServerAnswer
from .signed_index import INDEX, LARGEST_INDEX, publish, refusal
from .sources import Source, ask, content_of, without_login

MANIFEST = "application/vnd.oci.image.manifest.v1+json"

TITLE = "org.opencontainers.image.title"
"""Annotation by which clients name a blob's file."""

LARGEST_MANIFEST = 4 * 2**20
"""Bytes of a manifest, of which registries take no more."""

HELPER_SECONDS = 10.0
"""Seconds for which docker's credential helper is waited for; some ask the user."""

HUB, HUB_LOGIN = "registry-1.docker.io", "https://index.docker.io/v1/"
"""The host behind the name `docker.io`, and what docker keeps its login under."""

IDENTITY = "<token>"
"""The name of a user whose secret is an identity token, by docker's protocol for helpers."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

_PLACE = re.compile(r"oci://([^][/@]+|\[[\da-f:]+\][\d:]*)/([a-z0-9._/-]+):(\w[\w.-]*)", re.ASCII)


class Registry(Source):
    """A set's files in a registry, with the credentials that `docker login` has kept."""

    def __init__(self, url: str, wait: float) -> None:
        """Read nothing yet."""
        super().__init__(url, wait)
        match = _PLACE.fullmatch(url)
        if match is None:
            raise SettingsError(
                f"{without_login(url)!r} names no artifact: write oci://host/repository:tag"
            )
        host, repository, self._tag = match.groups()
        self._host = HUB if host == "docker.io" else host
        is_local = self._host.partition(":")[0] in ("localhost", "127.0.0.1")
        self._scheme = "http://" if is_local else "https://"
        self._base = f"{self._scheme}{self._host}/v2/{repository}/"
        self._authorization: dict[str, str] = {}

    def read(self, name: str, largest: int, etag: str = "") -> tuple[bytes, str] | None:
        """Return a file; the index has the entity tag of the manifest."""
        if name != INDEX:
            return self._read_blob(f"sha256:{name.removesuffix('.json')}", largest), ""
        answer = self._ask("GET", f"manifests/{self._tag}", etag=etag)
        if answer.status == 304 and etag:
            return None
        manifest, etag = content_of(answer, self.url)
        try:
            layers = from_json(manifest)["layers"]
            digest = {layer["annotations"][TITLE]: layer["digest"] for layer in layers}[INDEX]
            if not _DIGEST.fullmatch(digest):
                raise ValueError(digest)
        except (ValueError, LookupError, TypeError):
            raise refusal(self.url, "it is no artifact with an index") from None
        return self._read_blob(digest, largest), etag

    def _read_blob(self, digest: str, largest: int) -> bytes:
        return content_of(self._ask("GET", f"blobs/{digest}", largest), self.url)[0]

    def publish(self, record_sets: Iterable[RecordSet], key_file: Path) -> str:
        """Sign record sets as `signed_index.publish` does, push them, and return the public key."""
        earlier = self._read_present()
        with TemporaryDirectory() as name:
            folder = Path(name)
            (folder / INDEX).write_bytes(earlier)
            public = publish(record_sets, folder, key_file)
            layers = [self._push(path.read_bytes(), path.name) for path in folder.glob("[!.]*")]
        config = self._push(b"{}", "") | {"mediaType": "application/vnd.oci.empty.v1+json"}
        types = {"mediaType": MANIFEST, "artifactType": "application/vnd.dejavu-cache.records"}
        manifest = {"schemaVersion": 2, **types, "config": config, "layers": layers}
        content = json.dumps(manifest).encode()
        if self._read_present() != earlier:  # whose readers might refuse this one as an earlier one
            raise StoreError(f"{self.url} is not written: another was published: publish again")
        self._change("PUT", f"manifests/{self._tag}", content=content, kind=MANIFEST)
        return public

    def _read_present(self) -> bytes:
        """Return the tag's index; empty if there is none yet."""
        try:
            return (self.read(INDEX, LARGEST_INDEX) or (b"", ""))[0]
        except RefusedError:
            return b""

    def _push(self, data: bytes, name: str) -> dict[str, Any]:
        """Upload a blob that is not there yet, and return its descriptor."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if self._ask("HEAD", f"blobs/{digest}").status != 200:
            url = self._change("POST", "blobs/uploads/").headers.get("location", "")
            self._change("PUT", f"{url}{'&' if '?' in url else '?'}digest={digest}", content=data)
        described = {"mediaType": "application/json", "digest": digest, "size": len(data)}
        return described | ({"annotations": {TITLE: name}} if name else {})

    def _change(self, method: str, path: str, **request: Any) -> ServerAnswer:
        """Send a request, and raise an error unless the registry has done what it asks."""
        answer = self._ask(method, path, **request)
        if answer.status not in (201, 202):
            text = " ".join(answer.body[:200].decode(errors="replace").split())
            raise RefusedError(f"{self.url} is not written: {answer.status} {text}", answer.status)
        return answer

    def _ask(
        self, method: str, path: str, largest: int = LARGEST_MANIFEST, **request: Any
    ) -> ServerAnswer:
        """Send a request, again with a token if the registry asks for one."""
        kind, etag = request.pop("kind", "application/octet-stream"), request.pop("etag", "")
        headers = {"Accept": f"{MANIFEST}, */*", "Content-Type": kind}
        headers |= {"If-None-Match": etag} if etag else {}
        try:
            url = urljoin(self._base, path)
        except ValueError as error:  # the registry has sent no URL
            raise refusal(self.url, error) from None
        if not url.startswith(f"{self._scheme}{self._host}/"):
            # An upload may go elsewhere, or to the same host without TLS: not with the login.
            return ask(method, url, largest, headers, **request)
        answer = ask(method, url, largest, headers | self._authorization, **request)
        if answer.status == 401 and not answer.redirects:  # none else may ask for the login
            self._authorization = self._authorize(answer.headers.get("www-authenticate", ""))
            answer = ask(method, url, largest, headers | self._authorization, **request)
        return answer

    def _authorize(self, challenge: str) -> dict[str, str]:
        """Return the header that answers a challenge, with a token if that asks for one."""
        user, secret = _kept_login(HUB_LOGIN if self._host == HUB else self._host)
        is_named = user not in ("", IDENTITY)
        basic = b64encode(f"{user}:{secret}".encode()).decode()
        header = _login("Basic", basic) if is_named else {}
        asked = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        realm = asked.pop("realm", "")
        if challenge.lower().startswith("bearer ") and realm.startswith(self._scheme):
            if user == IDENTITY:
                form = {"grant_type": "refresh_token", "client_id": "dejavu-cache", **asked}
                form["refresh_token"] = secret  # which no redirect takes elsewhere
                answer = ask("POST", realm, LARGEST_MANIFEST, {}, data=form, follow_redirects=False)
            else:
                answer = ask("GET", realm, LARGEST_MANIFEST, header, params=asked)
            with suppress(ValueError, LookupError, AttributeError):
                token = from_json(answer.body)
                header = _login("Bearer", token.get("token") or token["access_token"])
        return header


def _kept_login(host: str) -> tuple[str, str]:
    """Return the user and secret that docker keeps for a host, in its file or by a helper."""
    file = Path(os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker"), "config.json")
    program = ""
    try:
        config = from_json(file.read_bytes())
        helper = (config.get("credHelpers") or {}).get(host) or config.get("credsStore")
        if not helper:
            entry = config["auths"][host]
            if entry.get("identitytoken"):
                return IDENTITY, str(entry["identitytoken"])
            user, _, secret = b64decode(entry["auth"]).decode().partition(":")
            return user, secret
        program = f"docker-credential-{helper}"
        answer = subprocess.run(
            [program, "get"], input=host.encode(), capture_output=True, timeout=HELPER_SECONDS
        ).stdout
        if b"credentials not found" in answer:  # by the protocol's words: sets may be public
            return "", ""
        login = from_json(answer)  # refuses what is nested too deeply
        return str(login["Username"]), str(login["Secret"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, subprocess.TimeoutExpired):
        if program:
            text = f"{program}, which {file} names, fails: try `docker login {host}`"
            warn_once(f"login {host}", f"{host} is asked without a login, since {text}")
    return "", ""


def _login(kind: str, secret: object) -> dict[str, str]:
    """Return the header of a login; of a text that can be none, no error message may tell."""
    return {"Authorization": f"{kind} {secret}"} if TOKEN.fullmatch(f"{secret}") else {}
