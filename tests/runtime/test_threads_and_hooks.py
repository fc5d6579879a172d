"""What happens beside a launch: a fork while a thread tunes, and hooks of configs that fail."""

from __future__ import annotations

import pytest
from support.processes import fork_program


def run_program(name: str) -> str:
    return fork_program(name, TRITON_INTERPRET="0", DEJAVU_CACHE_CHECK="0").stdout


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_that_was_forked_while_a_thread_tuned_can_tune() -> None:
    assert run_program("fork_while_tuning.py").splitlines() == ["child 2", "parent 2 0"]


def test_a_child_finds_what_threads_of_its_parent_held_free() -> None:
    said = ["child True", "parent 0 False"]
    assert run_program("fork_with_locks.py").splitlines() == said


def test_hooks_run_for_a_config_that_does_not_compile_with_the_exception() -> None:
    said = "True [(16, 'NoneType'), (32, 'OutOfResources'), (64, 'NoneType')]"
    assert run_program("fail_to_compile.py").strip() == said
