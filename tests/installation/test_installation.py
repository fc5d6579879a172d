"""`install()` and `dejavu-cache run` cache libraries that know only `triton.autotune`."""

from __future__ import annotations

import logging
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.kernels import load
from support.processes import dejavu, environment

from dejavu_cache.engines.vllm.plugin import register
from dejavu_cache.installation import autotune_replacement as installation
from dejavu_cache.installation.autotune_replacement import (
    AdoptedAutotuner,
    install,
    uninstall,
)

LIBRARY = """
    import triton
    import triton.language as tl

    @triton.autotune(configs=[triton.Config({"BLOCK": block}) for block in (16, 32)], key=["n"])
    @triton.jit
    def add(x, y, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)
"""

OWN_KIND = """
    import triton
    import triton.language as tl
    from triton.runtime.autotuner import Autotuner

    class Own(Autotuner):
        launches, prepared, chosen = 0, 0, None

        def __init__(self, fn, **kwargs):
            configs = [triton.Config({"BLOCK": block}) for block in (16, 32)]
            super().__init__(fn, fn.arg_names, configs, ["n"], None, None, **kwargs)
            self.pre_hook = self.prepare

        def prepare(self, kwargs, reset_only=False):
            self.prepared += 1

        def run(self, *args, **kwargs):
            self.launches += 1
            if self.chosen is not None:
                self.cache[(100, *["torch.float32"] * 2)] = self.chosen
            return super().run(*args, **kwargs)

    @Own
    @triton.jit
    def add(x, y, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

    class Slow(Own):
        def prune_configs(self, kwargs):
            return self.configs
"""
"""A library's own kind of autotuner, as flash-linear-attention has; and one that does more."""

PROGRAM = """
    import os, subprocess, sys
    import torch, triton
    import library

    x, y = torch.ones(100), torch.zeros(100)
    library.add[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, y, 100)
    print(os.environ.get("OTHER"), library.add.benchmarked, int(y.sum()), flush=True)
    if len(sys.argv) > 1:
        subprocess.run([sys.executable, __file__])
"""


@pytest.fixture
def with_installation() -> Any:
    install()
    yield
    uninstall()


def run_kernel(kernel: Any) -> None:
    x, y = torch.ones(100), torch.zeros(100)
    kernel[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, y, 100)
    assert torch.equal(y, x + 1)


def test_a_library_imported_afterwards_is_cached(with_installation: None, tmp_path: Path) -> None:
    for benchmarked in (2, 0):
        library = load(tmp_path / "library.py", LIBRARY, "library")
        run_kernel(library.add)
        assert type(library.add) is AdoptedAutotuner
        assert library.add.benchmarked == benchmarked


def test_a_librarys_own_kind_of_autotuner_is_cached(
    with_installation: None, tmp_path: Path
) -> None:
    for benchmarked in (2, 0):
        kernel = load(tmp_path / "library.py", OWN_KIND, "library").add
        run_kernel(kernel)
        prepared = kernel.prepared
        run_kernel(kernel)
        assert kernel._adopted.benchmarked == benchmarked
        assert kernel.launches == 2
        assert prepared >= benchmarked, "its hook runs before every benchmark"
        assert kernel.prepared == prepared
        assert kernel.best_config.kwargs["BLOCK"] in (16, 32)


def test_a_kind_of_autotuner_that_tunes_in_its_own_way_is_left_alone(
    with_installation: None, tmp_path: Path
) -> None:
    library = load(tmp_path / "library.py", OWN_KIND, "library")
    other = library.Slow(
        library.add.fn, do_bench=lambda kernel_call, quantiles: kernel_call() or 1.0
    )
    run_kernel(other)
    assert other._adopted is None
    assert len(other.cache) == 1
    library.add.chosen = triton.Config({"BLOCK": 64})
    run_kernel(library.add)
    assert library.add.best_config is library.add.chosen, "what a library has chosen itself counts"
    assert library.add._adopted.benchmarked == 0


def test_what_was_imported_before_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    early = load(tmp_path / "early.py", LIBRARY, "early")
    holds = load(tmp_path / "holds.py", "from triton import autotune", "holds")
    sys.modules |= {"early": early, "holds": holds}
    try:
        with caplog.at_level(logging.WARNING):
            install()
            install()
        assert caplog.text.count("came too late") == 1
        assert "early.add" in caplog.text
        assert "module holds" in caplog.text
        assert not hasattr(early.add, "benchmarked")
    finally:
        uninstall()
        del sys.modules["early"], sys.modules["holds"]


