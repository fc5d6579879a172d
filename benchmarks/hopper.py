"""Every config of the Hopper kernel beside FlashAttention 3, where there is more than decoding to do; by GPU time.

FLASH_ATTENTION_3=path/to/library python benchmarks/hopper.py > benchmarks/results/hopper.txt
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
    for each in attention.scenarios():
        if each.name.startswith("decode"):
            continue
        batch = batch_of(each, PRESETS["llama3-8b"], 16, torch.bfloat16)
        theirs = attention.microseconds(batch, "fa3")["microseconds"]
        told = [f"fa3 {theirs:7.1f}"]
        launch = hopper.launch(batch)
        for config in launch.kernel.configs:
            given = config.all_kwargs()
            run = launch.kernel.fn[launch.grid(given)]

            def ours(run=run, launch=launch, given=given) -> None:  # type: ignore[no-untyped-def]
                run(*launch.args, **launch.kwargs, **given)

            taken = 1e3 * triton.testing.do_bench_cudagraph(ours, rep=20, return_mode="median")
            name = f"{given['TILE']}x{given['STAGES']}{'p' if given['PERSISTENT'] else ' '}"
            told.append(f"{name} {taken:7.1f} ({100 * theirs / taken:5.1f}%)")
        print(f"{each.name:27s}", " | ".join(told), flush=True)


if __name__ == "__main__":
    main()
