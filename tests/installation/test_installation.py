"""`install()` and `dejavu-cache run` cache libraries that know only `triton.autotune`."""

import logging
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.command_line import run_cli
from support.kernels import AUTOTUNED_ADD, launch, load, write_source
from support.processes import dejavu, environment, run_command

from dejavu_cache.engines.vllm.plugin import register
from dejavu_cache.installation import autotune_replacement as installation
from dejavu_cache.installation.autotune_replacement import install, uninstall
from dejavu_cache.runtime.autotuner import CachedAutotuner
from dejavu_cache.runtime.launch import leave_untraced
from dejavu_cache.settings import current_settings

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


@pytest.fixture
def with_installation() -> Any:
    install()
    yield
    uninstall()


def test_a_library_imported_afterwards_is_cached(with_installation: None, tmp_path: Path) -> None:
    for benchmarked in (2, 0):
        library = load(tmp_path / "library.py", AUTOTUNED_ADD, "library")
        launch(library.add)
        assert type(library.add) is CachedAutotuner
        assert library.add.is_adopted
        assert library.add.benchmarked == benchmarked


def test_a_librarys_own_kind_of_autotuner_is_cached(
    with_installation: None, tmp_path: Path
) -> None:
    for benchmarked in (2, 0):
        kernel = load(tmp_path / "library.py", OWN_KIND, "library").add
        launch(kernel)
        prepared = kernel.prepared
        launch(kernel)
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
    launch(other)
    assert other._adopted is None
    assert len(other.cache) == 1
    library.add.chosen = triton.Config({"BLOCK": 64})
    launch(library.add)
    assert library.add.best_config is library.add.chosen, "what a library has chosen itself counts"
    assert library.add._adopted.benchmarked == 0


def test_what_was_imported_before_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    early = load(tmp_path / "early.py", AUTOTUNED_ADD, "early")
    holds = load(tmp_path / "holds.py", "from triton import autotune", "holds")
    sys.modules |= {"early": early, "holds": holds}
    try:
        with caplog.at_level(logging.WARNING):
            install()
            install()
        assert caplog.text.count("came too late") == 1
        assert "modules early, holds" in caplog.text
        assert not hasattr(early.add, "benchmarked")
    finally:
        uninstall()
        del sys.modules["early"], sys.modules["holds"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"configs": [triton.Config({"BLOK": 16})] * 2}, "'BLOK', which is neither an argument"),
        pytest.param(
            {"key": ["Odd"]},
            "key names 'Odd', which is no argument: did you mean 'odd'?",
            marks=pytest.mark.skipif(triton.__version__ >= "3.9", reason="Triton raises"),
        ),
    ],
)
def test_a_librarys_typo_is_a_warning_and_tritons_own_affair(
    with_installation: None, caplog: pytest.LogCaptureFixture, options: Any, says: str
) -> None:
    configs = [triton.Config({"BLOCK": block}) for block in (16, 32)]
    decorated = triton.autotune(**{"configs": configs, "key": [], **options})(triton.jit(ignores))
    for _ in range(2):
        with suppress(Exception):  # Triton's own, of a kernel whose BLOCK no config sets
            decorated[(1,)](torch.ones(1), 3)
    assert caplog.text.count(says) == 1


def test_torchs_own_autotuners_stay_tritons(with_installation: None) -> None:
    """Inductor makes an autotuner of a user's kernel when it compiles it."""
    made: dict[str, Any] = {
        "__name__": "torch._higher_order_ops.triton_kernel_wrap",
        "triton": triton,
    }
    exec("decorator = triton.autotune(configs=[], key=[])", made)
    assert not isinstance(made["decorator"](triton.jit(ignores)), CachedAutotuner)
    assert isinstance(triton.autotune(configs=[], key=[])(triton.jit(ignores)), CachedAutotuner)


def ignores(x, odd, BLOCK: tl.constexpr):
    pass


