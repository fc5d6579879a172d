"""Read the result files of other autotuners, and say which launches can take the results over."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from ..errors import DamagedRecordsError, StoreError
from ..model.foreign_result import ForeignResult, ForeignTiming, alphanumeric, version_order
from ..model.scenario import Config
from ..system.notices import warn_once
from ..system.safe_files import read_file
from .tuned_tables import LORA_KERNELS, SIZE, launches_of, parse_labels, read_lora

__all__ = ["READERS", "Reader", "read_foreign_files", "report_matches"]

_OPTIONS = frozenset({"num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override"})
_REMOVED_FIELDS = frozenset(
    {"num_buffers_warp_spec", "num_consumer_groups", "reg_dec_producer", "reg_inc_consumer"}
)
"""Fields of `triton.Config` that later versions of Triton dropped."""

_IGNORED = _REMOVED_FIELDS | {"pre_hook"}


def _parse_config(fields: Mapping[str, Any]) -> Config:
    """Parse a `triton.Config` from its fields, meta-parameters under `kwargs` or beside it.

    Raises:
        ValueError: these are no fields, or a value is none of a config.
    """
    if not isinstance(fields, Mapping) or not isinstance(fields.get("kwargs", {}), Mapping):
        raise ValueError(f"{fields!r:.100} is no config")
    values = {**fields.get("kwargs", {}), **fields}
    values.pop("kwargs", None)
    params = {
        name: value
        for name, value in values.items()
        if name not in _OPTIONS and name not in _IGNORED
    }
    options = {
        name: value for name, value in values.items() if name in _OPTIONS and value is not None
    }
    return Config(params=params, options=options)


def _finite_times(times: Any) -> list[float]:
    """Return times as floats, or none if one is infinite, which marks a config that failed."""
    values = [float(value) for value in (times if isinstance(times, list) else [times])]
    return values if all(0 <= value < float("inf") for value in values) else []


def read_triton_autotuner(path: Path, content: Mapping[str, Any]) -> Iterator[ForeignResult]:
    """Read `HASH/KERNEL.autotune.json` in Triton's cache folder: the timings of every config."""
    timings = []
    for config, raw_times in content["configs_timings"]:
        if times := _finite_times(raw_times):
            quantiles = dict(zip(("median", "p20", "p80"), times, strict=False))
            timings.append(ForeignTiming(config=_parse_config(config), **quantiles))
    if timings:
        yield ForeignResult(
            origin="triton",
            function=path.name.removesuffix(".autotune.json"),
            key=tuple(map(str, content["key"])),
            proof=path.parent.name,
            timings=tuple(sorted(timings, key=lambda timing: timing.median or 0.0)),
        )


def read_triton_dejavu(path: Path, content: Mapping[str, Any]) -> Iterator[ForeignResult]:
    """Read `…/triton_3.3.1/…/gpu_NVIDIA_H100/KERNEL/…/cache.json`: the best config of each key."""
    versions = dict(part.split("_", 1) for part in path.parts if "_" in part)
    function = re.sub(r".*:|\)$", "", content["signature"])
    for key, config in content["cache"].items():
        times = _finite_times(content.get("timings", {}).get(key, []))
        timing = ForeignTiming(
            config=_parse_config(_parse_fields(config)), median=times[0] if times else None
        )
        values = tuple(map(str, ast.literal_eval(key)))
        names = content.get("keys") or ()
        # Its values are the arguments' in the order of `keys`; dtypes may follow them.
        yield ForeignResult(
            origin="triton-dejavu",
            function=function,
            named=dict(zip(names, values, strict=False)),
            key=values[len(names) :],
            device=alphanumeric(versions.get("gpu", "")),
            triton=versions.get("triton", ""),
            timings=(timing,),
        )


def _parse_fields(text: str) -> dict[str, Any]:
    """Parse a config as `str(triton.Config)` prints it: `BLOCK: 64, num_warps: 8`."""
    pairs = (field.partition(": ") for field in text.split(", "))
    return {name: _parse_value(value) for name, _, value in pairs}


def _parse_value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def read_flash_linear_attention(path: Path, content: Mapping[str, Any]) -> Iterator[ForeignResult]:
    """Read `GPU/KERNEL.json`: the best config of each key."""
    for entry in (content.get("autotune_entries") or {}).values():
        yield ForeignResult(
            origin="fla",
            function=content.get("kernel_name") or path.stem,
            key=tuple(map(str, entry["autotune_key"])),
            device=alphanumeric(path.parent.name),
            triton=content.get("triton_version") or "",
            timings=(ForeignTiming(config=_parse_config(entry["config"])),),
        )


