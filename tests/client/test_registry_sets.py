"""Signed sets in a registry: Debian's own, with and without a login, and one that wants tokens."""

from __future__ import annotations

import base64
import http.server
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from dejavu_client.cli.main import run_command
from dejavu_client.static_sets import INDEX, StaticStore, make_key, open_static
from dejavu_client.static_sets.registry import MANIFEST, TITLE, Registry, _kept_login
from support.service import free_port
from support.signed_sets import KNOWN, SETS, Publisher, read_all

from dejavu_cache.errors import StoreError
from dejavu_cache.stores import FileStore

PROGRAM = shutil.which("docker-registry") or ""
DIGEST = f"sha256:{0:064}"
HASH = "$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a"  # of the password


HELPER = """#!/bin/sh
[ "$1 $(cat)" = "get HOST" ] && echo '{"Username": "me", "Secret": "secret"}' && exit
echo credentials not found in native keychain; exit 1
"""


def log_in(folder: Path, host: str, monkeypatch: pytest.MonkeyPatch, place: str = "auths") -> None:
    login = base64.b64encode(b"me:secret").decode()
    entry = {"auth": login, "identitytoken": "kept" * (place == "identity")}
    config = {"auths": {host: entry}, "credHelpers": {host: "kept"}, "credsStore": "kept"}
    key = place.replace("identity", "auths")
    (folder / "config.json").write_text(json.dumps({"credHelpers": None, key: config[key]}))
    (folder / "docker-credential-kept").write_text(HELPER.replace("HOST", host))
    (folder / "docker-credential-kept").chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))


