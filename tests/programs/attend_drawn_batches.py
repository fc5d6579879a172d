"""Compute drawn batches by one implementation on a GPU, and check each result.

attend_drawn_batches.py IMPLEMENTATION BATCHES
"""

import random
import sys

from support.attention_batches import check, drawn_case, runnable

from dejavu_cache.attention.sweep_suite import KERNELS

implementation, batches = sys.argv[1], int(sys.argv[2])
kernel = KERNELS.get(implementation)  # others have one config
declared = kernel.configs if kernel else ()
for seed in range(batches):
    case = drawn_case(1000 + seed, implementation)
    if kernel:
        kernel.configs = declared  # `runnable` chooses from them
        kernel.configs = [random.Random(seed).choice(runnable(implementation, case))]
    check(case, implementation)
print(f"{batches} batches by {implementation}")