def read_table(path: Path, content: Mapping[str, Any]) -> Iterator[ForeignResult]:
    """Read a table of vLLM or SGLang, which holds the best config of each batch size.

    A table of an operation that is not known, which an engine's folder may have too, is left out
    with a warning.

    Raises:
        ValueError: the file has another form.
    """
    labels = parse_labels(path.stem)
    launches = launches_of({name: labels[name] for name in labels if name != "device_name"})
    if launches is None:
        about = ", ".join(labels)
        warn_once(str(path), f"{path} is left out: its table, of {about}, is of no known operation")
        return
    triton = content.get("triton_version") or _version_of(path.parent.name)
    for size, config in content.items():
        if size == "triton_version":
            continue
        if not size.isdecimal():
            raise ValueError(f"{size!r} is no batch size")
        yield _table_line(*launches, labels["device_name"], size, config, triton)


def read_lora_table(path: Path, content: Mapping[str, Any]) -> Iterator[ForeignResult]:
    """Read a file of LoRA; nothing if its name is not one of them.

    Raises:
        ValueError: the file has another form.
    """
    for line in read_lora(path.stem, content):
        function = LORA_KERNELS[line.labels["lora"]]
        yield _table_line(function, line.labels, line.device, line.size, line.config)


def _table_line(
    function: str,
    named: Mapping[str, str],
    device: str,
    size: str,
    config: Mapping[str, Any],
    triton: str = "",
) -> ForeignResult:
    return ForeignResult(
        origin="vllm",
        function=function,
        named={**named, SIZE: size},
        device=device,
        triton=triton,
        timings=(ForeignTiming(config=_parse_config(config)),),
    )


def _version_of(folder: str) -> str:
    """Return the version in the name of a folder such as `triton_3_4_0`, or an empty string."""
    match = re.fullmatch(r"triton_(\d+)_(\d+)_(\d+)", folder)
    return ".".join(match.groups()) if match else ""


class Reader(NamedTuple):
    """Reads one kind of file.

    Attributes:
        pattern: of the files' names.
        read: yields the results of a file: `(path, content)`.
    """

    pattern: str
    read: Callable[[Path, Mapping[str, Any]], Iterator[ForeignResult]]


READERS = {
    "triton": (Reader("*.autotune.json", read_triton_autotuner),),
    "triton-dejavu": (Reader("cache.json", read_triton_dejavu),),
    "fla": (Reader("*.json", read_flash_linear_attention),),
    "vllm": (
        Reader("*device_name=*.json", read_table),
        Reader("*_SHRINK.json", read_lora_table),
        Reader("*_EXPAND*.json", read_lora_table),
    ),
}

_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    SyntaxError,
    RecursionError,
    MemoryError,  # raised by `ast.literal_eval` for text that is nested too deeply
)


def read_foreign_files(origin: str, folder: Path) -> list[ForeignResult]:
    """Read all results in a folder of another tool's files.

    Args:
        origin: the tool: a key of `READERS`.
        folder: the folder, searched with its subfolders.

    Raises:
        StoreError: the folder does not exist.
        DamagedRecordsError: a file is not in the tool's format; the message names it.
    """
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder")
    results: list[ForeignResult] = []
    for reader in READERS[origin]:
        for path in sorted(folder.rglob(reader.pattern)):
            try:
                results += reader.read(path, _read_object(path))
            except _UNREADABLE as error:
                raise DamagedRecordsError(
                    f"{path} does not hold what {origin} writes: {_reason(error)}; "
                    "nothing was imported"
                ) from None
    return results


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():  # opening a pipe would wait for its writer
        raise ValueError("it is no file")
    content = json.loads(read_file(path.resolve()).decode())  # caches of downloads have links
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")
    return content


def _reason(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"


_SHOWN = 4
"""Versions of Triton that are named."""


def report_matches(results: Iterable[ForeignResult], installed: str) -> list[str]:
    """Return lines that say which results can match a launch here.

    Args:
        results: as they were read.
        installed: the version of Triton; empty where it is not installed.
    """
    every = [result for result in results if not result.proof]  # Triton's own prove their kernel
    if not every:
        return []
    named = [result for result in every if result.named]
    ordered = [result for result in every if not result.named and _has_dtypes(result)]
    lost = len(every) - len(named) - len(ordered)
    ways = [
        f"{len(named)} by the names of arguments" if named else "",
        f"{len(ordered)} by their order and dtypes" if ordered else "",
        f"{lost} never, as they have neither names nor dtypes" if lost else "",
    ]
    usable = [*named, *ordered]
    versions = {result.triton for result in usable} - {"", installed}
    other = sorted(versions, key=version_order, reverse=True)
    strangers = sum(result.triton in other for result in usable)
    lines = [f"match: {', '.join(filter(None, ways))}"]
    if strangers:
        shown = ", ".join([*other[:_SHOWN], *(["…"] if len(other) > _SHOWN else [])])
        here = f"Triton {installed}" if installed else "the Triton that will run"
        lines.append(
            f"{len(usable) - strangers} of these are of {here} or of no version; {strangers} of "
            f"others ({shown}) serve with DEJAVU_CACHE_TOOLCHAIN=loose"
        )
    return lines


def _has_dtypes(result: ForeignResult) -> bool:
    return any(value.startswith("torch.") for value in result.key)