@pytest.fixture(params=["open", "login"])
def registry(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    host, users = f"127.0.0.1:{free_port()}", tmp_path / "users"
    users.write_text(f"me:{HASH}\n")
    config: dict[str, Any] = {"version": 0.1, "log": {"level": "error"}, "http": {"addr": host}}
    config["storage"] = {"filesystem": {"rootdirectory": str(tmp_path / "blobs")}}
    if request.param == "login":
        config["auth"] = {"htpasswd": {"realm": "sets", "path": str(users)}}
        log_in(tmp_path, host, monkeypatch)
    (tmp_path / "config.yml").write_text(json.dumps(config))
    with subprocess.Popen([PROGRAM, "serve", tmp_path / "config.yml"]) as process:
        with httpx.Client(transport=httpx.HTTPTransport(retries=10)) as client:
            client.get(f"http://{host}/v2/")
        yield host
        process.terminate()


@pytest.mark.skipif(not PROGRAM, reason="docker-registry is not installed")
def test_a_set_is_pushed_pulled_and_recalled(registry: str, tmp_path: Path) -> None:
    url = f"oci://{registry}/team/records:v1"
    make_key(make := tmp_path / "key.pem")
    with pytest.raises(StoreError, match="check the set's URL"):
        read_all(StaticStore(Registry(url, 5), "A" * 43, folder=tmp_path / "none"))
    key = Registry(url, 5).publish(SETS, make)
    store = StaticStore(Registry(url, 5), key, folder=tmp_path / "copies")
    assert read_all(store) == KNOWN
    assert Registry(url, 5).publish(SETS[:1], make) == key
    assert [entry.context for entry in store.entries(fresh=True)] == [SETS[0].context]

    class Overtaken(Registry):
        def _push(self, data: bytes, name: str) -> dict[str, Any]:
            if name == INDEX:
                Registry(url, 5).publish(SETS, make)
            return super()._push(data, name)

    with pytest.raises(StoreError, match="another was published"):
        Overtaken(url, 5).publish([], make)
    assert len(store.entries(fresh=True)) == len(SETS)
    make_key(tmp_path / "other.pem")
    with pytest.raises(StoreError, match="signed by another key"):
        Registry(url, 5).publish(SETS, tmp_path / "other.pem")


@pytest.mark.skipif(not PROGRAM, reason="docker-registry is not installed")
def test_commands_name_an_artifact(
    registry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `oras pull` reads of it: a title for each blob."""
    store, url = FileStore(tmp_path / "store"), f"oci://{registry}/team/records:v1"
    store.put(SETS[0].context, SETS[0].records)
    words = ["--sign", str(tmp_path / "key.pem"), "--new-key", "--store", store.url]
    assert run_command(["export", url, *words]) == 0
    words = capsys.readouterr().out.split()[1:]
    assert run_command([*words, "--device", "H200", "--triton", "3.6.0"]) == 0
    fetched = open_static(capsys.readouterr().out.split("'")[1].split(",")[-1])
    address, headers = f"http://{registry}/v2/team/records/manifests/v1", {"Accept": MANIFEST}
    manifest = httpx.get(address, auth=("me", "secret"), headers=headers).json()
    assert manifest["artifactType"] == "application/vnd.dejavu-cache.records"
    titles = {layer["annotations"][TITLE] for layer in manifest["layers"]}
    assert titles == {INDEX, *(entry.file for entry in fetched.entries() if entry.records == 2)}


@pytest.mark.parametrize("place", ["auths", "identity", "credHelpers", "credsStore"])
def test_a_registry_that_wants_a_token_gets_one(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Publisher(tmp_path)
    by_path = {
        f"/v2/team/records/blobs/sha256:{path.stem}": path.read_bytes()
        for path in publisher.folder.glob("*.json")
    } | {f"/v2/team/records/blobs/{DIGEST}": publisher.index.read_bytes()}
    layer = {"digest": DIGEST, "annotations": {TITLE: INDEX}}
    by_path["/v2/team/records/manifests/v1"] = json.dumps({"layers": [layer]}).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            sent = self.headers.get("Authorization", "")
            logins.update({self.headers["Host"]} if sent else ())
            is_login = place != "identity" and sent.startswith("Basic ")
            if path == "/token" and is_login and "scope=pull" in query:
                self.answer(200, b'{"access_token": "granted"}')
            elif path.endswith("/moved"):
                self.answer(302, b"")
            elif sent == "Bearer granted":
                self.answer(200, by_path[path])
            else:
                self.answer(401, b"")

        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"]))
            is_granted = place == "identity" and b"refresh_token=kept" in form
            self.answer(200 if is_granted else 401, b'{"access_token": "granted"}')

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            realm = f'Bearer realm="http://{self.headers["Host"]}/token",service="s",scope="pull"'
            self.send_header("WWW-Authenticate", realm)
            self.send_header("Location", f"http://localhost:{server.server_port}/elsewhere")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    logins = set[str]()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"127.0.0.1:{server.server_port}"
        log_in(tmp_path, host, monkeypatch, place)
        source = Registry(f"oci://{host}/team/records:v1", 5)
        assert read_all(StaticStore(source, publisher.key, folder=publisher.copies)) == KNOWN
        elsewhere = f"http://localhost:{server.server_port}/v2/team/records/blobs/{DIGEST}"
        for path in (elsewhere, "blobs/moved"):
            assert source._ask("GET", path).status == 401
        assert logins == {host}, "the login is for one host"
        with pytest.raises(StoreError, match=r"^.* 501 <!DOCTYPE HTML> .*\Z"):  # in one line
            source._change("PATCH", "blobs")
        with pytest.raises(StoreError, match="Invalid IPv6 URL"):  # which a registry has sent
            source._change("PUT", "http://[::1")
        with pytest.raises(StoreError, match="refused"):
            source._authorize('Bearer realm="http://[::1"')  # which is no URL
        by_path["/v2/team/records/manifests/v1"] = b"[" * 2**20
        with pytest.raises(StoreError, match="no artifact"):
            source.read(INDEX, 2**20)
        server.shutdown()


def test_a_helper_that_fails_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert Registry("oci://docker.io/a/b:c", 5)._base == "https://registry-1.docker.io/v2/a/b/"
    log_in(tmp_path, "known.example", monkeypatch, "credsStore")
    assert (_kept_login("public.example"), caplog.messages) == (("", ""), [])
    (tmp_path / "docker-credential-kept").write_text("#!/bin/sh\nyes [ | head -c 99999")
    assert _kept_login("known.example") == ("", "")
    assert "docker-credential-kept, which" in caplog.text.partition("`docker login known.ex")[0]
