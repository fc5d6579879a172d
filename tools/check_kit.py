"""Run the operating kit: the proxies, Prometheus and the workflow against real servers.

    python tools/check_kit.py

Needs nginx, caddy, prometheus, promtool, kubectl, curl, jq (Debian packages nginx, caddy,
prometheus, kubernetes-client, curl and jq) and openssl on the PATH, and the extras `server`, `gpu`
and `sweep`.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import yaml

from dejavu_cache.model.record import RecordSet

ROOT = Path(__file__).parent.parent
KIT = ROOT / "deploy"
RECORDS = ROOT / "examples/container/records.jsonl"


def main() -> None:
    """Check each part in a folder of its own, and print what was checked."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    for check in CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            started = time.monotonic()
            print(f"{check.__name__[6:]:10} {check(Path(folder))}", end="")
            print(f"  ({time.monotonic() - started:.1f} s)")


def check_rules(folder: Path) -> str:
    """Check Prometheus' configuration and test the alerts."""
    shutil.copytree(KIT / "prometheus", folder, dirs_exist_ok=True)
    config = (folder / "prometheus.yml").read_text()
    (folder / "token").write_text("x")
    (folder / "prometheus.yml").write_text(
        config.replace("/etc/prometheus/dejavu-token", str(folder / "token"))
    )
    execute("promtool", "check", "config", folder / "prometheus.yml")
    execute("promtool", "test", "rules", folder / "alerts_test.yaml")
    return "configuration and alerts pass promtool"


def check_images(folder: Path) -> str:
    """Check that what Kubernetes gets is whole, and that no image is named without its version."""
    made = subprocess.run([find("kubectl"), "kustomize", KIT], capture_output=True, check=True)
    (folder / "kubernetes.yaml").write_bytes(made.stdout)
    files = [folder / "kubernetes.yaml", ROOT / "compose.yaml", *ROOT.rglob("Dockerfile")]
    pattern = re.compile(r"^ *(?:image: |ARG BASE=)(\S+)", re.MULTILINE)
    images = {image for file in files for image in pattern.findall(file.read_text())}
    assert all(re.search(r":\d+\.\d+|@sha256:", image) for image in images), images
    return f"{', '.join(sorted(images))}"


