"""The attention kernels compile for every target without a GPU, each with a random config."""

import re
from pathlib import Path

from support.processes import fork_program


def test_configs_compile_for_every_target(tmp_path: Path) -> None:
    env = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    assert re.fullmatch(
        r"(\d+) of \1 compile\n", fork_program("compile_attention.py", **env).stdout
    )
