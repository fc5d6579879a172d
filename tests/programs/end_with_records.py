"""Put records into a server's store, maybe read, and end in the way that the arguments name.

Arguments: the server's URL, the folder of the spools, the number of the first record, how many, the
way to end, and seconds to sleep before. A token comes from the environment.
"""

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from dejavu_client.http.errors import RemoteError
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.sender import Spool
from support.records import context, record

EXIT_CODES = {"return": 0, "exit": 7, "raise": 1, "terminate": -15, "kill": -9, "at once": 3}
"""Ways to end, with the exit code that a program without this library would have."""


def main() -> None:
    url, folder, first, count, way, pause = sys.argv[1:]
    client = ProtocolClient(url, token=os.environ.get("TOKEN", ""))
    store = RemoteStore(client, wait=0.25, spool=Spool(url, Path(folder)))
    for number in range(int(first), int(first) + int(count)):
        store.put(context(), [record(number)])
    with suppress(RemoteError):
        store.get(context(), record(int(first)).scenario)
    # A thread of the program's own, which is in the library when the program ends.
    threading.Thread(target=put_for_ever, args=(store,), daemon=True).start()
    time.sleep(float(pause))
    print(time.time(), flush=True)
    if way == "exit":
        sys.exit(EXIT_CODES[way])
    if way == "raise":
        raise RuntimeError("the program's own error")
    if way == "at once":
        os._exit(EXIT_CODES[way])
    if way != "return":
        os.kill(os.getpid(), signal.SIGTERM if way == "terminate" else signal.SIGKILL)


def put_for_ever(store: RemoteStore) -> None:
    # Made beforehand: pydantic's code, in a daemon thread of the program's own, would end it.
    other, records = context(kernel="other.kernel"), [record(1)]
    while True:
        store.put(other, records)
        time.sleep(0.01)


if __name__ == "__main__":
    main()
