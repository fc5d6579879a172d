"""Install the wheel and the sdist into clean environments, try each, and add rows to a table.

    python tools/clean_installs.py [--dist FOLDER] [--out FILE] [--only CASE…] --python PYTHON…

`make clean-installs` and the release run this. uv installs, and its variables count, such as
`UV_TORCH_BACKEND=cpu` and `UV_CONSTRAINT`. Of each environment, all commands must succeed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "benchmarks" / "results" / "clean-installs.md"
HEAD = """# Clean installs

Each row is an environment of its own, in which `tools/clean_installs.py` installed one file with
the newest dependencies that the run's constraints allowed, and tried it. Seconds are those of the
installation by uv, of which some files were in its cache.

| Python | installed | seconds | packages | MB | Torch, Triton | tried |
|---|---|---|---|---|---|---|
"""
RECORDS = "from dejavu_cache.stores import shipped_stores; print(shipped_stores()[0].root)"
LOOK = f"""
dejavu-cache doctor
dejavu-cache show qblock_kernel --store "$(python -c '{RECORDS}')" --json | grep -q median
"""
PUBLISH = f"""
dejavu-cache export set --store "$(python -c '{RECORDS}')" --sign key --new-key > line
dejavu-cache use "file://$PWD/set" --key "$(sed 's/.* //' line)" --device H200 --triton 3.6.0
"""
QUICKSTART = """
test "$(python $ROOT/examples/quickstart.py)" = "benchmarked 6 configs"
test "$(python $ROOT/examples/quickstart.py)" = "benchmarked 0 configs"
"""
SERVE = "dejavu-cache db upgrade --database sqlite:///$PWD/database; dejavu-cache serve --help"
CASES = {
    "core": ("", "a look at its records", LOOK),
    "sdist": ("", "a look at its records", LOOK),
    "server": ("[server]", "a database made", SERVE),
    "signed": ("[signed]", "a set signed and verified", PUBLISH),
    "sweep": ("[sweep]", "its command", "python -c 'import numpy'; dejavu-cache sweep --help"),
    "gpu": ("[gpu]", "the quick start, twice", QUICKSTART),
    "all": ("[gpu,otel,ray,server,signed,sweep]", "all of these", QUICKSTART + PUBLISH + SERVE),
}
"""Extras by case, what is tried with them, and how."""


def main() -> int:
    """Try each case with each Python; return 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dist", type=Path, help="where the wheel and the sdist are; else built")
    parser.add_argument("--out", type=Path, default=OUT, help="the table")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--python", nargs="+", default=[sys.executable])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dist = options.dist or Path(folder, "dist")
        if not options.dist:
            read("uv", "build", "-q", "--out-dir", dist, ROOT)
        failed = False
        for python in options.python:
            for case in options.only:
                row = try_case(python, case, dist.resolve())
                failed |= row.endswith("**failed** |")
                print(row, flush=True)
                add_row(options.out, row)
    return int(failed)


def try_case(python: str, case: str, dist: Path) -> str:
    """Return the row of one environment, which is made, tried and deleted."""
    extras, tried, script = CASES[case]
    (file,) = dist.glob("*.tar.gz" if case == "sdist" else "*.whl")
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        bin_ = home / "venv" / "bin"
        requirements = [f"dejavu-cache{extras} @ {file.as_uri()}"]
        if "gpu" in extras:  # of Triton's interpreter, as the quick start says
            requirements.append("numpy<2.4")
        start = time.monotonic()
        read("uv", "venv", "-q", "--python", python, home / "venv")
        read("uv", "pip", "install", "-q", "--python", bin_ / "python", *requirements)
        seconds = time.monotonic() - start
        outer = {key: value for key, value in os.environ.items() if not key.startswith("DEJAVU_")}
        environment = {**outer, "HOME": name, "ROOT": str(ROOT), "TRITON_INTERPRET": "1"}
        environment |= {"PATH": f"{bin_}:{os.environ['PATH']}", "PYTHONPATH": ""}
        version = 'test "$(dejavu-cache --version)" = "dejavu-cache $VERSION"\n'
        environment["VERSION"] = file.name.split("-")[1].removesuffix(".tar.gz")
        trial = subprocess.run(
            ["sh", "-exc", version + script],
            cwd=home,
            env=environment,
            capture_output=True,
            text=True,
        )
        if trial.returncode:
            print(trial.stdout[-2000:], trial.stderr[-4000:], file=sys.stderr)
        listed = read("uv", "pip", "list", "--python", bin_ / "python", "--format", "freeze")
        packages = dict(line.split("==") for line in listed.split())
        size = sum(p.stat().st_size for p in (home / "venv").rglob("*") if p.is_file())
        number = read(bin_ / "python", "-V").split()[1]
    versions = [packages[name] for name in ("torch", "triton") if name in packages]
    what = "sdist" if case == "sdist" else f"wheel{extras}"
    cells = [number, f"`{what}`", f"{seconds:.0f}", len(packages), size // 10**6]
    cells += [", ".join(versions), "**failed**" if trial.returncode else tried]
    return f"| {' | '.join(map(str, cells))} |"


def read(*command: str | Path) -> str:
    """Return what a command prints that must succeed."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def add_row(table: Path, row: str) -> None:
    """Put a row into a table, instead of that of the same Python and file."""
    lines = table.read_text("utf-8").splitlines() if table.exists() else []
    rows = {tuple(line.split("|")[1:3]): line for line in [*lines, row] if line[2:3].isdigit()}
    ordered = sorted(rows, key=lambda key: [int(part) for part in key[0].split(".")])
    table.write_text(HEAD + "".join(f"{rows[key]}\n" for key in ordered), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
