"""Fork a process for each connection to a socket, after modules were imported for the first one.

The arguments are the number of the listening socket and the modules' names. A client sends one
message: what a process runs, its arguments, environment and folder as JSON, with three files, its
standard streams. The answers are the process's id and, once it has ended, its exit code. This
program ends when its standard input is closed.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from types import ModuleType
from typing import Any
from weakref import proxy

MESSAGE_BYTES = 1 << 20


def serve(listener: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Answer requests, and return in each forked process its task and its standard streams."""
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno())
    clients: dict[int, socket.socket] = {}
    watched: list[Any] = [0, listener, woken]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if 0 in ready:
            sys.exit()
        if woken in ready:
            woken.recv(4096)
            report_exits(clients)
        if listener in ready:
            client, _ = listener.accept()
            message, streams, _, _ = socket.recv_fds(client, MESSAGE_BYTES, 3)
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for inherited in (listener, woken, waker, client, *clients.values()):
                    inherited.detach()  # its number will be another file's
                return json.loads(message), streams
            for stream in streams:
                os.close(stream)
            clients[pid] = client
            answer(client, pid)


def report_exits(clients: dict[int, socket.socket]) -> None:
    """Send the exit code of every process that has ended, negative if a signal ended it."""
    while clients:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with clients.pop(pid) as client:
            answer(client, os.waitstatus_to_exitcode(status))


def answer(client: socket.socket, number: int) -> None:
    with suppress(OSError):  # it does not want to know any more
        client.send(str(number).encode())


listener = socket.socket(fileno=int(sys.argv[1]))
if 0 in select.select([0, listener.fileno()], [], [])[0]:
    sys.exit()  # before anybody asked
for module in sys.argv[2:]:
    with suppress(ModuleNotFoundError):  # a machine with a GPU may lack what servers need
        importlib.import_module(module)
gc.freeze()  # else the children's collections copy its memory
# At a process's end, the modules that it imported itself are cleared, and then libraries would be,
# and the statics of Torch destroyed, in 0.3 s.
imported = [(name, mod) for name, mod in sys.modules.items() if issubclass(type(mod), ModuleType)]
ctypes.pythonapi.Py_IncRef(ctypes.py_object(imported))
atexit.register(sys.modules.update, {name: proxy(mod) for name, mod in imported})
libc = ctypes.CDLL(None)
libc.on_exit(libc._exit, None)
task, streams = serve(listener)

# From here on this is a process of its own, whose modules and threads end as a program's do.
for number, stream in enumerate(streams):
    os.dup2(stream, number)
os.closerange(3, os.sysconf("SC_OPEN_MAX"))
if task["new_session"]:
    os.setsid()
os.environ.clear()
os.environ.update(task["env"])
os.chdir(task["folder"])
more = task["env"].get("PYTHONPATH", "").split(os.pathsep)
sys.path[1:1] = [folder for folder in more if folder and folder not in sys.path]
if "file" in task:
    sys.path[0] = os.path.dirname(task["file"])
    sys.argv = [task["file"], *task["arguments"]]
    runpy.run_path(task["file"], run_name="__main__")
else:
    sys.argv = ["-c", *task["arguments"]]
    exec(compile(task["code"], "<program>", "exec"), {"__name__": "__main__"})
