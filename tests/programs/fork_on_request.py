"""Fork a process for each task on the standard input, after modules were imported.

The arguments are the modules' names. A task is a line of JSON: what a child runs, its arguments,
environment, folder and output files; or the id of a child to ask after. The answer is a line with
the child's id, or with its exit code, empty while it runs.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import sys

for module in sys.argv[1:]:
    importlib.import_module(module)
gc.freeze()  # else the children's collections copy its memory

for line in sys.stdin:
    task = json.loads(line)
    if "poll" in task:
        pid, status = os.waitpid(task["poll"], 0 if task["wait"] else os.WNOHANG)
        print(os.waitstatus_to_exitcode(status) if pid else "", flush=True)
    elif pid := os.fork():
        print(pid, flush=True)
    else:
        break
else:
    sys.exit()
# From here on this is a child, which ends as every program does.
for number, path in enumerate((os.devnull, task["out"], task["err"])):
    mode = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
    opened = os.open(path, mode, 0o644)
    os.dup2(opened, number)
    os.close(opened)
os.environ.clear()
os.environ.update(task["env"])
os.chdir(task["folder"])
if "module" in task:
    sys.path[0] = task["folder"]
    sys.argv = ["-m", *task["arguments"]]
    runpy.run_module(task["module"], run_name="__main__", alter_sys=True)
else:
    sys.argv = ["-c", *task["arguments"]]
    exec(compile(task["code"], "<program>", "exec"), {"__name__": "__main__"})
