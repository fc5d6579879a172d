"""Compile a random config and shape of each attention kernel for every target; print failures."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dejavu_cache.attention import schedule
from dejavu_cache.attention.kernels import few_sequences, segmented, write_cache
from dejavu_cache.attention.kernels.hopper import registers_per_thread, tiles_of
from dejavu_cache.attention.kernels.schedule_kernel import schedule_kernel
from dejavu_cache.attention.search_space import why_not
from dejavu_cache.attention.sweep_suite import KERNELS
from dejavu_cache.triton_internals.versions import COVERED

TARGETS = {
    "cuda:80": GPUTarget("cuda", 80, 32),
    "cuda:90": GPUTarget("cuda", 90, 32),
    "cuda:100": GPUTarget("cuda", 100, 32),
    "gfx90a": GPUTarget("hip", "gfx90a", 64),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED = {
    "cuda:80": 166912,
    "cuda:90": 232448,
    "cuda:100": 232448,
    "gfx90a": 65536,
    "gfx942": 65536,
}
"""Bytes that a program may have, as the drivers say."""

PLAIN = {
    "KV_HEADS": 8, "GROUP": 4, "HEADS": 32, "HEAD": 128, "HEAD_PADDED": 128, "PAGE": 16,
    "WINDOW": -1, "PAIRS": 1, "HALVES": 2, "BOX": 16, "OVERLAP": True, "CAST": False,
    "SOFTCAP": False, "PRECISION": "ieee", "MAX_SEQS": 16, "MOST_ROWS": 128,
    "alibi_slopes": None, "sinks": None, "k_scale": None, "v_scale": None,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "everything": {
        **{name: value for name, value in PLAIN.items() if value is not None},
        "GROUP": 5, "HEADS": 40, "HEAD": 80, "PAGE": 24, "WINDOW": 100, "SOFTCAP": True,
    },
}  # fmt: skip
"""Llama 3 8B's; and one with all that a call may have, odd heads and pages, and a float8 cache."""

READING = {
    **PLAIN,
    **dict.fromkeys(("k_cache", "v_cache", "new_keys", "new_values", "new_slots")),
    **dict.fromkeys(("stride_slot", "stride_new", "stride_new_head")),
}
"""A step that reads the cache, and does not write new tokens."""

HOPPER_SHAPES: dict[str, dict[str, Any]] = {
    "heads of 96": {**READING, "HEAD": 96, "PAIRS": 2},
    "decoding in two halves that writes": {**PLAIN, "PAIRS": 0},
    "decoding with heads of 256": {
        **PLAIN, "PAIRS": 0, "HALVES": 1, "KV_HEADS": 1, "GROUP": 8, "HEAD": 256,
        "HEAD_PADDED": 256,
    },
    "heads of 64 in float8": {
        **READING, "CAST": True, "PAIRS": 0, "HALVES": 1, "HEAD": 64, "HEAD_PADDED": 64,
    },
}  # fmt: skip
"""Shapes that have most of the code which the Hopper kernel has for some shapes alone."""

POINTERS = {
    **dict.fromkeys(("q", "k_cache", "v_cache", "new_keys", "new_values", "out"), "*bf16"),
    **dict.fromkeys(
        ("cu_seqlens_q", "seqused_k", "block_table", "arrivals", "counters", "units"), "*i32"
    ),
    **dict.fromkeys(("scratch", "alibi_slopes", "sinks", "k_scale", "v_scale"), "*fp32"),
    "softmax_scale": "fp32",
    "softcap": "fp32",
    "slots": "fp32",
    "new_slots": "*i64",
}
RUNTIME = ("per_sm",)
"""Parameters of configs that do not change the binary."""


def source(name: str, shape: str, params: dict[str, Any]) -> Any:
    """Return the source that Triton compiles for a launch of the kernel."""
    helpers: dict[str, Any] = {
        "merge": segmented.merge_kernel,
        "schedule": schedule_kernel,
        "few_sequences": few_sequences.few_sequences_kernel,
        "write_cache": write_cache.write_cache_kernel,
    }
    if name == "hopper":
        from dejavu_cache.attention.kernels.hopper_kernel import hopper_kernel

        helpers["hopper"] = hopper_kernel.fn
    fn = helpers[name] if name in helpers else KERNELS[name].fn
    shapes = HOPPER_SHAPES if name == "hopper" else SHAPES
    constants = {
        argument: value
        for argument, value in {**shapes[shape], **params}.items()
        if argument in fn.arg_names and argument not in RUNTIME
    }
    types = dict(POINTERS)
    if name == "hopper":
        types.update(dict.fromkeys(("keys", "values"), tma(shapes[shape])))
        if shapes[shape]["CAST"]:
            constants.pop("k_scale")
            constants.pop("v_scale")
    if shape == "everything":
        types.update(dict.fromkeys(("k_cache", "v_cache", "new_keys", "new_values"), "*fp8e5"))
    signature = {
        argument: "constexpr" if argument in constants else types.get(argument, "i32")
        for argument in fn.arg_names
    }
    attrs = {
        (index,): [["tt.divisibility", 16]]
        for index, argument in enumerate(fn.arg_names)
        if signature[argument].startswith("*")
        or (argument.startswith("stride") and argument != "stride_table")
    }
    form: Any = ASTSource
    if name == "hopper":
        from triton.experimental.gluon._runtime import GluonASTSource

        form = GluonASTSource
    return form(fn, signature, constexprs=constants, attrs=attrs)


