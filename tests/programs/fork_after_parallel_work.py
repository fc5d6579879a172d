"""Tune in a forked child after torch has computed with threads, which the child has lost."""

from __future__ import annotations

import os
import signal

import torch
from support.addition import make

kernel = make(store="memory://")
torch.set_num_threads(2)
torch.ones(1 << 22).sum()
child = os.fork()
if not child:
    signal.alarm(60)
    y = torch.zeros(100)
    kernel[(7,)](torch.ones(100), y, 100)
    os._exit(0 if bool((y == 2).all()) else 1)
print(os.waitpid(child, 0)[1])
