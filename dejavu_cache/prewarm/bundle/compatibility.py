"""Check whether a machine can use a prewarmed folder, before anything in it is loaded."""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ...errors import BundleError
from ...model.scenario import Device
from ...stores.manifest import Manifest, is_prewarmed, verify_folder
from ...triton_internals.environment import nominal_memory, triton_version
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
            return verify_folder(path)
        if (path / "oci-layout").is_file():
            return read_bundle(*bundle_in(path))
        raise BundleError(f"{path} is neither a prewarmed folder nor an image layout")
    return read_bundle(path)


def compatibility_checks(manifest: Manifest, *, device: bool = True) -> list[CompatibilityCheck]:
    """Compare a folder's requirements with this machine.

    Args:
        manifest: the manifest of the folder.
        device: whether to look at the GPUs of this machine; a builder has none.
    """
    checks = _software(manifest)
    return [*checks, *_devices(manifest)] if device else checks


def _software(manifest: Manifest) -> list[CompatibilityCheck]:
    """Compare the platform, Python and Triton."""
    abi = str(sysconfig.get_config_var("EXT_SUFFIX"))
    checks = [
        _equality("platform", manifest.platform, sysconfig.get_platform()),
        _equality("python", manifest.abi, abi),
    ]
    here = triton_version()
    if here is None:
        return [*checks, CompatibilityCheck("triton", "wrong", manifest.triton, "not installed")]
    checks.append(_equality("triton", manifest.triton, here))
    if checks[-1].state == "ok":
        from ...triton_internals.compilation import wheel

        checks.append(_equality("wheel", manifest.wheel, wheel()))
    return checks


def _equality(name: str, wanted: str, here: str) -> CompatibilityCheck:
    return CompatibilityCheck(name, "ok" if wanted == here else "wrong", wanted, here)


def _devices(manifest: Manifest) -> list[CompatibilityCheck]:
    """Compare every GPU of this machine with the manifest's devices, then the driver."""
    gpus, driver = _gpus()
    names = ", ".join(device.name for device in manifest.devices)
    if not gpus:
        return [CompatibilityCheck("device", "unknown", names, "no GPU")]
    checks = []
    for number, gpu in enumerate(gpus):
        label = f"device {number}" if len(gpus) > 1 else "device"
        named = next((device for device in manifest.devices if device.name == gpu.name), None)
        if named is None:
            archs = {device.arch for device in manifest.devices}
            checks.append(CompatibilityCheck(label, "wrong", names, gpu.name))
            checks.append(_membership(f"{label} arch", archs, gpu.arch))
            continue
        checks += [
            _equality(label, named.name, gpu.name),
            _equality(f"{label} arch", named.arch, gpu.arch),
            _equality(f"{label} units", str(named.units), str(gpu.units)),
            _equality(f"{label} memory", f"{named.memory_gib} GiB", f"{gpu.memory_gib} GiB"),
        ]
    least = max((_least_driver(device, manifest) for device in manifest.devices), default=0)
    if driver and least:
        enough = int(driver.partition(".")[0]) >= least
        checks.append(
            CompatibilityCheck("driver", "ok" if enough else "wrong", f"{least} or later", driver)
        )
    return checks


def _membership(name: str, wanted: set[str], here: str) -> CompatibilityCheck:
    return CompatibilityCheck(
        name, "ok" if here in wanted else "wrong", ", ".join(sorted(wanted)), here
    )


_BY_ARCH = {"sm_90": 520, "sm_100": 570, "sm_103": 575, "sm_120": 570, "sm_121": 580}
_BY_CUDA = {"11": 450, "12": 525, "13": 580}
"""First branch of NVIDIA's driver for an architecture, and for the binaries of a CUDA release."""


def _least_driver(device: Device, manifest: Manifest) -> int:
    """Return the first branch of NVIDIA's driver that runs a device's binaries; 0 if unknown."""
    codegen = manifest.codegen.get(device.name, "")
    if not codegen.startswith("ptxas "):
        return 0
    return max(_BY_ARCH.get(device.arch, 0), _BY_CUDA.get(codegen[6:].partition(".")[0], 0))


def _gpus() -> tuple[list[Device], str]:
    """Return this machine's GPUs and its driver's version, or nothing if they are unknown."""
    try:
        import torch

        count = torch.cuda.device_count()
        gpus = [_gpu(torch, index) for index in range(count)]
    except Exception:  # no torch, no driver, or a broken one
        return [], ""
    return gpus, _driver()


def _gpu(torch: Any, index: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    arch = str(getattr(properties, "gcnArchName", "")).partition(":")[0]
    return Device(
        name=properties.name.strip(),
        arch=arch if torch.version.hip else f"sm_{properties.major * 10 + properties.minor}",
        units=properties.multi_processor_count,
        memory_gib=nominal_memory(properties.total_memory),
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
