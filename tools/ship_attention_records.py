"""Make the records that ship with the attention kernels; `make shipped` runs this.

`tools/shipped_records.json` says what is swept.
Sweeping needs the GPU that the records are for; `--dry-run` prints the commands on any machine.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PLAN = ROOT / "tools" / "shipped_records.json"


def commands(plan: dict[str, Any]) -> list[list[str]]:
    """Return the arguments of `dejavu-cache`, in the order in which they are run."""
    store = ["--store", (ROOT / plan["records"]).as_uri()]
    sweeps = [
        ["sweep", plan["suite"], *_option_arguments({**plan["options"], **sweep}), *store]
        for sweep in plan["sweeps"]
    ]
    return [*sweeps, ["gc", "--yes", *store]]


def _option_arguments(options: dict[str, str]) -> list[str]:
    return [f"--option={name}={value}" for name, value in options.items()]


def main() -> int:
    """Run the commands until one fails, or print them; return the exit status."""
    dry_run = "--dry-run" in sys.argv[1:]
    paths = [str(ROOT), str(ROOT / "client"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    for arguments in commands(json.loads(PLAN.read_text(encoding="utf-8"))):
        print("dejavu-cache", shlex.join(arguments), flush=True)
        if dry_run:
            continue
        command = [sys.executable, "-m", "dejavu_client", *arguments]
        status = subprocess.run(command, env=environment, check=False).returncode
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
