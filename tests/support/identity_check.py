"""Compare the identity of edited kernels with the code that Triton generates for them."""

from __future__ import annotations

import hashlib
import inspect
import linecache
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dejavu_cache.triton_internals.source_hash import source_hash

from dejavu_cache.errors import UnreadableKernelError
from support.identity_corpus import CORPUS, CorpusKernel
from support.identity_edits import Edit, harmful_edits, harmless_edits
from support.kernels import load_file

__all__ = [
    "TARGETS",
    "Outcome",
    "check_edits",
    "edits_of",
    "load_corpus_kernel",
    "machine_code",
]

TARGETS = (("cuda", 90, 32), ("hip", "gfx942", 64))
"""Targets that every kernel with an equal identity is compiled for."""


@dataclass
class Outcome:
    """What became of some edits.

    Attributes:
        edits: their number by kind; harmless ones begin so.
        refused: edits after which the module cannot be imported.
        compared: compilations of kernels with an equal identity that gave code.
        wrong: edits that kept the identity and changed the code.
        costly: harmless edits that changed the identity.
    """

    edits: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    compared: int = 0
    wrong: list[str] = field(default_factory=list)
    costly: list[str] = field(default_factory=list)


def edits_of(kernel: CorpusKernel, seed: int) -> Iterator[Edit]:
    """Yield the edits of one kernel, different ones for each seed."""
    for edit in harmless_edits(kernel.source, seed):
        yield edit._replace(kind=f"harmless: {edit.kind}")
    for edit in harmful_edits(kernel.source, seed):
        yield edit._replace(kind=f"harmful: {edit.kind}")


def check_edits(edits: Iterable[tuple[str, Edit]], targets: Any = TARGETS) -> Outcome:
    """Compile what has an equal identity, and note where the code differs.

    Args:
        edits: the corpus kernel's name, and an edit of it.
        targets: what to compile for.
    """
    outcome = Outcome()
    known: dict[tuple[str, Any], str] = {}
    original: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, edit) in enumerate(edits):
            kernel = CORPUS[name]
            if name not in original:
                module = _load(Path(folder) / f"{name}.py", kernel.source)
                original[name] = source_hash(module.k)
                for target in targets:
                    known[name, target] = machine_code(module.k, kernel, target)
            outcome.edits[edit.kind] += 1
            try:
                module = _load(Path(folder) / str(number) / edit.file, edit.text)
                identity = source_hash(module.k)
            except UnreadableKernelError:
                identity = "unreadable"
            except Exception:  # an edit may well be nonsense
                outcome.refused += 1
                continue
            if identity != original[name]:
                if edit.kind.startswith("harmless"):
                    outcome.costly.append(f"{name}: {edit.kind}")
                continue
            for target in targets:
                code = machine_code(module.k, kernel, target)
                outcome.compared += "Error" not in code
                if code != known[name, target]:
                    outcome.wrong.append(f"{name}: {edit.kind}: {target}\n{edit.text}")
    return outcome


def machine_code(function: Any, kernel: CorpusKernel, target: Any) -> str:
    """Return a digest of the code that Triton generates, without places in files."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as compile_kernel

    source_type: Any = ASTSource
    if type(function).__name__ == "GluonJITFunction":
        from triton.experimental.gluon._runtime import GluonASTSource

        source_type = GluonASTSource
    signature = {
        name: kernel.signature.get(name, "constexpr")
        for name in inspect.signature(function.fn).parameters
    }
    constants = {(list(signature).index(name),): value for name, value in kernel.constants.items()}
    try:
        compiled = compile_kernel(
            source_type(function, signature, constants), target=GPUTarget(*target)
        )
    except Exception as error:  # both must fail alike
        return f"{type(error).__name__}"
    text = compiled.asm["ptx" if target[0] == "cuda" else "amdgcn"]
    if target[0] == "cuda":
        text = text.partition(".section")[0]
    text = re.sub(r"(?m)^\s*(\.loc|\.file|\.ident|//|;).*$", "", text)
    text = re.sub(r"\n\s*\n", "\n", text)
    return hashlib.sha256(text.encode()).hexdigest()


def load_corpus_kernel(path: Path, text: str) -> Any:
    """Write a module's text to a file, import it, and return its kernel."""
    return _load(path, text).k


def _load(path: Path, text: str) -> Any:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    linecache.clearcache()
    module = load_file(path, "kernels")
    sys.modules["kernels"] = module
    return module
