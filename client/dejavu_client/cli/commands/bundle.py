"""`bundle`: archives and OCI images of prewarmed folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dejavu_cache.errors import SettingsError
from dejavu_cache.stores.manifest import Manifest
from dejavu_cache.system.notices import counted, size_text

from ..options import JsonOption
from ..output import say, show_json, show_table

__all__ = ["register"]

PathArgument = Annotated[
    Path, typer.Argument(metavar="PATH", help="A bundle, a prewarmed folder, or an image layout.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="A prewarmed folder as one file, or as an image: made, looked at, checked, unpacked.",
        no_args_is_help=True,
    )
    for command in (create, inspect, verify, extract):
        group.command()(command)
    app.add_typer(group, name="bundle")


def create(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that prewarm made.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file; with --oci, a new folder.")],
    oci: Annotated[
        bool, typer.Option("--oci", help="Write an OCI image layout, for registries and cosign.")
    ] = False,
    kernel_cache: Annotated[
        bool,
        typer.Option(
            "--kernel-cache",
            help="Write an image layout that KServe's KernelCache and MCV extract.",
        ),
    ] = False,
) -> None:
    """Pack a prewarmed folder; the same folder always gives the same bytes."""
    from dejavu_cache.prewarm.bundle import archive
    from dejavu_cache.prewarm.bundle.oci_image import bundle_in, write_layout

    if oci and kernel_cache:
        raise SettingsError("--oci and --kernel-cache are two images: name one of them")
    if kernel_cache:
        from dejavu_cache.prewarm.bundle.oci_image import write_kernel_cache

        entries = write_kernel_cache(folder, out)
        say(f"{out}: {entries} compiled kernels for Triton's cache")
        return
    if oci:
        manifest = write_layout(folder, out)
        size = bundle_in(out)[0].stat().st_size
    else:
        manifest, digests = archive.create(folder, out)
        size = digests.size
    files = counted(len(manifest.files), "file")
    say(f"{out}: {files}, {size_text(size)}, digest {manifest.digest}")


def inspect(path: PathArgument, as_json: JsonOption = False) -> None:
    """Say what is in a bundle."""
    from dejavu_cache.prewarm.bundle.compatibility import read_any

    manifest = read_any(path)
    if as_json:
        show_json({"digest": manifest.digest, **manifest.model_dump(mode="json")})
        return
    _say_manifest(manifest)


def _say_manifest(manifest: Manifest) -> None:
    binaries = sum(name.endswith((".cubin", ".hsaco")) for name in manifest.files)
    modules = sum(name.endswith(manifest.abi) for name in manifest.files)
    size = sum(file.size for file in manifest.files.values())
    say(f"digest    {manifest.digest}")
    say(f"schema    {manifest.schema_version}, by dejavu-cache {manifest.made_by}")
    say(f"triton    {manifest.wheel}")
    say(f"targets   {', '.join(manifest.targets)}")
    for device in manifest.devices:
        say(
            f"device    {device.name}: {device.arch}, {device.units} units, "
            f"{device.memory_gib} GiB, {manifest.codegen.get(device.name, 'compiler unknown')}"
        )
    say(
        f"files     {len(manifest.files)}: {counted(binaries, 'binary', 'binaries')}, "
        f"{counted(modules, 'host module')}, {size_text(size)}"
    )
    rows = [
        (kernel.name, kernel.scenarios, kernel.binaries, kernel.source)
        for kernel in manifest.kernels
    ]
    show_table(["kernel", "scenarios", "binaries", "source"], rows)


def verify(
    path: PathArgument,
    device: Annotated[
        bool, typer.Option(help="Look at this machine's GPUs; a builder has none.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Check a bundle's digests and whether this machine can use it; exits 1 if it cannot."""
    from dejavu_cache.prewarm.bundle.compatibility import compatibility_checks, read_any

    manifest = read_any(path)
    comparison = compatibility_checks(manifest, device=device)
    if as_json:
        show_json([field._asdict() for field in comparison])
    else:
        say(
            f"{path}: {counted(len(manifest.files), 'file is', 'files are')} as the manifest says, "
            f"digest {manifest.digest}"
        )
        show_table(
            ["field", "", "made for", "here"],
            [(field.name, field.state, field.wanted, field.here) for field in comparison],
        )
    if any(field.state != "ok" for field in comparison):
        raise typer.Exit(1)


def extract(
    path: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle, or an image layout.")],
    out: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make.")],
) -> None:
    """Unpack a bundle into a new folder after checking all of it."""
    from dejavu_cache.prewarm.bundle import archive
    from dejavu_cache.prewarm.bundle.oci_image import bundle_in

    if path.is_dir() and not (path / "oci-layout").is_file():
        raise SettingsError(f"{path} is a folder: name a bundle, or an image layout")
    file, blob = bundle_in(path) if path.is_dir() else (path, None)
    manifest = archive.extract(file, out, blob)
    say(f"{out}: {counted(len(manifest.files), 'file')}, digest {manifest.digest}")
