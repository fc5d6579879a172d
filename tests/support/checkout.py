"""Paths of this checkout, and the environment of processes that import it."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "programs"


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment with the checkout's packages on the path."""
    more_path = more.pop("PYTHONPATH", "")
    ours = map(str, (ROOT, ROOT / "client", ROOT / "service", ROOT / "tests"))
    path = [*ours, more_path, os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        # A file that is edited twice within a second would be read from its bytecode.
        "PYTHONDONTWRITEBYTECODE": "1",
        **more,
    }