def check_dashboard(folder: Path) -> str:
    """Let Prometheus scrape a server, and ask it for every panel of the dashboard."""
    port = free_port()
    panels = json.loads((KIT / "grafana/dashboard.json").read_text())["panels"]
    with servers(folder, 1) as (ports, token):
        import_records(f"http://127.0.0.1:{ports[0]}", token)
        (folder / "token").write_text(token)
        config = (KIT / "prometheus/prometheus.yml").read_text()
        config = config.replace("/etc/prometheus/dejavu-token", str(folder / "token"))
        config = re.sub(r"targets: \[.*\]", f'targets: ["127.0.0.1:{ports[0]}"]', config)
        config = config.replace("rule_files: [alerts.yaml]\n", "").replace("30s", "1s")
        (folder / "prometheus.yml").write_text(config)
        arguments = [
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        base = f"http://127.0.0.1:{port}"
        with running("prometheus", *arguments, ready=f"{base}/-/ready"):
            time.sleep(6)
            for _ in range(20):
                with suppress(httpx.HTTPStatusError):
                    import_records(f"http://127.0.0.1:{ports[0]}", token)
                look_up_record(f"http://127.0.0.1:{ports[0]}", token)
                time.sleep(0.1)
            time.sleep(3)
            for panel in panels:
                for target in panel["targets"]:
                    query = target["expr"].replace("$__rate_interval", "10s")
                    query = query.replace("[1h]", "[10s]")
                    answer = httpx.get(f"{base}/api/v1/query", params={"query": query}).json()
                    assert answer["status"] == "success", (panel["title"], answer)
                    assert answer["data"]["result"], f"{panel['title']}: no data"
    return f"{len(panels)} panels have data in Prometheus"


def check_nginx(folder: Path) -> str:
    """Send requests through the nginx of a machine, with TLS."""
    port = free_port()
    with servers(folder, 2) as (ports, token):
        make_certificate(folder)
        changes = {
            "127.0.0.1:8765": f"127.0.0.1:{ports[0]}",
            "# server 127.0.0.1:8766": f"server 127.0.0.1:{ports[1]}",
            "listen 443": f"listen 127.0.0.1:{port}",
            "/etc/ssl/tune.example.com.pem": str(folder / "cert.pem"),
            "/etc/ssl/tune.example.com.key": str(folder / "key.pem"),
            "/etc/nginx/dejavu/": f"{KIT}/nginx/",
        }
        site = adapt(KIT / "nginx/dejavu-cache.conf", changes)
        temporary = "\n".join(
            f"  {kind}_temp_path {folder}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (folder / "nginx.conf").write_text(
            f"pid {folder}/pid;\nerror_log {folder}/errors;\ndaemon off;\n"
            "worker_rlimit_nofile 65536;\nevents { worker_connections 20000; }\n"
            f"http {{\n  access_log off;\n{temporary}\n{site}}}\n"
        )
        return run_nginx(folder, f"https://127.0.0.1:{port}", token)


def check_container(folder: Path) -> str:
    """Send requests through the nginx of compose and Kubernetes."""
    port = free_port()
    with servers(folder, 2) as (ports, token):
        replica = "server server:8765 max_fails=0;"  # the name stands for several addresses
        replicas = [replica.replace("server:8765", f"127.0.0.1:{each}") for each in ports]
        changes = {
            replica: " ".join(replicas),
            "listen 8080": f"listen 127.0.0.1:{port}",
            "/etc/nginx/dejavu/tls*": f"{folder}/none*",
            "/etc/nginx/dejavu/": f"{KIT}/nginx/",
            "/tmp/": f"{folder}/",
            "error_log stderr": f"error_log {folder}/errors",
        }
        text = adapt(KIT / "nginx/nginx.conf", changes)
        (folder / "nginx.conf").write_text(f"daemon off;\n{text}")
        return run_nginx(folder, f"http://127.0.0.1:{port}", token)


def run_nginx(folder: Path, base: str, token: str) -> str:
    """Run nginx with the folder's configuration, and send requests through it."""
    arguments = ["-c", str(folder / "nginx.conf"), "-p", str(folder)]
    execute("nginx", "-t", *arguments)
    with running("nginx", *arguments, ready=f"{base}/livez"):
        reach_limit(base)
        return f"{drive(base, token, folder)}; who has too many connections is told when to ask"


def check_caddy(folder: Path) -> str:
    """Send requests through Caddy."""
    port = free_port()
    with servers(folder, 2) as (ports, token):
        changes = {
            "tune.example.com {": f"http://127.0.0.1:{port} {{",
            "127.0.0.1:8765": f"127.0.0.1:{ports[0]}",
            "127.0.0.1:8766": f"127.0.0.1:{ports[1]}",
        }
        site = adapt(KIT / "caddy/Caddyfile", changes)
        (folder / "Caddyfile").write_text(site.replace("{\n", "{\n\tadmin off\n", 1))
        base = f"http://127.0.0.1:{port}"
        arguments = ["--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
        execute("caddy", "validate", *arguments)
        with running("caddy", "run", *arguments, ready=f"{base}/livez"):
            return drive(base, token, folder)


def adapt(file: Path, changes: dict[str, str]) -> str:
    """Return a file's text for this machine: with its ports, certificate and folders."""
    text = file.read_text()
    for old, new in changes.items():
        assert old in text, (file, old)
        text = text.replace(old, new)
    return text


def drive(base: str, token: str, folder: Path) -> str:
    """Send records, read them, log in, and go on while a replica stops."""
    headers = {"Authorization": f"Bearer {token}"}
    import_records(base, token)
    with httpx.Client(base_url=base, headers=headers, verify=False) as client:
        contexts = client.get("/v1/main/contexts").json()["contexts"]
        assert contexts
        form = {"token": token, "next": "/pages/main"}
        assert client.post("/login", data=form).status_code == 303
        assert client.get("/pages/main").status_code == 200
        log = (folder / "server-0").read_text() + (folder / "server-1").read_text()
        assert '"client": "127.0.0.1"' in log, log[-500:]
        withstood = withstand(client, base, token)
        (folder / "stop-0").touch()
        answers = []
        for _ in range(100):
            answers.append(client.get("/v1/main/contexts").status_code)
            time.sleep(0.02)
        assert set(answers) == {200}, answers
    return (
        f"records, pages and login pass; {withstood}; 100 reads of 100 pass while a replica stops"
    )


ANYONE = ssl.create_default_context()
ANYONE.check_hostname, ANYONE.verify_mode = False, ssl.CERT_NONE

FORM = "POST /login HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
MISSES = "POST /v1/main/misses HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
FLOODS = {
    "half forms": FORM + "Content-Length: 1000\r\n\r\nt",
    "half bodies": MISSES + "Authorization: Bearer {token}\r\nContent-Length: 100000\r\n\r\n{{",
    "half heads": "GET /livez HTTP/1.1\r\nHost: x\r\nX-Long: ",
    "silent connections": "",
    "idle connections": "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
    "answers that nobody reads": "GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n",
}
"""What strangers send on each of many connections before they fall silent."""


def withstand(client: httpx.Client, base: str, token: str) -> str:
    """Hold thousands of connections from other addresses, and read meanwhile."""
    count = min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    slowest = dict.fromkeys(("/livez", "/v1/main/contexts"), 0.0)
    for flood, text in FLOODS.items():
        data = text.format(token=token).encode()
        with ExitStack() as opened:
            for number in range(count):
                # Of so many addresses that no limit of connections of one address is met.
                hold_connection(opened, base, f"127.0.0.{2 + number % 50}", data)
                if number % 50 == 49:  # whole requests are answered as they come
                    client.get("/livez", timeout=60)
            for path in [*slowest] * 10:
                began = time.monotonic()
                answer = client.get(path, timeout=10)
                assert answer.status_code == 200, (flood, path, answer.text)
                slowest[path] = max(slowest[path], time.monotonic() - began)
    seconds = ", ".join(f"{path} in {longest:.3f} s" for path, longest in slowest.items())
    return f"beside {count} {', '.join(FLOODS)}, at the slowest {seconds}"


def reach_limit(base: str) -> None:
    """Hold as many connections of one address as nginx takes, and send one more request from it."""
    address = "127.0.1.1"
    with ExitStack() as opened:
        for _ in range(2000):
            hold_connection(opened, base, address, FLOODS["half forms"].encode())
        transport = httpx.HTTPTransport(verify=False, local_address=address)
        with httpx.Client(base_url=base, transport=transport) as client:
            answer = client.get("/livez")
    said = answer.status_code, answer.headers.get_list("Retry-After")
    assert said == (429, ["2"]), said


def hold_connection(opened: ExitStack, base: str, address: str, data: bytes) -> None:
    """Open a connection from an address, send something, and read nothing."""
    url = httpx.URL(base)
    silent = opened.enter_context(socket.socket())
    silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    silent.bind((address, 0))
    silent.connect((url.host, url.port))
    if url.scheme == "https":
        silent = opened.enter_context(ANYONE.wrap_socket(silent))
    silent.sendall(data)


def check_workflow(folder: Path) -> str:
    """Run the workflow's own commands as the runners would: sweep, check, push and promote."""
    sys.path.append(str(ROOT / "tests"))
    from support.issuer import Issuer

    issuer = Issuer()
    issuer.make_key("first")
    page = (ROOT / "docs/server.md").read_text()
    rules = page.partition("[[issuers.rules]]")[2].partition("[[issuers]]")[0]
    port = free_port()
    server = f"http://127.0.0.1:{port}"
    oidc = folder / "oidc.toml"
    oidc.write_text(
        f'[[issuers]]\nissuer = "{issuer.url}"\naudience = "{server}"\n'
        f'jwks = "{issuer.url}/keys"\n[[issuers.rules]]{rules}'
    )
    jobs = yaml.safe_load((KIT / "github/tuning.yml").read_text())["jobs"]
    with servers(folder, 1, {"DEJAVU_SERVER_OIDC": str(oidc)}, [port]) as (_, token):
        shutil.copy(ROOT / "examples/matmul.py", folder)
        shutil.copy(ROOT / "examples/sweep_matmul.py", folder)
        (folder / "check.py").write_text(CHECK)
        store = {"DEJAVU_CACHE_URL": f"file://{folder / 'records'}"}
        (folder / "records").mkdir()
        run_step(jobs["sweep"], "Sweep", folder, store)
        run_step(jobs["sweep"], "Check", folder, {**store, "DEJAVU_CACHE_MODE": "strict"})
        # A job asks GitHub for its identity token with a token of its own.
        job = {"SERVER": server, "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "x"}
        given = folder / "identity.json"
        job["ACTIONS_ID_TOKEN_REQUEST_URL"] = f"{given.as_uri()}?x=1"
        identity = issuer.token(aud=server, ref="refs/pull/7/merge", run_id="70")
        given.write_text(json.dumps({"value": identity}))
        run_step(jobs["push"], "Push", folder, {**job, "NAMESPACE": "pr-7-70"})
        headers = {"Authorization": f"Bearer {token}"}
        seen = httpx.get(f"{server}/v1/pr-7-70/contexts", headers=headers).json()["contexts"]
        assert seen, "nothing was pushed"
        identity = issuer.token(aud=server, ref="refs/heads/main", event_name="push")
        given.write_text(json.dumps({"value": identity}))
        run_step(jobs["promote"], "Promote", folder, {**job, "NUMBER": "7", "RUN": "70"})
        assert httpx.get(f"{server}/v1/main/contexts", headers=headers).json()["contexts"] == seen
    return "sweep, check, push and promote run; the check benchmarks nothing"


CHECK = """
import torch
from matmul import matmul, matmul_kernel
a = torch.randn(16, 64, dtype=torch.float16)
matmul(a, torch.randn(64, 64, dtype=torch.float16))
assert matmul_kernel.benchmarked == 0
"""


def run_step(job: dict[str, Any], name: str, folder: Path, settings: dict[str, str]) -> None:
    """Run a step of a job, on the example's suite in place of the reader's own."""
    (script,) = (step["run"] for step in job["steps"] if step.get("name") == name)
    script = script.replace("shop.suites --budget 20m", "sweep_matmul --option preset=small")
    script = script.replace("-m shop.smoke_test", "check.py")
    environ = {**os.environ, **settings, "TRITON_INTERPRET": "1", "HOME": str(folder)}
    environ["PYTHONPATH"] = f"{folder}:{os.environ.get('PYTHONPATH', '')}"
    environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, (name, done.stdout, done.stderr)


def import_records(base: str, token: str) -> None:
    """Send a few real records."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/x-ndjson"}
    content = RECORDS.read_bytes()
    url = f"{base}/v1/main/import"
    httpx.post(url, content=content, headers=headers, verify=False).raise_for_status()


def look_up_record(base: str, token: str) -> None:
    """Ask for one of the records that were sent."""
    sent = RecordSet.model_validate_json(RECORDS.read_text().splitlines()[0])
    path = f"contexts/{sent.context.digest}/records/{sent.records[0].scenario.digest}"
    headers = {"Authorization": f"Bearer {token}"}
    httpx.get(f"{base}/v1/main/{path}", headers=headers).raise_for_status()


@contextmanager
def servers(
    folder: Path, count: int, settings: dict[str, str] | None = None, ports: Sequence[int] = ()
) -> Iterator[tuple[list[int], str]]:
    """Run replicas on one SQLite file; `stop-N` in the folder stops one of them."""
    database = f"sqlite:///{folder / 'server.sqlite3'}"
    environ = {**os.environ, "DEJAVU_SERVER_DATABASE": database, "DEJAVU_SERVER_DRAIN": "1"}
    environ |= {"DEJAVU_SERVER_TRUSTED_PROXIES": "127.0.0.1", "DEJAVU_SERVER_LOG_LEVEL": "debug"}
    environ |= settings or {}
    service = [sys.executable, "-m", "dejavu_service"]
    subprocess.run([*service, "db", "upgrade"], env=environ, check=True, capture_output=True)
    create = [*service, "token", "create", "--role", "admin", "--name", "kit"]
    made = subprocess.run(create, env=environ, check=True, capture_output=True, text=True).stdout
    token = next(word for word in made.split() if word.startswith("dejavu_"))
    ports = list(ports) or [free_port() for _ in range(count)]
    processes = []
    try:
        for number, port in enumerate(ports):
            log = (folder / f"server-{number}").open("w")
            watcher = [sys.executable, "-c", STOPPABLE, str(folder / f"stop-{number}")]
            command = [*watcher, *service, "serve", "--port", str(port)]
            processes.append(subprocess.Popen(command, env=environ, stderr=log, stdout=log))
        for port in ports:
            wait_for(f"http://127.0.0.1:{port}/readyz")
        yield ports, token
    finally:
        for number, process in enumerate(processes):
            (folder / f"stop-{number}").touch()
            process.wait(30)


STOPPABLE = """
import pathlib, subprocess, sys, time
flag, process = pathlib.Path(sys.argv[1]), subprocess.Popen(sys.argv[2:])
while not flag.exists() and process.poll() is None:
    time.sleep(0.02)
process.terminate()
process.wait()
"""


@contextmanager
def running(program: str, *arguments: str, ready: str) -> Iterator[None]:
    """Run a program until the block ends, once a URL answers."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([find(program), *arguments], stdout=log, stderr=log)
        try:
            wait_for(ready, lambda: process.poll() is None)
            yield
        except BaseException:
            log.seek(0)
            print(log.read()[-3000:].decode())
            raise
        finally:
            process.terminate()
            process.wait(30)


def wait_for(url: str, is_alive: Callable[[], bool] = lambda: True) -> None:
    """Wait until a URL answers with 200."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert is_alive(), f"the program behind {url} ended"
        with suppress(httpx.TransportError):
            if httpx.get(url, verify=False).status_code == 200:
                return
        time.sleep(0.1)
    raise TimeoutError(url)


def make_certificate(folder: Path) -> None:
    """Make a certificate that nobody has signed."""
    names = ["-subj", "/CN=127.0.0.1", "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"]
    curve = ["-pkeyopt", "ec_paramgen_curve:prime256v1"]
    execute("openssl", "req", "-x509", "-newkey", "ec", *curve, "-nodes", "-days", "1", *names)


def execute(program: str, *arguments: str | Path) -> None:
    """Run a program to its end, which must be a success."""
    command = [find(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def find(program: str) -> str:
    """Return a program's path, also of those that only root has on the PATH."""
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
    assert path, f"there is no {program}: the first lines of tools/check_kit.py name the packages"
    return path


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


CHECKS = (
    check_rules,
    check_images,
    check_dashboard,
    check_nginx,
    check_container,
    check_caddy,
    check_workflow,
)

if __name__ == "__main__":
    main()
