"""Triton's version and tools, and its digest of its own files."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support.fork_server import kernel_nursery
from support.processes import fork_python, run_python

from dejavu_cache.triton_internals.environment import triton_version


@pytest.mark.parametrize("name", ["triton", "pytorch-triton-rocm", "pytorch-triton-xpu", "another"])
def test_any_distribution_of_triton_counts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = None if name == "another" else "3.9.1"
    folder = tmp_path / f"{name.replace('-', '_')}-3.9.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 3.9.1\n")
    (folder / "top_level.txt").write_text("triton\n" if version else "another\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert triton_version() == version


def test_unset_tools_are_not_run_for_their_versions() -> None:
    code = """
        import subprocess
        from unittest.mock import patch
        from dejavu_cache.triton_internals.environment import compiler_settings
        with patch("subprocess.check_output") as run:
            print(compiler_settings(), run.call_count)
    """
    assert run_python(code).stdout.split() == ["{}", "0"]


PRINT_SETTINGS = """
    import sys
    from triton import backends, knobs
    from dejavu_cache.triton_internals.environment import backend_hash, compiler_settings
    if len(sys.argv) > 1:
        knobs.nvidia.ptxas = sys.argv[1]
    assert backend_hash(backends.compiler.GPUTarget("cuda", 80, 32)).endswith("-80")
    print(*compiler_settings())
"""


@pytest.mark.parametrize("stream", [1, 2])
def test_a_tool_of_ones_own_counts_and_runs_once(tmp_path: Path, stream: int) -> None:
    tool = tmp_path / "ptxas"
    tool.write_text(f"#!/bin/sh\necho release 12.9, V12.9.1 >&{stream}\necho ran >> $0.log\n")
    tool.chmod(0o755)
    by_knob = fork_python(PRINT_SETTINGS, str(tool))
    by_variable = fork_python(PRINT_SETTINGS, TRITON_PTXAS_PATH=str(tool))
    assert by_knob.stdout == by_variable.stdout == "TRITON_PTXAS_PATH\n"
    assert (tmp_path / "ptxas.log").read_text() == "ran\n" * 2  # once in each process


@pytest.mark.parametrize(
    ("variable", "value"), [("TRITON_DEBUG", "1"), ("TRITON_INSTRUMENTATION_MODE", "consan")]
)
def test_variables_that_triton_reads_when_imported_count(variable: str, value: Any) -> None:
    done = run_python(PRINT_SETTINGS, TRITON_INTERPRET="", **{variable: value})
    assert done.stdout != "\n"


COUNT = """
    import sys
    from dejavu_cache.triton_internals import environment
    from dejavu_cache.triton_internals.environment import await_digest, begin_digest, triton_key
    from support import quicker_triton

    quicker_triton.triton_key.cache_clear()  # of what this process was forked from
    computed = quicker_triton.triton_key.cache_info
"""

LAUNCH = f"""{COUNT}
    from support import pretended_gpu
    from support.addition import make
    import torch, triton

    compile_pretended = triton.compiler.compile
    def compile_by_key(*args, **options):
        triton_key()
        return compile_pretended(*args, **options)
    triton.compiler.compile = compile_by_key
    x = torch.zeros(64)
"""


LAUNCHES = {
    "while it asks for the device": """
    began = []
    driver = triton.runtime.driver.active
    target = driver.get_current_target()
    driver.get_current_target = lambda: began.append(len(environment._begun)) or target
    make(mode="reuse")[(1,)](x, x, 64)
    assert began[0] == 1
    """,
    "and a first tune waits for it": """
    make(mode="tune")[(1,)](x, x, 64)
    """,
    "and a first tune that compiles one by one waits for it": """
    from dejavu_cache.tuning import compile_ahead
    compile_ahead.may_compile_in_threads = lambda: False
    make(mode="tune")[(1,)](x, x, 64)
    """,
    "and a compilation before a launch waits for it": """
    from dejavu_cache.triton_internals.compilation import compile_config

    kernel = make(mode="reuse")
    begin_digest()
    compile_config(kernel, kernel.configs[0], (x, x, 64), {"grid": (1,)})
    kernel[(1,)](x, x, 64)
    """,
    "even where no other thread can be started": """
    environment.start_thread = lambda target, name: None
    make(mode="reuse")[(1,)](x, x, 64)
    """,
}


@pytest.mark.parametrize("how", LAUNCHES)
def test_a_first_launch_computes_it(how: str) -> None:
    assertion = "assert computed().misses == 1 and pretended_gpu.LAUNCHED"
    fork_python(LAUNCH + LAUNCHES[how] + assertion, TRITON_INTERPRET="0")


INSTALL = "import dejavu_cache; dejavu_cache.install()"
DECORATE = "import support.addition as addition; addition.make()"


@pytest.mark.parametrize(
    ("step", "file", "mode", "interpreted", "begun"),
    [
        (INSTALL, os.devnull, "tune", "0", 1),
        (DECORATE, os.devnull, "tune", "0", 1),
        (INSTALL, "/dev/no such device", "tune", "0", 0),
        (DECORATE, os.devnull, "off", "0", 0),
        (INSTALL, os.devnull, "wrong", "0", 0),
        (DECORATE, os.devnull, "tune", "1", 0),
    ],
)
def test_it_is_computed_beside_imports_where_kernels_will_be_compiled(
    step: str, file: str, mode: str, interpreted: str, begun: int
) -> None:
    fork_python(
        f"""{COUNT}
    environment.GPU_FILES = ({file!r},)
    {step}
    await_digest()
    assert len(environment._begun) == computed().misses == {begun}
    assert {begun} == ("triton.experimental.gluon.nvidia.hopper" in sys.modules)
    """,
        DEJAVU_CACHE_MODE=mode,
        TRITON_INTERPRET=interpreted,
    )


BEGUN = {
    "as a program ends": """
    import time
    environment.triton_key = lambda: time.sleep(600)
    begin_digest()
    assert environment._begun[0].is_alive()
    """,
    "as a child is forked, which does not wait": """
    import os, time
    from support.processes import in_fork
    environment.triton_key = lambda: time.sleep(600)
    begin_digest()
    in_fork(await_digest)
    """,
    "and an error is left to Triton": """
    environment.triton_key = lambda: open("no such file")
    begin_digest()
    await_digest()
    """,
}


@pytest.mark.parametrize("what", BEGUN)
def test_the_digest_is_computed(what: str) -> None:
    assert run_python(f"{COUNT}{BEGUN[what]}").stderr == ""


@pytest.mark.parametrize("compiler", ["cc", "/no such compiler"])
def test_triton_builds_its_module_for_cuda_beside_a_launch(compiler: str, tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").touch()
    code = f"""
    import torch, triton
    from dejavu_cache.triton_internals.hooks import build_driver_aside, build_host_modules_with
    torch.cuda.is_available = lambda: True
    build_host_modules_with({str(tmp_path)!r})
    build_driver_aside()
    print(triton.runtime.driver.active.utils.load_binary)
    """
    environ = {"CC": compiler, "TRITON_CACHE_DIR": str(tmp_path)}
    done = kernel_nursery().start(code, folder=tmp_path, **environ).complete()
    assert compiler in done.stderr or list(tmp_path.glob("*/cuda_utils*"))
