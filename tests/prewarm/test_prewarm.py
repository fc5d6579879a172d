"""Prewarming without a GPU: what is made, that Triton finds it, and what is refused."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import triton
from support.checkout import ROOT
from support.prewarming import (
    DEVICES,
    HERE,
    another_user,
    committed_records,
    prewarm,
    restamp,
    seal,
    tree,
)
from support.processes import dejavu, environment, run_command
from support.sweeping import wait_until

from dejavu_cache.errors import PrewarmError
from dejavu_cache.model.record import RecordedLaunch
from dejavu_cache.prewarm.build import CompileJob, Compiler, PrewarmSpec, compile_all
from dejavu_cache.stores import FileStore, open_store
from dejavu_cache.stores.manifest import find_differences, read_manifest
from dejavu_cache.triton_internals.compilation import wheel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux")


def run_program(
    folder: Path, *blocks: object, words: Sequence[str] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    """Run the program under `verify --expect-hits`, without a home, a C compiler or libcuda."""
    temporary = folder.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    temporary.chmod(0o1777)
    own = {
        "DEJAVU_CACHE_URL": f"prewarmed://{folder}",
        "PYTHONPATH": str(HERE),
        "HOME": "/dev/null/nobody",
        "CC": "/bin/false",
        "TRITON_LIBCUDA_PATH": "/nonexistent",
        "TMPDIR": str(temporary),
        "TRITON_INTERPRET": "",
        **env,
    }
    program = [*words, sys.executable, str(HERE / "launch_products.py"), *map(str, blocks)]
    variables = environment(**own)
    variables.pop("XDG_CACHE_HOME", None)
    command = [sys.executable, "-m", "dejavu_client", "verify", "--expect-hits", "--", *program]
    return run_command(*command, env=variables, check=False, cwd="/")


def test_binaries_for_three_architectures_are_made_without_a_gpu(folder: Path) -> None:
    """Of winners and defaults, and of the module's kernel that nobody tunes."""
    manifest = read_manifest(folder)
    assert not list(find_differences(folder, manifest))
    assert manifest.host_key == manifest.platform, "keys of modules tell builders apart"
    assert manifest.targets == ("cuda:100", "cuda:90", "hip:gfx942")[: len(DEVICES)]
    assert {kernel.name: kernel.scenarios for kernel in manifest.kernels} == {
        "products.add_one": 2 * len(DEVICES),
        "products.halve": 0,
        "products.product": len(DEVICES),
    }
    binaries = {
        path.name: path.read_bytes()
        for path in folder.rglob("*")
        if path.suffix in (".cubin", ".hsaco")
    }
    endings = {"cubin", "hsaco"} if "AMD Instinct MI300X" in DEVICES else {"cubin"}
    assert set(binaries) == {
        f"{name}.{end}" for name in ("add_one", "product", "halve") for end in endings
    }
    assert all(binary.startswith(b"\x7fELF") for binary in binaries.values())
    count = sum(kernel.binaries for kernel in manifest.kernels)
    assert len([*folder.rglob("*.cubin"), *folder.rglob("*.hsaco")]) == count


def test_the_modules_ask_for_the_driver_whatever_the_linker_drops(
    records: FileStore, tmp_path: Path
) -> None:
    gcc = f"{shutil.which('gcc')} -Wl,--as-needed"  # as Ubuntu's is
    done = prewarm(records, tmp_path / "out", devices=DEVICES[:1], CC=gcc)
    assert done.returncode == 0, done.stderr
    modules = [*(tmp_path / "out").rglob("cuda_utils*.so")]
    assert modules
    for module in modules:
        assert "Shared library: [libcuda.so" in run_command("readelf", "-d", module).stdout