def tma(shape: dict[str, Any]) -> str:
    """Return the type of a tensor descriptor of pages of 16 tokens."""
    from triton.experimental.gluon import language as gl

    if not shape["CAST"]:
        return f"tensordesc<bf16[16, 64],{gl.NVMMASharedLayout(128, 16, 2)!r}>"
    width = min(shape["HEAD_PADDED"], 128)
    return f"tensordesc<fp8e4nv[16, {width}],{gl.NVMMASharedLayout(width, 8, 2)!r}>"


def configs(name: str, target: str, shape: str) -> list[Any]:
    """Return the kernel's configs that the rules allow, each binary once."""
    if name == "merge":
        return [triton.Config({"SLOTS": 1 << power}) for power in range(8)]
    if name == "few_sequences":
        sizes = {"BLOCK_M": few_sequences.ROWS, "TILE": few_sequences.TILES["TILE"]}
        return [triton.Config(sizes, **few_sequences.OPTIONS)]
    if name == "write_cache":
        return [triton.Config({"ROWS": write_cache.ROWS})]
    if name == "schedule":
        lists = {
            "HALF": schedule.HALF, "ENTRY": schedule.ENTRY, "HEADER": schedule.HEADER,
            "BINS": schedule.BINS, "MERGE": schedule.MERGE, "FEW": schedule.FEW_PARTS,
            "FEW_ROWS": schedule.ROWS_OF_FEW, "MANY_ROWS": schedule.ROWS_OF_MANY,
            "LAST_PARTS": 0, "LAST_ROWS": schedule.ROWS_OF_LAST,
            "CHUNK": 512, "CANDIDATES": 32, "SIZES": 8, "HEADS": 2, "PARTS": 1,
            "SPAN": schedule.SPANS[True],
        }  # fmt: skip
        return [triton.Config(lists, num_warps=32)] if target == "cuda:90" else []
    if name == "hopper":
        form = HOPPER_SHAPES[shape]
        tile, stages = tiles_of(form["PAIRS"], form["HALVES"], form["HEAD_PADDED"], form["CAST"])
        registers = registers_per_thread(form["HALVES"], form["CAST"])
        config = triton.Config({"TILE": tile, "STAGES": stages}, maxnreg=registers)
        return [config] if target == "cuda:90" else []
    declared = KERNELS[name].configs
    declared = (
        declared.for_vendor(TARGETS[target].backend)
        if hasattr(declared, "for_vendor")
        else declared
    )
    capability = TARGETS[target].arch if TARGETS[target].backend == "cuda" else 0
    able = []
    for config in declared:
        reason: str | None = None
        if name != "naive":
            reason = why_not(config, 128, 4, 2, capability)
            if name == "static_grid" and config.kwargs["BLOCK_M"] > PLAIN["MOST_ROWS"]:
                reason = "no scratch memory"
        if reason is None:
            able.append(config)
    return list(
        {str({**config.all_kwargs(), **dict.fromkeys(RUNTIME)}): config for config in able}.values()
    )


def jobs(target: str) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    names = ["naive", "qblock", "segmented", "merge", "few_sequences", "write_cache", "static_grid"]
    for name in [*names, *(("hopper", "schedule") if COVERED else ())]:
        pick = random.Random(f"{target} {name}")
        shapes = [*HOPPER_SHAPES] if name == "hopper" else [pick.choice([*SHAPES])]
        for shape in ["plain"] if name == "schedule" else shapes:
            if able := configs(name, target, shape):
                yield name, target, shape, pick.choice(able).all_kwargs()


def failure(job: tuple[str, str, str, dict[str, Any]]) -> str | None:
    """Compiles; says what went wrong."""
    name, target, shape, meta = job
    options = {
        argument: meta.pop(argument)
        for argument in list(meta)
        if argument.islower() and argument not in RUNTIME
    }
    options = {argument: value for argument, value in options.items() if value is not None}
    launch = f"{name}, {shape}, for {target}, {meta} {options}"
    try:
        compiled = triton.compile(
            source(name, shape, meta), target=TARGETS[target], options=options
        )
    except Exception as error:
        return f"{launch}: {type(error).__name__}: {str(error)[:300]}"
    if compiled.metadata.shared > SHARED[target]:
        return f"{launch}: {compiled.metadata.shared} bytes of shared memory"
    return None


def main() -> int:
    listed = failures = 0
    for target in TARGETS:
        # A process of its own: Triton remembers how the first target of one converts float8.
        with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
            mine = list(jobs(target))
            listed += len(mine)
            for failed in filter(None, pool.map(failure, mine)):
                failures += 1
                print(failed, flush=True)
    print(f"{listed - failures} of {listed} compile")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
