"""Fork a process for each task on the standard input, after Torch and others were imported.

A task is a line of JSON: the code, arguments, environment and output files of a child, or the id
of a child to wait for. The answer is the child's id, or its exit code.
"""

from __future__ import annotations

import gc
import json
import os
import sys

import filelock  # noqa: F401
import httpx  # noqa: F401
import pydantic  # noqa: F401
import sklearn.tree  # noqa: F401
import stamina  # noqa: F401
import torch  # noqa: F401
import triton  # noqa: F401

gc.freeze()  # else the children's collections copy its memory

for line in sys.stdin:
    task = json.loads(line)
    if "wait" in task:
        print(os.waitstatus_to_exitcode(os.waitpid(task["wait"], 0)[1]), flush=True)
    elif pid := os.fork():
        print(pid, flush=True)
    else:
        break
else:
    sys.exit()
# From here on this is a child, which ends as every program does.
for number, path in enumerate((os.devnull, task["out"], task["err"])):
    mode = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
    os.dup2(os.open(path, mode, 0o644), number)
os.environ.clear()
os.environ.update(task["env"])
sys.argv = ["-c", *task["arguments"]]
exec(compile(task["code"], "<program>", "exec"), {"__name__": "__main__"})
