"""Time what the cache adds to a kernel's first launch and to further ones, compilation aside."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.compiling_gpu import without_timing
from support.identity_check import import_anew, prepare_process
from support.identity_corpus import CORPUS

ROUNDS = 9
HITS = 3000
KERNEL = "helpers"


def measure_looks(target: str) -> dict[str, float]:
    """Return medians of a small kernel's launches, in microseconds of the processor's time.

    `first` is what a first launch takes beyond Triton's with the same binary at hand: under a known
    key, and under an unknown one of the same code. `hit` is each further launch.

    Args:
        target: what to compile for.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        prepare_process(folder, target)
        _keep_compiled()
        source = CORPUS[KERNEL].source
        edited = source.replace("    return v * SCALE", "    # another\n    return v * SCALE")
        store = folder / "store"
        _first_launch(folder / "tuned.py", source, store)
        triton = [_first_launch(folder / f"t{n}.py", source, None) for n in range(ROUNDS)]
        known = [_first_launch(folder / f"k{n}.py", source, store) for n in range(ROUNDS)]
        unknown = [
            _first_launch(folder / f"u{n}.py", edited.replace("another", str(n)), store)
            for n in range(ROUNDS)
        ]
        plain = statistics.median(first for first, _ in triton)
        return {
            "first, Triton": round(plain),
            "first, known key": round(statistics.median(one for one, _ in known) - plain),
            "first, unknown key": round(statistics.median(one for one, _ in unknown) - plain),
            "hit, Triton": round(statistics.median(hit for _, hit in triton), 2),
            "hit": round(statistics.median(hit for _, hit in known), 2),
        }


def _keep_compiled() -> None:
    """Compile what differs only in its source's text once in this process."""
    import triton.compiler

    really, kept = triton.compiler.compile, {}

    def compile_once(src: Any, target: Any = None, options: Any = None, **more: Any) -> Any:
        key = repr((src.signature, src.constants, src.attrs, sorted(options.items(), key=str)))
        if key not in kept:
            kept[key] = really(src, target=target, options=options, **more)
        return kept[key]

    triton.compiler.compile = compile_once


def _first_launch(path: Path, source: str, store: Path | None) -> tuple[float, float]:
    """Return the microseconds of a first launch, and of each further one."""
    import torch
    import triton

    from dejavu_cache import cached_autotune

    kernel: Any = import_anew(path, source).k
    config = triton.Config(CORPUS[KERNEL].config, num_stages=2)
    options: dict[str, Any] = config.all_kwargs()
    if store is not None:
        configs = [config, triton.Config(CORPUS[KERNEL].config, num_stages=3)]
        kernel = cached_autotune(
            configs=configs, key=["n"], store=store, do_bench=without_timing, check=False
        )(kernel)
        options = {}
    x, y = torch.zeros(1 << 16), torch.zeros(1 << 16)

    def launch() -> None:
        kernel[(4,)](x, y, 1001, **options)

    first = _microseconds(launch, 1)
    return first, min(_microseconds(launch, HITS // 3) for _ in range(3))


def _microseconds(call: Callable[[], None], times: int) -> float:
    started = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - started) / times * 1e6
