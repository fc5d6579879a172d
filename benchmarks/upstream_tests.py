"""Run Triton's own tests of its autotuner with Triton's and with this project's in its place.

    python benchmarks/upstream_tests.py path/to/triton/python/test/unit/runtime/test_autotuner.py

The file must be of the installed version of Triton; it needs a GPU. Prints JSON: the outcome of
each test where the two differ, and how many passed. Exits with 1 if any differ.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

PLUGIN = """
import os
import pytest

if os.environ["AUTOTUNER"] == "dejavu-cache":
    import dejavu_cache

    dejavu_cache.install()


@pytest.fixture
def device():
    return "cuda"


@pytest.fixture
def fresh_triton_cache(tmp_path, monkeypatch):
    from triton import knobs

    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    return str(tmp_path)


@pytest.fixture
def fresh_knobs(monkeypatch):
    from triton import knobs
    from triton._internal_testing import _fresh_knobs_impl

    fresh, reset = _fresh_knobs_impl()
    try:
        yield fresh()
    finally:
        reset()
"""


def outcomes(tests: Path, autotuner: str) -> dict[str, str]:
    """Return what became of each test."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "triton_fixtures.py").write_text(PLUGIN)
        report = Path(folder, "report.xml")
        environment = {
            **os.environ,
            "AUTOTUNER": autotuner,
            "PYTHONPATH": os.pathsep.join([folder, str(Path.cwd()), *sys.path]),
            "DEJAVU_CACHE_URL": f"{folder}/records",
            "TRITON_CACHE_DIR": f"{folder}/triton",
        }
        arguments = [
            "-q",
            "-p",
            "triton_fixtures",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
        ]
        subprocess.run(
            [sys.executable, "-m", "pytest", *arguments, str(tests)],
            env=environment,
            cwd=folder,
            stdout=sys.stderr,
            check=False,
        )
        found = {}
        for case in ElementTree.parse(report).iter("testcase"):
            child = case.find("*")
            found[case.attrib["name"]] = "passed" if child is None else child.tag
        return found


def main() -> int:
    tests = Path(sys.argv[1]).resolve()
    theirs, ours = outcomes(tests, "triton"), outcomes(tests, "dejavu-cache")
    names = {*theirs, *ours}
    differing = {
        name: [theirs.get(name), ours.get(name)]
        for name in sorted(names)
        if theirs.get(name) != ours.get(name)
    }
    count = {"tests": len(names), "passed": sum(v == "passed" for v in ours.values())}
    print(json.dumps({**count, "differing": differing}, indent=1))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
