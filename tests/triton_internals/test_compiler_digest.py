"""Triton's digest of its own files is computed beside a process's first launch, once."""

from __future__ import annotations

import sys

import pytest
from support.processes import fork_python, run_python

COUNT = """
    from dejavu_cache.triton_internals.compiler_digest import await_digest, begin_digest
    from dejavu_cache.triton_internals.versions import triton_key
    from triton.compiler import compiler
    from triton.runtime import cache

    computed = (getattr(cache, "triton_key", None) or compiler.triton_key).cache_info
"""


def test_the_digest_is_computed_once() -> None:
    run_python(f"""{COUNT}
    begin_digest()
    begin_digest()
    await_digest()
    assert computed().misses == 1
    triton_key()
    assert computed().misses == 1
    """)


def test_a_first_launch_computes_it_while_it_asks_for_the_device() -> None:
    fork_python(
        f"""{COUNT}
    from support import pretended_gpu
    from support.addition import make
    import torch

    began = []
    driver = pretended_gpu.driver.active
    target = driver.get_current_target()

    def get_target():
        began.append(begin_digest.cache_info().currsize)
        return target

    driver.get_current_target = get_target
    x = torch.zeros(64)
    make(mode="reuse")[(1,)](x, x, 64)
    assert began[0] == 1
    assert computed().misses == 1
    """,
        TRITON_INTERPRET="0",
    )


def test_a_program_that_ends_meanwhile_is_not_kept() -> None:
    done = run_python(f"""{COUNT}
    begin_digest()
    """)
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.skipif(sys.platform == "win32", reason="it has no fork")
def test_a_child_that_is_forked_meanwhile_does_not_wait() -> None:
    run_python(f"""{COUNT}
    import os
    begin_digest()
    child = os.fork()
    if child == 0:
        await_digest()
        os._exit(len(triton_key()) == 0)
    assert os.waitpid(child, 0)[1] == 0
    """)


def test_an_error_is_left_to_triton() -> None:
    done = run_python(f"""{COUNT}
    from dejavu_cache.triton_internals import compiler_digest

    def fail():
        raise OSError("no such file")

    compiler_digest.triton_key = fail
    await_digest()
    """)
    assert done.stderr == ""
