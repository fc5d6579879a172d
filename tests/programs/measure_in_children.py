"""Put records into a server's store from child processes of every kind.

Arguments: the server's URL, the folder of the spools, and the kind of child.
"""

import multiprocessing
import os
import sys
from functools import cache
from pathlib import Path

from dejavu_client.http.protocol_client import ProtocolClient, split_server_url
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.sender import Spool
from support.records import context, record


@cache
def store() -> RemoteStore:
    url, namespace = split_server_url(sys.argv[1], "main")
    spool = Spool(sys.argv[1], Path(sys.argv[2]))
    return RemoteStore(ProtocolClient(url, namespace=namespace), wait=5, spool=spool)


def measure(number: int) -> None:
    store().put(context(), [record(number)])


def main(kind: str) -> None:
    measure(0)
    if kind == "os.fork":
        for number in (1, 2, 3):
            child = os.fork()
            if not child:
                measure(number)
                os._exit(0)  # as the worker of a pre-fork server may
            os.waitpid(child, 0)
    elif kind.startswith("pool "):
        with multiprocessing.get_context(kind[5:]).Pool(2) as pool:
            pool.map(measure, (1, 2, 3))
            pool.close()
            pool.join()
    else:
        multiprocessing.set_start_method(kind)
        processes = [
            multiprocessing.Process(target=measure, args=(number,)) for number in (1, 2, 3)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0, 0, 0]


if __name__ == "__main__":
    main(sys.argv[3])
