"""Check whether a machine can use a prewarmed folder, before anything in it is loaded."""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ...errors import BundleError
from ...stores.manifest import Manifest, checked, is_prewarmed
from .archive import read_bundle
from .oci_image import bundle_in

__all__ = ["CompatibilityCheck", "compatibility_checks", "read_any"]


class CompatibilityCheck(NamedTuple):
    """The comparison of one property of a prewarmed folder with this machine.

    Attributes:
        state: `unknown` where this machine has nothing to compare with.
    """

    name: str
    state: Literal["ok", "wrong", "unknown"]
    wanted: str
    here: str


def read_any(path: Path) -> Manifest:
    """Check a bundle, a prewarmed folder or an image layout, and return its manifest.

    Raises:
        BundleError: it is damaged, or none of these.
    """
    if not path.exists():
        raise BundleError(f"{path} is not there")
    if path.is_dir():
        if is_prewarmed(path):
            return checked(path)
        if (path / "oci-layout").is_file():
            return read_bundle(bundle_in(path))
        raise BundleError(f"{path} is neither a prewarmed folder nor an image layout")
    return read_bundle(path)


def compatibility_checks(manifest: Manifest, *, device: bool = True) -> list[CompatibilityCheck]:
    """Compare a folder's requirements with this machine.

    Args:
        manifest: the manifest of the folder.
        device: whether to look at the GPUs of this machine; a builder has none.
    """
    found = _software(manifest)
    return [*found, *_devices(manifest)] if device else found


def _software(manifest: Manifest) -> list[CompatibilityCheck]:
    ours = str(sysconfig.get_config_var("EXT_SUFFIX"))
    found = [
        _same("platform", manifest.platform, sysconfig.get_platform()),
        _same("python", manifest.abi, ours),
    ]
    try:
        here = version("triton")
    except PackageNotFoundError:
        return [*found, CompatibilityCheck("triton", "wrong", manifest.triton, "not installed")]
    found.append(_same("triton", manifest.triton, here))
    if found[-1].state == "ok":
        from ...triton_internals.compilation import wheel

        found.append(_same("wheel", manifest.wheel, wheel()))
    return found


def _same(name: str, wanted: str, here: str) -> CompatibilityCheck:
    return CompatibilityCheck(name, "ok" if wanted == here else "wrong", wanted, here)


class _Gpu(NamedTuple):
    name: str
    arch: str
    units: int
    memory_gib: int


def _devices(manifest: Manifest) -> list[CompatibilityCheck]:
    gpus, driver = _gpus()
    if not gpus:
        return [
            CompatibilityCheck(
                "device", "unknown", ", ".join(each.name for each in manifest.devices), "no GPU"
            )
        ]
    found = []
    for number, gpu in enumerate(gpus):
        told = f"device {number}" if len(gpus) > 1 else "device"
        named = next((each for each in manifest.devices if each.name == gpu.name), None)
        if named is None:
            wanted = ", ".join(each.name for each in manifest.devices)
            found.append(CompatibilityCheck(told, "wrong", wanted, gpu.name))
            found.append(_any(f"{told} arch", {each.arch for each in manifest.devices}, gpu.arch))
            continue
        found += [
            _same(told, named.name, gpu.name),
            _same(f"{told} arch", named.arch, gpu.arch),
            _same(f"{told} units", str(named.units), str(gpu.units)),
            _same(f"{told} memory", f"{named.memory_gib} GiB", f"{gpu.memory_gib} GiB"),
        ]
    least = max((_least_driver(each, manifest) for each in manifest.devices), default=0)
    if driver and least:
        enough = int(driver.partition(".")[0]) >= least
        found.append(
            CompatibilityCheck("driver", "ok" if enough else "wrong", f"{least} or later", driver)
        )
    return found


def _any(name: str, wanted: set[str], here: str) -> CompatibilityCheck:
    return CompatibilityCheck(
        name, "ok" if here in wanted else "wrong", ", ".join(sorted(wanted)), here
    )


_BY_ARCH = {"sm_90": 520, "sm_100": 570, "sm_103": 575, "sm_120": 570, "sm_121": 580}
_BY_CUDA = {"11": 450, "12": 525, "13": 580}
"""First branch of NVIDIA's driver for an architecture, and for the binaries of a CUDA release."""


def _least_driver(device: Any, manifest: Manifest) -> int:
    codegen = manifest.codegen.get(device.name, "")
    if not codegen.startswith("ptxas "):
        return 0
    return max(_BY_ARCH.get(device.arch, 0), _BY_CUDA.get(codegen[6:].partition(".")[0], 0))


def _gpus() -> tuple[list[_Gpu], str]:
    """Return this machine's GPUs and its driver's version, or nothing if they are unknown."""
    try:
        import torch

        count = torch.cuda.device_count()
        gpus = [_gpu(torch, each) for each in range(count)]
    except Exception:  # no torch, no driver, or a broken one
        return [], ""
    return gpus, _driver()


def _gpu(torch: Any, index: int) -> _Gpu:
    properties = torch.cuda.get_device_properties(index)
    arch = str(getattr(properties, "gcnArchName", "")).partition(":")[0]
    return _Gpu(
        properties.name.strip(),
        arch if torch.version.hip else f"sm_{properties.major * 10 + properties.minor}",
        properties.multi_processor_count,
        round(properties.total_memory / 2**30),
    )


def _driver() -> str:
    """Return the version of NVIDIA's driver, or an empty string if there is none."""
    if not sys.platform.startswith("linux"):
        return ""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        if library.nvmlInit_v2():
            return ""
        text = ctypes.create_string_buffer(96)
        failed = library.nvmlSystemGetDriverVersion(text, len(text))
        library.nvmlShutdown()
    except (OSError, AttributeError):
        return ""
    return "" if failed else text.value.decode()