def test_torchs_own_autotuners_stay_tritons(with_installation: None) -> None:
    """Inductor makes an autotuner of a user's kernel when it compiles it."""
    made: dict[str, Any] = {
        "__name__": "torch._higher_order_ops.triton_kernel_wrap",
        "triton": triton,
    }
    exec("decorator = triton.autotune(configs=[], key=[])", made)
    assert not isinstance(made["decorator"](triton.jit(ignores)), AdoptedAutotuner)
    assert isinstance(triton.autotune(configs=[], key=[])(triton.jit(ignores)), AdoptedAutotuner)


def ignores(x, odd, BLOCK: tl.constexpr):
    pass


def test_a_key_that_no_record_can_hold_leaves_a_kernel_to_triton(
    with_installation: None, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def bench(kernel_call: Any, quantiles: Any) -> float:
        calls.append(kernel_call())
        return 1.0

    configs = [triton.Config({"BLOCK": block}) for block in (16, 32)]
    kernel = triton.autotune(configs=configs, key=["odd"], do_bench=bench)(triton.jit(ignores))
    x = torch.ones(1)
    for _ in range(3):
        kernel[(1,)](x, x)
    assert len(calls) == 2
    assert "is tuned by Triton alone: key argument 'odd' is Tensor" in caplog.text


def test_vllm_is_left_alone_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from dejavu_cache.settings import current_settings

    theirs = triton.autotune
    register()
    assert triton.autotune is theirs
    monkeypatch.setenv("DEJAVU_CACHE_INSTALL", "1")
    current_settings.cache_clear()
    try:
        register()
        assert triton.autotune is not theirs
    finally:
        uninstall()


def test_run_reaches_a_program_and_its_children(tmp_path: Path) -> None:
    """Only the first process tunes, not its child; another `sitecustomize` still runs."""
    for name, text in (("library", LIBRARY), ("program", PROGRAM)):
        load_text(tmp_path / f"{name}.py", text)
    load_text(
        tmp_path / "site" / "sitecustomize.py", 'import os; os.environ["OTHER"] = "other ran"'
    )
    path = [str(tmp_path / "site"), environment()["PYTHONPATH"]]
    command = [
        "run",
        "--store",
        tmp_path / "store",
        "--",
        sys.executable,
        tmp_path / "program.py",
        "with a child",
    ]
    seen = dejavu(*command, PYTHONPATH=":".join(path), TRITON_INTERPRET="1")
    assert seen.stdout.splitlines() == ["other ran 2 200", "other ran 0 200"], seen.stderr


def load_text(path: Path, text: str) -> None:
    import textwrap

    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(text))


