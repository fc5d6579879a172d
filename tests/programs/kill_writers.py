"""Kill 200 writers of a store at random; print what they acknowledged, and what the store has."""

from __future__ import annotations

import os
import random
import signal
import sys
import time

from support.records import context, record

from dejavu_cache.stores import FileStore


def write(start, acknowledge):
    store = FileStore(sys.argv[1])
    for m in range(start, start + 1000):
        store.put(context(), [record(m)])
        os.write(acknowledge, f"{m} ".encode())


for repetition in range(200):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        write(1000 * (repetition + 1), writing)
    os.close(writing)
    acknowledged = b""
    # Wait for its progress and not by the clock: on a busy machine it would get nowhere.
    for _ in range(random.randint(0, 2)):
        acknowledged += os.read(reading, 1 << 20)
    time.sleep(random.uniform(0, 0.005))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    acknowledged += os.read(reading, 1 << 20)
    os.close(reading)
    stored = FileStore(sys.argv[1]).records(context()) if repetition % 20 == 19 else ()
    present = " ".join(str(entry.scenario.args["M"]) for entry in stored)
    print(acknowledged.decode(), "|", present, flush=True)
