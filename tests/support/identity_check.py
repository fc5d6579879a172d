"""Launch edited kernels with the records of the unedited ones, and compare what Triton compiles."""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from support.compiling_gpu import code_of, pretend_gpu, without_timing
from support.identity_corpus import CORPUS, CorpusKernel
from support.identity_edits import Edit, harmful_edits, harmless_edits
from support.kernels import load_file

BATCH = 60
"""Edits that one process launches, so that it starts rarely and keeps little of the others."""


@dataclass
class Outcome:
    """What became of launches that met the record of other code, arguments or settings.

    Attributes:
        counts: their number by kind and by what became of them: `refused` ones, which Triton does
            not compile either, and `reused` ones, which the record answered.
        cases: launches to look at, by what became of them. The record was taken although the code
            differs by `wrong` ones, which must be none, and by `noticed` ones, of which the next
            launch no longer took it. `costly` and `needless` ones were tuned although the code is
            the same; only of `costly` ones this could be known.
    """

    counts: Counter[str] = field(default_factory=Counter)
    cases: defaultdict[str, list[str]] = field(default_factory=partial(defaultdict, list))

    @classmethod
    def sum(cls, outcomes: Iterable[Outcome]) -> Outcome:
        """Return what became of the launches of all processes."""
        total = cls()
        for outcome in outcomes:
            total.counts += outcome.counts
            for what, cases in outcome.cases.items():
                total.cases[what] += cases
        return total

    def summary(self) -> dict[str, Any]:
        """Return all of it, to be written as JSON."""
        cases = {what: sorted(set(cases)) for what, cases in sorted(self.cases.items()) if cases}
        return {
            "refused": 0,
            "reused": 0,
            **dict(sorted(self.counts.items())),
            "wrong": [],
            **cases,
        }


class Launch(NamedTuple):
    """What a launch did.

    Attributes:
        benchmarked: the number of configs that it measured.
        code: the machine code that ran.
        kernel: the autotuner.
    """

    benchmarked: int
    code: str
    kernel: Any


def edits_of(kernel: CorpusKernel, seed: int) -> Iterator[Edit]:
    """Yield the edits of one kernel, different ones for each seed."""
    for edit in harmless_edits(kernel.source, seed):
        yield edit._replace(kind=f"harmless: {edit.kind}")
    for edit in harmful_edits(kernel.source, seed):
        yield edit._replace(kind=f"harmful: {edit.kind}")


def check_edits(
    edits: Iterable[tuple[str, Edit]], target: str, pool: ProcessPoolExecutor
) -> Outcome:
    """Launch edited kernels with the records of the unedited ones, as new processes would."""
    batches = list(edits)
    parts = [batches[at : at + BATCH] for at in range(0, len(batches), BATCH)]
    return Outcome.sum(pool.map(_check_batch, parts, [target] * len(parts)))


def quiet_processes(count: int) -> ProcessPoolExecutor:
    """Return a pool of new processes that print no errors; one is forked before any thread is."""
    method = get_context("spawn" if count > 1 else "fork")
    return ProcessPoolExecutor(count, mp_context=method, initializer=_be_quiet)


def _be_quiet() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def prepare_process(folder: Path, target: str) -> None:
    """Have this process compile for a target, and keep its caches in a folder."""
    os.environ.update(
        DEJAVU_CACHE_SHIPPED="0",
        TRITON_CACHE_DIR=str(folder / "triton"),
        TRITON_ALWAYS_COMPILE="1",
        TRITON_DISABLE_LINE_INFO="1",
        XDG_CACHE_HOME=str(folder / "cache"),
    )
    pretend_gpu(target)
    import support.quicker_triton  # noqa: F401  # before it forks


def import_anew(path: Path, text: str) -> Any:
    """Write a module's text to a file, and import it as a new process would."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    linecache.clearcache()
    module = sys.modules["kernels"] = load_file(path, "kernels")
    return module


def copy_store(store: Path, copy: Path) -> None:
    """Copy a store of files, if there is one, to which other threads may still write."""
    if store.exists():
        shutil.copytree(store, copy, ignore=shutil.ignore_patterns("*.tmp-*", ".locks"))


def in_fork(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a forked process; return what JSON makes of its result, None for none."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.dup2(2, 1)
            answer = json.dumps(call(*arguments))
            with os.fdopen(writing, "w") as pipe:
                pipe.write(answer)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return json.loads(answer) if answer else None


def _check_batch(edits: list[tuple[str, Edit]], target: str) -> Outcome:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        prepare_process(folder, target)
        outcome = Outcome()
        for corpus_name in {name for name, _ in edits if target in CORPUS[name].targets}:
            kernel = CORPUS[corpus_name]
            before = Path(folder / "stores" / corpus_name)
            tuned = launch(folder / "before" / corpus_name / "kernels.py", kernel, before)
            for number, (name, edit) in enumerate(edits):
                if name == corpus_name:
                    path = folder / str(number)
                    _check_edit(outcome, path, name, edit, before, tuned.code, target)
                    shutil.rmtree(path, ignore_errors=True)
                    shutil.rmtree(folder / "triton", ignore_errors=True)
        return outcome


def _check_edit(
    outcome: Outcome, folder: Path, name: str, edit: Edit, store: Path, code: str, target: str
) -> None:
    outcome.counts[edit.kind] += 1
    copy_store(store, folder / "store")
    kernel = CORPUS[name]._replace(source=edit.text)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            after = launch(folder / edit.file, kernel, folder / "store")
    except Exception:  # an edit may well be nonsense
        outcome.counts["refused"] += 1
        return
    about = f"{name}: {edit.kind} for {target}"
    if not after.benchmarked:
        outcome.counts["reused"] += 1
        if after.code != code:
            again = launch(folder / edit.file, kernel, folder / "store")
            noted = outcome.cases["noticed" if again.benchmarked else "wrong"]
            noted.append(f"{about}\n{edit.text}")
    elif edit.kind.startswith("harmless"):
        outcome.cases["costly"].append(f"{about}\n{edit.text}")
    elif after.code == code:
        outcome.cases["needless"].append(about)


def launch(path: Path, kernel: CorpusKernel, store: Path) -> Launch:
    """Launch a kernel once, as a new process would."""
    import torch
    import triton

    from dejavu_cache import cached_autotune

    module = import_anew(path, kernel.source)
    hook = getattr(module, "hook", None)
    tuned = cached_autotune(
        configs=[triton.Config(kernel.config, num_stages=n, pre_hook=hook) for n in (2, 3)],
        key=[], store=store, do_bench=without_timing, check=False, tune_configs=1,
    )(module.k)  # fmt: skip
    x = getattr(module, "wrap", torch.clone)(y := torch.zeros(1 << 16))
    arguments = (x, y) if kernel.n is None else (x, y, kernel.n)
    compiled = tuned[(4,)](*arguments)
    return Launch(tuned.benchmarked, code_of(compiled), tuned)