def test_vllm_is_left_alone_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_others_have_changed_of_their_own_is_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rooms = "attention.backends.registry", "worker.gpu_worker", "engine.input_processor"
    modules = "torch._dynamo.trace_rules", *(f"vllm.v1.{room}" for room in rooms)
    for module in modules:
        monkeypatch.setitem(sys.modules, module, object())
    leave_untraced.__wrapped__()
    register()
    assert [f"{module} is used as it is" in caplog.text for module in modules] == [True] * 4


STARTUP = Path(installation.__file__).parent / "startup"

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
    write_source(tmp_path / "program.py", code)
    variables = environment(PYTHONPATH=path, TRITON_INTERPRET="1", **env)
    return run_command(sys.executable, tmp_path / "program.py", env=variables)


def test_run_reaches_a_program_and_its_children(tmp_path: Path) -> None:
    """Only the first process tunes, not its child; another `sitecustomize` still runs."""
    for name, text in (("library", AUTOTUNED_ADD), ("program", PROGRAM)):
        write_source(tmp_path / f"{name}.py", text)
    write_source(
        tmp_path / "site" / "sitecustomize.py", 'import os; os.environ["OTHER"] = "other ran"'
    )
    path = [str(tmp_path / "site"), environment()["PYTHONPATH"]]
    program = sys.executable, tmp_path / "program.py", "with a child"
    command = "run", "--store", tmp_path / "store", "--", *program
    seen = dejavu(*command, PYTHONPATH=":".join(path), TRITON_INTERPRET="1")
    assert seen.stdout.splitlines() == ["other ran 2 200", "other ran 0 200"], seen.stderr


def test_another_python_without_the_package_goes_on_and_says_so(tmp_path: Path) -> None:
    write_source(tmp_path / "triton.py", "autotune = 1")
    code = "import triton; print(triton.autotune)"
    python = vars(sys)["_base_executable"], "-s", "-c"
    seen = run_command(*python, code, env={"PYTHONPATH": f"{STARTUP}:{tmp_path}"})
    assert seen.stdout == "1\n"
    assert "kernels of this process are not cached" in seen.stderr
    assert "pip install dejavu-cache there" in seen.stderr
    quiet = run_command(*python, "pass", env={"PYTHONPATH": str(STARTUP)})
    assert quiet.stderr == "", "a process without Triton hears nothing"


def test_two_installations_that_start_each_other_end(tmp_path: Path) -> None:
    """As where a script that one has started runs the other; what both hide runs once."""
    for name in ("first", "second"):
        shutil.copytree(STARTUP, tmp_path / name)
    write_source(tmp_path / "site" / "sitecustomize.py", 'print("other ran")')
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


@pytest.mark.parametrize("code", [7, "PIPE", "XFSZ", "INT"])
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
    command = [sys.executable, "-m", "dejavu_client", "run", "--store", store]
    command = [word.format(folder=tmp_path) for word in command]
    program = ("sh", "-c", "echo $DEJAVU_CACHE_URL")
    out = run_command(*command, "--", *program, env=environment(), cwd=tmp_path)
    assert out.stdout.strip() == seen.format(folder=tmp_path)


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


def test_run_says_what_it_was_given_wrongly(tmp_path: Path) -> None:
    plain, odd = tmp_path / "plain.py", tmp_path / "odd.py"
    for path, mode in ((plain, 0o644), (odd, 0o755)):
        path.write_text("print()\n")
        path.chmod(mode)
    for arguments, said in (
        ([], "Missing argument"),
        (["--", "no-such-program"], "no-such-program is no command"),
        (["--mode", "x", "true"], "MODE='x'"),
        (["--policy", "/absent.toml", "true"], "/absent.toml: there is no such file"),
        (["--", plain], "is not executable"),
    ):
        seen = run_cli("run", *arguments)
        assert (seen.returncode, said in seen.stderr) == (2, True), seen
    refused = dejavu("run", "--", odd)
    assert (refused.returncode, "cannot be run: Exec format" in refused.stderr) == (2, True)
