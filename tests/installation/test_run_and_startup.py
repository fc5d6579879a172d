"""`dejavu-cache run` reaches a program and its children, and changes nothing else of them."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import run_cli
from support.kernels import AUTOTUNED_ADD, write_source
from support.processes import dejavu, environment

from dejavu_cache.installation import autotune_replacement as installation

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
    return subprocess.run(
        [sys.executable, tmp_path / "program.py"],
        env=environment(PYTHONPATH=path, TRITON_INTERPRET="1", **env),
        capture_output=True,
        text=True,
        check=True,
    )


def test_run_reaches_a_program_and_its_children(tmp_path: Path) -> None:
    """Only the first process tunes, not its child; another `sitecustomize` still runs."""
    for name, text in (("library", AUTOTUNED_ADD), ("program", PROGRAM)):
        write_source(tmp_path / f"{name}.py", text)
    write_source(
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


def test_another_python_without_the_package_goes_on_and_says_so(tmp_path: Path) -> None:
    write_source(tmp_path / "triton.py", "autotune = 1")
    code = "import triton; print(triton.autotune)"
    seen = subprocess.run(
        [vars(sys)["_base_executable"], "-s", "-c", code],
        env={"PYTHONPATH": f"{STARTUP}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert seen.stdout == "1\n"
    assert "kernels of this process are not cached" in seen.stderr
    assert "pip install dejavu-cache there" in seen.stderr
    quiet = subprocess.run(
        [vars(sys)["_base_executable"], "-s", "-c", "pass"],
        env={"PYTHONPATH": str(STARTUP)},
        capture_output=True,
        check=True,
    )
    assert quiet.stderr == b"", "a process without Triton hears nothing"


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
        (["--", plain], "is not executable"),
        (["--", odd], "cannot be run: Exec format error"),
    ):
        seen = run_cli("run", *arguments)
        assert (seen.returncode, said in seen.stderr) == (2, True), seen
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN, "as before"