def test_another_python_without_the_package_goes_on_and_says_so(tmp_path: Path) -> None:
    startup = Path(installation.__file__).parent / "startup"
    load_text(tmp_path / "triton.py", "autotune = 1")
    code = "import triton; print(triton.autotune)"
    seen = subprocess.run(
        [vars(sys)["_base_executable"], "-s", "-c", code],
        env={"PYTHONPATH": f"{startup}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert seen.stdout == "1\n"
    assert "kernels of this process are not cached" in seen.stderr
    assert "pip install dejavu-cache there" in seen.stderr
    quiet = subprocess.run(
        [vars(sys)["_base_executable"], "-s", "-c", "pass"],
        env={"PYTHONPATH": str(startup)},
        capture_output=True,
        check=True,
    )
    assert quiet.stderr == b"", "a process without Triton hears nothing"


def test_two_installations_that_start_each_other_end(tmp_path: Path) -> None:
    """As where a script that one has started runs the other; what both hide runs once."""
    for name in ("first", "second"):
        shutil.copytree(STARTUP, tmp_path / name)
    load_text(tmp_path / "site" / "sitecustomize.py", 'print("other ran")')
    code = """
        import sys, triton
        print(triton.autotune.__globals__["__name__"])
        print(sys.path)
    """
    path = [str(tmp_path / name) for name in ("first", "second", "site")]
    seen = run_with_startup(code, tmp_path, path=":".join(path))
    assert seen.stderr == ""
    first, module, searched = seen.stdout.splitlines()
    assert (first, module) == ("other ran", installation.__name__)
    assert str(path)[1:-1] in searched


@pytest.mark.parametrize("code", [0, 7, "PIPE", "XFSZ", "TERM", "KILL", "INT"])
def test_run_ends_as_its_program_does(code: int | str) -> None:
    """A program gets no signals ignored, which Python does with two; `yes | head` relies on it."""
    ending = f"exit {code}" if isinstance(code, int) else f"kill -{code} $$; exit 99"
    expected = code if isinstance(code, int) else -signal.Signals[f"SIG{code}"]
    command = [sys.executable, "-m", "dejavu_client", "run", "--", "sh", "-c", ending]
    assert subprocess.run(command, env=environment(), check=False).returncode == expected


@pytest.mark.parametrize(
    ("store", "seen"),
    [
        ("a b", "file://{folder}/a%20b"),
        ("one, {folder}/two", "file://{folder}/one,file://{folder}/two"),
        ("./ab:c", "file://{folder}/ab%3Ac"),
        ("memory://", "memory://"),
    ],
)
def test_a_program_may_change_folders(store: str, seen: str, tmp_path: Path) -> None:
    command = ["dejavu_client", "run", "--store", store.format(folder=tmp_path)]
    out = subprocess.run(
        [sys.executable, "-m", *command, "--", "sh", "-c", "echo $DEJAVU_CACHE_URL"],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == seen.format(folder=tmp_path)


LOOKS_FIRST = """
    import importlib.util, sys
    for _ in range(2):
        assert importlib.util.find_spec("triton").name == "triton"
    assert "triton" not in sys.modules
    spec = importlib.util.find_spec("triton")
    sys.modules["triton"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["triton"])
    import triton
    print(triton.autotune.__globals__["__name__"])
"""


def run_with_startup(
    code: str, tmp_path: Path, *, path: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    load_text(tmp_path / "program.py", code)
    return subprocess.run(
        [sys.executable, tmp_path / "program.py"],
        env=environment(PYTHONPATH=path, TRITON_INTERPRET="1", **env),
        capture_output=True,
        text=True,
        check=True,
    )


STARTUP = Path(installation.__file__).parent / "startup"


@pytest.mark.parametrize("imported", [LOOKS_FIRST.partition("    spec =")[0] + """
    import triton
    print(triton.autotune.__globals__["__name__"])
""", LOOKS_FIRST])  # fmt: skip
def test_a_program_may_look_for_triton_before_it_imports_it(imported: str, tmp_path: Path) -> None:
    """CUDA builds of torch look for Triton while they are imported."""
    seen = run_with_startup(imported, tmp_path, path=str(STARTUP))
    assert seen.stdout.strip() == installation.__name__
    assert seen.stderr == ""


def test_triton_that_was_imported_before_the_startup_is_served(tmp_path: Path) -> None:
    code = f"""
        import runpy, triton
        runpy.run_path({str(STARTUP / "sitecustomize.py")!r})
        print(triton.autotune.__globals__["__name__"])
    """
    assert run_with_startup(code, tmp_path).stdout.strip() == installation.__name__


def test_an_import_hook_of_the_old_kind_does_no_harm(tmp_path: Path) -> None:
    load_text(tmp_path / "fake" / "triton.py", "autotune = 1")
    code = """
        import sys

        class Old:
            def find_module(self, name, path=None):
                return None

        sys.meta_path.insert(0, Old())
        import triton
        print(triton.__name__)
    """
    path = f"{STARTUP}:{tmp_path / 'fake'}"
    assert run_with_startup(code, tmp_path, path=path).stdout == "triton\n"


def test_a_process_that_was_to_be_served_and_was_not_says_so_at_its_end(tmp_path: Path) -> None:
    load_text(tmp_path / "fake" / "triton.py", "autotune = 1")
    past_the_hook = """
        import sys
        sys.meta_path[:] = [finder for finder in sys.meta_path if "Hook" not in str(finder)]
        import triton
    """
    path = f"{STARTUP}:{tmp_path / 'fake'}"
    seen = run_with_startup(past_the_hook, tmp_path, path=path)
    assert seen.stderr.count("\n") == 1
    assert "kernels of this process were not cached" in seen.stderr
    stands_in = """
        import sys, types
        sys.modules["triton"] = types.ModuleType("triton")
        import triton
    """
    assert run_with_startup(stands_in, tmp_path, path=path).stderr == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing argument"),
        (["--", "no-such-program"], "no-such-program is no command"),
        (["--mode", "x", "true"], "MODE='x'"),
    ],
)
def test_run_says_what_it_was_given_wrongly(arguments: list[str], said: str) -> None:
    seen = dejavu("run", *arguments)
    assert seen.returncode == 2
    assert said in seen.stderr


@pytest.mark.parametrize(
    ("mode", "said"), [(0o644, "is not executable"), (0o755, "cannot be run: Exec format error")]
)
def test_run_says_why_a_file_cannot_be_run(mode: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("print()\n")
    (tmp_path / "program.py").chmod(mode)
    seen = dejavu("run", "--", tmp_path / "program.py")
    assert seen.returncode == 2
    assert said in seen.stderr
