"""What the reports of benchmarks begin with, and where they are written."""

from __future__ import annotations

import json
import platform
from datetime import date
from pathlib import Path
from typing import Any

import torch
import triton

RESULTS = Path(__file__).resolve().parent / "results"


def describe_run(device: str = "") -> dict[str, Any]:
    """Return the date, the versions of what launches kernels, and the GPU, if it is not given."""
    if not device:
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    versions = {"torch": torch.__version__, "triton": triton.__version__}
    return {
        "date": date.today().isoformat(),
        "device": device,
        "versions": {"python": platform.python_version(), **versions},
    }


def write_report(folder: Path, name: str, report: dict[str, Any]) -> None:
    """Write a report to a file of a folder, which is made if there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(report, indent=1) + "\n")