@pytest.fixture
def public() -> Iterator[Path]:
    """Make a folder that other users may read, unlike those of pytest."""
    made = Path(tempfile.mkdtemp(prefix="dejavu-public-"))
    made.chmod(0o755)
    yield made
    for path in (made, *made.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(made)


def test_the_folder_is_moved_sealed_and_used_by_a_stranger(folder: Path, public: Path) -> None:
    """Without a home or a compiler, another user compiles and builds nothing."""
    moved = public / "elsewhere" / "tuned"
    shutil.copytree(folder, moved)
    seal(moved)
    before = tree(moved)
    ran = run_program(moved, 256, words=another_user())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 kernels loaded, 0 compiled, 0 modules built" in ran.stdout
    assert tree(moved) == before
    store = open_store(f"prewarmed://{moved}")
    assert store.read_only
    assert len(list(store.contexts("products.add_one"))) == len(DEVICES)


def test_what_is_not_there_is_compiled_elsewhere_and_named(folder: Path, tmp_path: Path) -> None:
    """Configs that no record chose compile into a temporary cache, as the folder is read-only."""
    before = tree(folder)
    ran = run_program(folder, 256, 1024, TMPDIR=str(tmp_path))
    assert ran.returncode == 1
    assert "compiled 2 times: products.add_one (BLOCK=1024)" in ran.stdout
    assert "3 kernels loaded, 2 compiled, 0 modules built" in ran.stdout
    assert f"{tmp_path}/dejavu-cache-" in ran.stderr
    assert tree(folder) == before


def test_a_folder_for_other_gpus_is_named_once(folder: Path, tmp_path: Path) -> None:
    said = run_program(folder, 256, ARCH="80", TMPDIR=str(tmp_path)).stderr
    assert said.count("MI300X, NVIDIA B200, NVIDIA H200, and this GPU is cuda:80") == 1


def test_two_builds_are_the_same_bytes(records: FileStore, folder: Path, tmp_path: Path) -> None:
    """Compiled again from nothing, the modules that a C compiler makes included."""
    out = tmp_path / "again"
    out.mkdir()
    out.chmod(0o775)
    number = out.stat().st_ino  # as of a mounted folder, which cannot be replaced
    other_order = {"PYTHONHASHSEED": "7"}  # of sets, in processes that share nothing
    assert prewarm(records, out, devices=("NVIDIA H200",), **other_order).returncode == 0
    ours, theirs = tree(folder), tree(out)
    assert {name for name in theirs if name not in ours} == set()
    assert (out.stat().st_ino, out.stat().st_mode & 0o777) == (number, 0o755)
    assert {name for name in theirs if ours[name] != theirs[name]} == {"prewarmed.json"}


@pytest.mark.parametrize(
    ("stamp", "device", "expected"),
    [
        ({"triton": "3.3.1"}, "NVIDIA H200", "(pip install triton==3.3.1)"),
        ({}, "NVIDIA H100 80GB HBM3", "no records; choose among 'AMD Instinct MI300X', 'NVI"),
    ],
)
def test_records_that_do_not_fit_are_refused(
    stamp: dict[str, str], device: str, expected: str, tmp_path: Path
) -> None:
    store = stamped_store(tmp_path, stamp)
    made = prewarm(store, tmp_path / "out", devices=(device,))
    assert made.returncode == 3, made.stdout + made.stderr
    assert expected in made.stderr
    assert not [path for path in tmp_path.iterdir() if path.name not in ("records", "user")]


def stamped_store(tmp_path: Path, stamp: dict[str, str]) -> FileStore:
    """Return a store with the committed records as another Triton would have made them."""
    store = FileStore(tmp_path / "records")
    for record_set in (restamp(entryset, **stamp) for entryset in committed_records()):
        store.put(record_set.context, record_set.records)
    return store


def test_what_another_triton_noted_is_compiled_here(folder: Path, tmp_path: Path) -> None:
    store = stamped_store(tmp_path, {"wheel": f"triton {triton.__version__} cp399 x86_64 0"})
    made = prewarm(store, tmp_path / "out", devices=("NVIDIA H200",))
    assert made.returncode == 0, made.stderr
    binaries = {path.name for path in (tmp_path / "out").rglob("*.cubin")}
    assert set() < binaries <= {path.name for path in folder.rglob("*.cubin")}


def test_what_a_module_lacks_is_named(records: FileStore, tmp_path: Path) -> None:
    for name, text, code, said in (
        ("lacking", "import nobody_has", 2, "lacking cannot be imported: No module named 'nob"),
        ("proxies", "from torch import classes  # has any", 2, "there is no kernel in proxies"),
        ("ending", "import os; os._exit(0)", 3, "and compiles: its process ended with code 0"),
    ):
        (tmp_path / f"{name}.py").write_text(text)
        made = prewarm(records, tmp_path / "out", name, PYTHONPATH=str(tmp_path))
        assert (made.returncode, said in made.stderr) == (code, True), made.stderr
        assert not (tmp_path / "out").exists()
    made = prewarm(records, tmp_path / "out", CC="gcc -nostdinc")
    assert "install gcc and Python's headers here" in made.stderr


def test_a_place_that_cannot_be_written_is_named(records: FileStore, tmp_path: Path) -> None:
    """Foreign folders, files and a full disk are refused; what was there stays as it was."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years")
    for path in (mine, mine / "thesis.txt", mine / "thesis.txt" / "below"):
        made = prewarm(records, path)
        assert made.returncode == 3
        assert str(mine) in made.stderr
    assert (mine / "thesis.txt").read_text() == "years"
    words = ["--store", records.url, "--device", "NVIDIA H200", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "dejavu_client", "prewarm", "products", *words]
    env = environment(PYTHONPATH=str(HERE), XDG_CACHE_HOME=str(tmp_path / "user"))
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (4096, 4096))
    full = run_command(*command, env=env, preexec_fn=limit, check=False)
    assert full.returncode == 3, full.stderr
    assert "File too large" in full.stderr or "C compiler" in full.stderr
    assert "Traceback" not in full.stderr
    with subprocess.Popen(command, env=env) as ended:
        wait_until(lambda: any(tmp_path.glob(".out.*")))
        ended.terminate()
    assert ended.returncode == 128 + signal.SIGTERM
    assert {path.name for path in tmp_path.iterdir()} <= {"mine", "user"}


def test_a_worker_ends_silently_if_its_parent_did_before_it_asked() -> None:
    code = "from dejavu_cache.prewarm.worker import main; main()"
    ended = run_command(sys.executable, "-c", code, stdin=subprocess.DEVNULL, env=environment())
    assert (ended.stdout, ended.stderr) == ("", "")


@pytest.mark.skipif(triton.__version__ != "3.6.0", reason="the records are of Triton 3.6.0")
def test_the_example_image_compiles_what_its_records_name(tmp_path: Path) -> None:
    example = ROOT / "examples/container"
    records, out = FileStore(tmp_path / "records"), tmp_path / "tuned"
    assert dejavu("import", example / "records.jsonl", "--store", records.url).returncode == 0
    words = ("kernels", "--store", records.url, "--out", out, "--device", "NVIDIA H200")
    made = dejavu("prewarm", *words, PYTHONPATH=str(example / "app"))
    assert "2 scenarios of 1 kernel, 4 binaries" in made.stdout, made.stderr


ARCHITECTURES = ("sm_90", "sm_80")


def spec_of(folder: Path) -> PrewarmSpec:
    return PrewarmSpec(modules=("widening",), store=folder.as_uri(), devices=(), folder=str(folder))


def jobs_for(*architectures: str) -> list[CompileJob]:
    launch = RecordedLaunch(
        wheel=wheel(),
        signature={"x_ptr": "*fp8e5", "y_ptr": "*bf16", "BLOCK": "constexpr"},
        constants={"BLOCK": 256},
        attrs={"x_ptr": '[["tt.divisibility", 16]]', "y_ptr": '[["tt.divisibility", 16]]'},
        options={},
    )
    return [CompileJob(kernel="widening.widen", arch=arch, launch=launch) for arch in architectures]


def binaries(folder: Path, *architectures: str) -> dict[str, bytes]:
    """Compiles one kernel for them, and returns what became of it by its key in Triton's cache."""
    spec, jobs = spec_of(folder), jobs_for(*architectures)
    with closing(Compiler(spec)) as process:
        built = compile_all([process], jobs, ())
    assert [result.error for result in built.values()] == [""] * len(jobs)
    return {path.parent.name: path.read_bytes() for path in folder.rglob("*.cubin")}


def test_together_they_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    (tmp_path / "sitecustomize.py").write_text("import os; os.write(1, b'\\xff\\n')")
    monkeypatch.syspath_prepend(str(tmp_path))
    alone = [binaries(tmp_path / arch, arch) for arch in ARCHITECTURES]
    together = binaries(tmp_path / "together\udcff", *ARCHITECTURES)
    assert len(together) == 2
    assert together == {key: binary for built in alone for key, binary in built.items()}


def test_a_process_that_cannot_be_started_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    spec, jobs = spec_of(tmp_path), jobs_for(*ARCHITECTURES)
    with closing(Compiler(spec)) as process:
        monkeypatch.setattr(sys, "executable", "/nonexistent/python")
        with pytest.raises(PrewarmError, match="no process can be started"):
            compile_all([process], jobs, ())
