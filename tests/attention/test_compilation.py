"""The attention kernels compile for every target without a GPU, each with a random config."""

import re
import sys
from pathlib import Path

from support.processes import PROGRAMS, environment, run_command


def test_configs_compile_for_every_target(tmp_path: Path) -> None:
    script = (sys.executable, PROGRAMS / "compile_attention.py")
    env = environment(TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    done = run_command(*script, env=env, timeout=580, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"(\d+) of \1 compile\n", done.stdout)
