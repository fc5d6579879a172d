"""A lease on a server outlives its holder by its time only, and wakes who waits for it."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import httpx
from dejavu_client.http.protocol_client import split_server_url
from dejavu_client.http.remote_store import RemoteStore
from support.processes import environment
from support.records import context, record


def wait_until_renewed(url: str) -> None:
    """Wait until the lease of another holder has longer to live than a moment before."""
    base, namespace = split_server_url(url, "main")
    wish = {
        "context": context().model_dump(mode="json"),
        "scenario": record(1).scenario.model_dump(mode="json"),
        "holder": "another",
        "ttl": 1,
    }
    seconds = [math.inf]
    while len(seconds) < 2 or seconds[-1] <= seconds[-2]:
        time.sleep(0.05)
        answer = httpx.post(f"{base}/v1/{namespace}/leases", json=wish).json()
        assert answer["lease"] is None, "it has expired"
        seconds.append(answer["expires_in"])


def start_holder(code: str, namespace_url: str, cache: Path) -> subprocess.Popen[str]:
    """Start a program that takes a lease, and return once it holds it."""
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *split_server_url(namespace_url, "")],
        env=environment(XDG_CACHE_HOME=str(cache)), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout
    assert holder.stdout.readline() == "True\n"
    return holder


def test_a_lease_outlives_its_dead_holder_by_its_time_only(
    namespace_url: str, store: RemoteStore, tmp_path: Path
) -> None:
    code = """
        import sys, time
        from dejavu_client.http.protocol_client import ProtocolClient
        from dejavu_client.http.remote_store import RemoteStore
        from support.records import context, record
        client = ProtocolClient(sys.argv[1], namespace=sys.argv[2])
        store = RemoteStore(client, wait=5, lease_seconds=4)
        with store.lease(context(), record(1).scenario, wait=0) as held:
            print(held, flush=True)
            time.sleep(600)
    """
    holder = start_holder(code, namespace_url, tmp_path)
    wait_until_renewed(namespace_url)
    with store.lease(context(), record(1).scenario, wait=0.1) as granted:
        assert not granted
    holder.kill()
    holder.communicate()
    with store.lease(context(), record(1).scenario, wait=200) as granted:
        assert granted


def test_who_waits_for_a_lease_wakes_when_the_record_is_there(
    namespace_url: str, store: RemoteStore, tmp_path: Path
) -> None:
    code = """
        import sys, time
        from dejavu_client.http.protocol_client import ProtocolClient
        from dejavu_client.http.remote_store import RemoteStore
        from dejavu_cache.model.record import Winner; from dejavu_cache.model.scenario import now
        from support.records import config, context, measurement, record
        store = RemoteStore(ProtocolClient(sys.argv[1], namespace=sys.argv[2]), wait=5)
        with store.lease(context(), record(1).scenario, wait=0) as held:
            print(held, flush=True)
            time.sleep(1)
            store.put(context(), [record(1, winner=Winner(config=config(64), at=now()))])
    """
    holder = start_holder(code, namespace_url, tmp_path)
    with store.lease(context(), record(1).scenario, wait=200) as granted:
        assert granted
        assert store.get(context(), record(1).scenario, fresh=True) is not None
    assert holder.wait(240) == 0
    holder.communicate()
