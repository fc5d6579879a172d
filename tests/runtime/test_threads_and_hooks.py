"""What happens beside a launch: a fork while a thread tunes, and hooks of configs that fail."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.processes import PROGRAMS, environment


def run_program(name: str) -> str:
    seen = subprocess.run(
        [sys.executable, PROGRAMS / name],
        env=environment(TRITON_INTERPRET="0", DEJAVU_CACHE_CHECK="0"),
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    return seen.stdout


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_that_was_forked_while_a_thread_tuned_can_tune() -> None:
    assert run_program("fork_while_tuning.py").splitlines() == ["child 2", "parent 2 0"]


def test_hooks_run_for_a_config_that_does_not_compile_with_the_exception() -> None:
    said = "True [(16, 'NoneType'), (32, 'OutOfResources'), (64, 'NoneType')]"
    assert run_program("fail_to_compile.py").strip() == said
