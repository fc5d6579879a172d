"""Edit the attention kernels in a copy of the package, and launch them with the records before."""

from __future__ import annotations

import ast
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from support.checkout import ROOT, environment
from support.identity_check import copy_store
from support.identity_edits import Edit, harmful_edits, harmless_edits

FILES = ("naive", "qblock", "segmented", "softmax_tiles", "static_grid")
"""Modules of kernels and of the functions that they call."""

_TOP = ("another file", "imports in another order", "lines above")
"""Edits that do not fit into a module of a package, which begins with `__future__`."""


class _Edited(NamedTuple):
    kind: str
    texts: dict[str, str]


def check_attention(harmless: int, harmful: int, seed: int, jobs: int) -> dict[str, Any]:
    """Return what became of edits of the attention kernels, each in a process of its own.

    Args:
        harmless: how many times every file gets a harmless edit.
        harmful: how many edits may change the code of one file.
        seed: of the edits.
        jobs: processes at a time.
    """
    chance = random.Random(seed)
    edits = [*_harmless(harmless, chance), *_harmful(harmful, chance)]
    found: dict[str, Any] = {"launched": 0, "reused": 0, "refused": 0, "wrong": [], "costly": []}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        before = _launch(folder, _Edited("none", {}), None)
        tasks = [(folder / str(number), edit) for number, edit in enumerate(edits)]
        with ThreadPoolExecutor(jobs) as pool:
            launched = pool.map(lambda task: _launch(task[0], task[1], folder / "store"), tasks)
            for edit, after in zip(edits, launched, strict=True):
                _compare(found, edit, before, after)
    return {"kernels": sorted(before), **found}


def _compare(
    found: dict[str, Any], edit: _Edited, before: dict[str, Any], after: dict[str, Any]
) -> None:
    for kernel, outcome in after.items():
        if isinstance(outcome, str) or isinstance(before[kernel], str):
            found["refused"] += 1
            continue
        (benchmarked, code), (tuned, known) = outcome, before[kernel]
        found["launched"] += 1
        found["reused"] += not benchmarked
        about = f"{kernel}: {edit.kind}"
        if tuned and not benchmarked and not set(code) <= set(known):
            found["wrong"].append(about)
        elif benchmarked and edit.kind.startswith("harmless"):
            found["costly"].append(about)


def _harmless(count: int, chance: random.Random) -> Iterator[_Edited]:
    for _ in range(count):
        texts, kinds = {}, []
        for file in FILES:
            source = _read(file)
            edits = [one for one in harmless_edits(source, chance.randint(0, 99))
                     if one.kind not in _TOP and _parses(one)]  # fmt: skip
            edit = chance.choice(edits)
            texts[file] = edit.text
            kinds.append(edit.kind)
        yield _Edited(f"harmless: {', '.join(kinds)}", texts)


def _harmful(count: int, chance: random.Random) -> Iterator[_Edited]:
    for _ in range(count):
        file = chance.choice(FILES)
        source = _read(file)
        edits = [edit for edit in harmful_edits(source, chance.randint(0, 99))
                 if _jitted(edit.text) != _jitted(source)]  # fmt: skip
        edit = chance.choice(edits)
        yield _Edited(f"harmful: {edit.kind} of {file}", {file: edit.text})


def _jitted(text: str) -> list[str]:
    """Return what a module says of kernels, without the functions that launch them."""
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return [
        ast.dump(node)
        for node in functions
        if any("jit" in ast.dump(d) for d in node.decorator_list)
    ]


def _parses(edit: Edit) -> bool:
    try:
        ast.parse(edit.text)
    except SyntaxError:
        return False
    return True


def _read(file: str) -> str:
    return (ROOT / "dejavu_cache" / "attention" / "kernels" / f"{file}.py").read_text()


def _launch(folder: Path, edit: _Edited, records: Path | None) -> dict[str, Any]:
    """Run the program with an edited copy of the package; return what it prints."""
    shutil.copytree(
        ROOT / "dejavu_cache", folder / "dejavu_cache",
        ignore=shutil.ignore_patterns("records", "__pycache__"),
    )  # fmt: skip
    for file, text in edit.texts.items():
        (folder / "dejavu_cache" / "attention" / "kernels" / f"{file}.py").write_text(text)
    if records is not None:
        copy_store(records, folder / "store")
    env = environment(TRITON_INTERPRET="", PYTHONDONTWRITEBYTECODE="1")
    env["PYTHONPATH"] = f"{folder}:{ROOT / 'tests'}:{env.get('PYTHONPATH', '')}"
    program = Path(__file__).with_name("attend_on_pretended_gpu.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), str(folder / "store")],
        env=env, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    shutil.rmtree(folder / "dejavu_cache")
    if done.returncode and not edit.kind.startswith("harmful"):
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout) if not done.returncode else {"none": done.stderr[-300:]}
