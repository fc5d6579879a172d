"""GPU time of every config of the Hopper kernel beside FlashAttention 3, in batches with prompts.

FLASH_ATTENTION_3=LIBRARY python benchmarks/hopper.py > benchmarks/results/hopper.txt
"""

from __future__ import annotations

import datetime

import attention
import flash_attention
import torch
import triton

from dejavu_cache.attention.kernels import hopper
from dejavu_cache.attention.sweep_suite import PRESETS, batch_of


def main() -> None:
    flash_attention.available()
    print(
        torch.cuda.get_device_name(),
        "torch",
        torch.__version__,
        "triton",
        triton.__version__,
        datetime.date.today(),
    )
    print("microseconds (share of FlashAttention 3's speed); TILE x STAGES, p where persistent")
    for lengths in attention.scenarios():
        if lengths.name.startswith("decode"):
            continue
        batch = batch_of(lengths, PRESETS["llama3-8b"], 16, torch.bfloat16)
        theirs = attention.microseconds(batch, "fa3")["microseconds"]
        columns = [f"fa3 {theirs:7.1f}"]
        launch = hopper.launch(batch)
        for config in launch.kernel.configs:
            options = config.all_kwargs()
            run = launch.kernel.fn[launch.grid(options)]

            def ours(run=run, launch=launch, options=options) -> None:  # type: ignore[no-untyped-def]
                run(*launch.args, **launch.kwargs, **options)

            median = 1e3 * triton.testing.do_bench_cudagraph(ours, rep=20, return_mode="median")
            name = f"{options['TILE']}x{options['STAGES']}{'p' if options['PERSISTENT'] else ' '}"
            columns.append(f"{name} {median:7.1f} ({100 * theirs / median:5.1f}%)")
        print(f"{lengths.name:27s}", " | ".join(columns), flush=True)


if __name__ == "__main__":
    main()
