"""Equal identity implies equal machine code: generated edits, compiled without a GPU."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import triton
from support.identity_check import TARGETS
from support.identity_corpus import CORPUS
from support.processes import environment, run_python
from triton import knobs

ROOT = Path(__file__).resolve().parents[3]


def run(*arguments: str, tmp_path: Path) -> dict[str, Any]:
    """Run the comparison in a process of its own, in which Triton compiles."""
    env = environment(
        TRITON_INTERPRET="",
        TRITON_CACHE_DIR=str(tmp_path),
        TRITON_DISABLE_LINE_INFO="1",
        TRITON_ALWAYS_COMPILE="1",
    )
    env["PYTHONPATH"] = f"{ROOT / 'tests'}:{ROOT}:{env.get('PYTHONPATH', '')}"
    result = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "identity.py"), *arguments],
        env=env, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return json.loads(result.stdout)  # type: ignore[no-any-return]


@pytest.mark.skipif(not hasattr(triton, "constexpr_function"), reason="the kernels need Triton 3.5")
def test_edits_and_settings_that_keep_the_identity_keep_the_code(tmp_path: Path) -> None:
    """A sample, another each time; `make identity` takes thousands."""
    seed = str(random.randrange(1 << 30))
    result = run("--sample", "80", "--settings", "16", "--seed", seed, tmp_path=tmp_path)
    assert result["wrong"] == [], seed
    assert result["compared"], seed
    assert len(result["costly"]) <= 0.02 * result["harmless"], (seed, result["costly"])
    settings = result["settings"]
    assert settings["equal"], seed
    assert settings["wrong"] == [], seed


@pytest.mark.parametrize(
    ("variable", "value"), [("TRITON_DEBUG", "1"), ("TRITON_INSTRUMENTATION_MODE", "consan")]
)
def test_variables_that_triton_reads_when_imported_count(variable: str, value: str) -> None:
    code = """
        import os, sys
        os.environ[sys.argv[1]] = sys.argv[2]
        from dejavu_cache.triton_internals.compiler_settings import compiler_settings
        print(compiler_settings())
    """
    if not hasattr(knobs.compilation, "instrumentation_mode") and variable != "TRITON_DEBUG":
        pytest.skip("this Triton has no instrumentation")
    done = run_python(code, variable, value, TRITON_INTERPRET="")
    assert done.stdout != "{}\n"


def test_the_corpus_covers_every_target() -> None:
    assert len(CORPUS) >= 8
    assert {backend for backend, *_ in TARGETS} == {"cuda", "hip"}
