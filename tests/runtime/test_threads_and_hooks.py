"""What happens beside a launch: a fork while a thread tunes, and hooks of configs that fail."""

from __future__ import annotations

import pytest
from support.processes import fork_program, fork_python


def run_program(name: str) -> str:
    return fork_program(name, TRITON_INTERPRET="0", DEJAVU_CACHE_CHECK="0").stdout


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_that_was_forked_while_a_thread_tuned_can_tune() -> None:
    assert run_program("fork_while_tuning.py").splitlines() == ["child 2", "parent 2 0"]


def test_a_child_tunes_without_the_threads_of_torch_that_it_has_lost() -> None:
    assert fork_program("fork_after_parallel_work.py", TRITON_INTERPRET="1").stdout == "0\n"


def test_a_child_finds_what_threads_of_its_parent_held_free() -> None:
    said = ["child True", "parent 0 False"]
    assert run_program("fork_with_locks.py").splitlines() == said


def test_hooks_run_for_a_config_that_does_not_compile_with_the_exception() -> None:
    said = "True [(16, 'NoneType'), (32, 'OutOfResources'), (64, 'NoneType')]"
    assert run_program("fail_to_compile.py").strip() == said


def test_hooks_hear_of_a_launch_that_lacks_an_argument() -> None:
    code = """
        import contextlib, torch, triton
        from dejavu_cache import cached_autotune
        from support.mutated_autotuners import body
        import support.pretended_gpu

        def heard_by(decorate, **options):
            heard = []
            kernel = decorate(
                configs=[triton.Config({"B": block}) for block in (16, 32)],
                key=["n"],
                do_bench=lambda call, quantiles: call() or 1.0,
                pre_hook=lambda named, reset_only=False: heard.append(named["B"]),
                post_hook=lambda named, exception: heard.append(str(exception)),
                **options,
            )(triton.jit(body))
            with contextlib.suppress(TypeError):
                kernel[(1,)](torch.empty(8), 3)
            return heard

        theirs = heard_by(triton.autotune)
        print(len(theirs), theirs == heard_by(cached_autotune, store="memory://"))
    """
    seen = fork_python(code, TRITON_INTERPRET="0", DEJAVU_CACHE_CHECK="0")
    assert seen.stdout.splitlines()[-1] == "2 True"
