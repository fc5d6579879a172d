"""The toolchain of the machine that prewarms, beside the one that made the records."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import PrewarmError
from ..model.scenario import Device, Environment
from ..triton_internals.compilation import target_of
from ..triton_internals.environment import backend_hash, compiler_settings, describe_codegen
from .compilers import PrewarmSpec

__all__ = ["Toolchain", "builder_toolchain", "installed_triton", "is_alike", "refuse_toolchain"]


class Toolchain(NamedTuple):
    """What decides, besides the source and the device, which binary a compilation gives."""

    triton: str
    codegen: str
    variables: dict[str, str]


def builder_toolchain(device: Device) -> Toolchain:
    """Return the builder's toolchain for a device."""
    try:
        backend = backend_hash(target_of(device))
    except Exception as error:
        raise PrewarmError(
            f"--device {device.name!r}: nothing can be compiled for it here: {error}"
        ) from None
    return Toolchain(installed_triton(), describe_codegen(backend), compiler_settings())


def is_alike(environment: Environment, here: Toolchain) -> bool:
    """Return whether records were made with the same toolchain."""
    return (environment.triton, environment.codegen, environment.variables) == here


def refuse_toolchain(spec: PrewarmSpec, theirs: Environment, here: Toolchain) -> None:
    """Refuse records of another toolchain, unless that is allowed.

    Raises:
        PrewarmError: it is not allowed; the message names the remedy.
    """
    if spec.allowed.triton:
        return
    if theirs.triton != here.triton:
        remedy = f"pip install triton=={theirs.triton}"
    elif theirs.codegen != here.codegen:
        remedy = f"install the build of Triton that brings {theirs.codegen}"
    else:
        variables = (
            " ".join(f"{name}={value}" for name, value in theirs.variables.items())
            or "none of them"
        )
        remedy = f"set the variables that change what Triton generates as they were: {variables}"
    raise PrewarmError(
        f"the records for {theirs.device.name} were made by Triton {theirs.triton} with "
        f"{theirs.codegen}, and this is Triton {here.triton} with {here.codegen}: {remedy}, "
        "or take the records alone with --allow-other-triton"
    )


def installed_triton() -> str:
    """Return the version of the installed Triton."""
    import triton

    return str(triton.__version__)
