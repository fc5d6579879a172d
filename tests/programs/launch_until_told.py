"""Launch a kernel again and again, and print how its config was chosen whenever that changes.

Arguments: SOURCE LAUNCHES: the kernel's file, and how many launches to make at most, 0.05 s apart.
The program ends early when its standard input is closed.
"""

import json
import select
import sys
from pathlib import Path

import torch
from support.kernels import launch, load_file

kernel = load_file(Path(sys.argv[1])).add
x = torch.ones(1)
printed = None
for _ in range(int(sys.argv[2])):
    before = kernel.explain(x, x, 100).how
    launch(kernel, 100)
    chosen, block = kernel.explain(x, x, 100), kernel.best_config.kwargs["BLOCK"]
    if before != chosen.how or block != chosen.config.kwargs["BLOCK"]:
        continue  # it changed meanwhile, or this launch changed it
    line = json.dumps({"how": chosen.how, "block": block, "benchmarked": kernel.benchmarked})
    if line != printed:
        print(line, flush=True)
        printed = line
    if select.select([sys.stdin], [], [], 0.05)[0]:
        break
