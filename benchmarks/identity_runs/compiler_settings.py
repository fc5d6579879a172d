"""Launch a kernel under each of Triton's settings, with the record of a launch under none."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from support.identity_check import Outcome, copy_store, in_fork, launch, prepare_process
from support.identity_corpus import CORPUS

KERNEL = "helpers"
VALUES = ("1", "0", "7", "on", "")
"""Texts that each variable is set to; a knob is set to Python's own True and False."""

_VARIABLES = """
    ALLOW_LHS_TMEM_LAYOUT_CONVERSION AMDGCN_ENABLE_DUMP AMDGCN_USE_BUFFER_ATOMICS
    AMDGCN_USE_BUFFER_OPS DISABLE_LLVM_OPT DISABLE_MMA_V3 DISABLE_MMA_V5 DISABLE_PTXAS_OPT
    LLVM_ENABLE_TIMING LLVM_IR_ENABLE_DUMP LLVM_PASS_PLUGIN_PATH MLIR_DISABLE_MULTITHREADING
    MLIR_DUMP_PATH MLIR_ENABLE_DIAGNOSTICS MLIR_ENABLE_DUMP MLIR_ENABLE_REMARK MLIR_ENABLE_TIMING
    NVPTX_ENABLE_DUMP TRITON_DEBUG TRITON_DEFAULT_FP_FUSION TRITON_DISABLE_RESHAPE_ENCODING
    TRITON_DUMP_MIR TRITON_ENABLE_ASAN TRITON_ENABLE_EXPERIMENTAL_CONSAN TRITON_ENABLE_LLVM_DEBUG
    TRITON_ENABLE_PYTHON_STACKTRACE TRITON_HIP_USE_ASYNC_COPY TRITON_HIP_USE_IN_THREAD_TRANSPOSE
    TRITON_INSTRUMENTATION_MODE TRITON_LLVM_DEBUG_ONLY TRITON_PREFER_TMEM_16x256_LAYOUT
    TRITON_REPRODUCER_PATH
"""
"""Variables that Triton's compiler reads by itself, beside those of its knobs."""


class Case(NamedTuple):
    """A setting: a variable's text, or a knob's value."""

    variables: dict[str, str]
    knob: tuple[str, str, bool] | None = None


def check_settings(
    target: str, pool: ProcessPoolExecutor, sample: int | None = None, seed: int = 0
) -> Outcome:
    """Launch under the knobs and variables of this Triton, each case in a forked process.

    Args:
        target: what to compile for.
        pool: of `quiet_processes`.
        sample: how many cases; None for all.
        seed: of the sample.
    """
    cases = list(_cases())
    cases = random.Random(seed).sample(cases, sample or len(cases))
    return Outcome.sum(pool.map(_check_cases, (cases[::2], cases[1::2]), (target, target)))


def _cases() -> Iterator[Case]:
    from triton import knobs

    variables = set(_VARIABLES.split())
    for group_name, group in sorted(vars(knobs).items()):
        if not isinstance(group, knobs.base_knobs):
            continue
        kind = type(group)
        inherited = {*dir(knobs.base_knobs)}
        for name in sorted({*dir(kind), *vars(group)} - inherited):
            found = (vars(one)[name] for one in kind.__mro__ if name in vars(one))
            descriptor: Any = next(found, None)
            if name.startswith("_") or name == "always_compile" or callable(descriptor):
                continue  # without the last, Triton would answer from its cache
            if hasattr(descriptor, "key"):
                variables.add(descriptor.key)
            for switched in (True, False):
                yield Case({}, (group_name, name, switched))
    for variable in sorted(variables - {"TRITON_ALWAYS_COMPILE"}):
        for value in VALUES:
            yield Case({variable: value})


def _check_cases(cases: list[Case], target: str) -> Outcome:
    import torch  # noqa: F401  # these once, before the forks

    from dejavu_cache import cached_autotune, open_store  # noqa: F401

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        prepare_process(folder, target)
        plain = in_fork(_launch_with, Case({}), folder / "plain", folder / "store")
        outcome = Outcome()
        for number, case in enumerate(cases):
            store = folder / str(number) / "store"
            copy_store(folder / "store", store)
            _note(outcome, case, plain, in_fork(_launch_with, case, store.parent, store), target)
            shutil.rmtree(store.parent, ignore_errors=True)
        return outcome


def _note(
    outcome: Outcome,
    case: Case,
    plain: tuple[int, str],
    found: tuple[int, str] | None,
    target: str,
) -> None:
    knob = case.knob and f"{case.knob[0]}.{case.knob[1]}={case.knob[2]}"
    about = knob or " ".join(f"{name}={value}" for name, value in case.variables.items())
    is_same = found is not None and found[1] == plain[1]
    if found is None:
        outcome.counts["refused"] += 1
    elif found[0]:
        outcome.cases["needless" if is_same else "counted"].append(about)
    else:
        outcome.counts["reused"] += 1
        if not is_same:
            outcome.cases["wrong"].append(f"{about} for {target}")


def _launch_with(case: Case, folder: Path, store: Path) -> tuple[int, str]:
    """Return what a launch benchmarked, and its code; an error is refused to a user too."""
    from triton import knobs

    os.chdir(folder.parent)  # dumps go here
    os.environ.update(case.variables)
    if case.knob:
        group, name, value = case.knob
        setattr(getattr(knobs, group), name, value)
    sys.stdin = None  # a debugger that a setting starts ends at once
    done = launch(folder / "kernels.py", CORPUS[KERNEL], store)
    return done.benchmarked, done.code
