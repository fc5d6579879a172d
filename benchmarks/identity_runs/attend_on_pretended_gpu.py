"""Launch each attention kernel once on a pretended GPU; print what was benchmarked and its code.

    attend_on_pretended_gpu.py STORE

The records are those of the store, not the ones that ship with the package. Prints JSON: for each
kernel the number of benchmarked configs and digests of the binaries, or an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from support.checkout import PROGRAMS

os.environ["DEJAVU_CACHE_URL"] = Path(sys.argv[1]).absolute().as_uri()
os.environ["DEJAVU_CACHE_POLICY"] = str(PROGRAMS / "few_configs.toml")

from support.compiling_gpu import code_of, without_timing
from support.identity_check import prepare_process


def main(folder: Path) -> None:
    """Launch the kernels."""
    prepare_process(folder, "cuda:90")
    import torch
    from support.attention_batches import Case, draw

    from dejavu_cache.attention import api
    from dejavu_cache.attention.sweep_suite import KERNELS

    api._check_device = lambda *_: None  # the tensors are on the CPU: nothing is launched
    compiled = _note_compiled()
    case = Case(
        new=[100] * 4, past=[100] * 4, heads=(8, 2), head_size=64, dtype=torch.bfloat16
    )  # fmt: skip
    found: dict[str, Any] = {}
    for name, kernel in KERNELS.items():
        compiled.clear()
        kernel.do_bench = without_timing
        try:
            draw(case).run(name)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error)[-300:]}"
            continue
        own = {code for function, code in compiled if function == kernel.base_fn.__name__}
        found[name] = kernel.benchmarked, sorted(own)
    print(json.dumps(found))


def _note_compiled() -> list[tuple[str, str]]:
    """Return a list that grows by each compiled kernel's name and digest."""
    import triton.compiler

    compile_kernel, noted = triton.compiler.compile, []

    def compile_and_note(*arguments: Any, **options: Any) -> Any:
        kernel = compile_kernel(*arguments, **options)
        digest = hashlib.sha256(code_of(kernel).encode()).hexdigest()[:16]
        noted.append((kernel.metadata.name, digest))
        return kernel

    triton.compiler.compile = compile_and_note
    return noted


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        main(Path(temporary))
