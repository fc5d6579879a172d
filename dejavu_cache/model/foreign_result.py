"""What other tools found: Triton's own disk results, triton-dejavu's, FLA's and vLLM's.

Their files say which config was best for a launch, in terms of that launch: the values of its key and the dtypes of its
tensors, without the names of the tensors, and (but for Triton's) without the code. So they are kept as they are, and
compared with a launch when one misses: see `Imported.fits`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import SettingsError, StoreError
from .scenario import Config, Milliseconds, Text

__all__ = [
    "READERS",
    "Imported",
    "Timing",
    "letters",
    "read_foreign",
    "read_imported",
    "write_imported",
]

_OPTIONS = frozenset({"num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override"})
_GONE = frozenset(
    {
        "num_buffers_warp_spec",
        "num_consumer_groups",
        "reg_dec_producer",
        "reg_inc_consumer",
        "pre_hook",
    }
)
"""What a `triton.Config` carried once, and what cannot be written down."""


class Timing(BaseModel):
    """One config, and how long it took if that is known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: Config
    median: Milliseconds | None = None
    p20: Milliseconds | None = None
    p80: Milliseconds | None = None

    def means(self, declared: Config) -> bool:
        """Whether this is a declared config; what one side does not say of the compiler's options, it leaves open."""
        said, options = self.config.options, declared.options
        return self.config.params == declared.params and all(
            options[name] == said[name] for name in said if name in options
        )


class Imported(BaseModel):
    """What another tool found for one launch.

    Attributes:
        origin: whose it is.
        function: the kernel's name, without its module.
        key: the key arguments' values, then the tensors' dtypes, as text, in a launch's order.
        named: instead of a key, values by argument.
        device: the GPU's name, letters and digits only; empty if the file does not say.
        triton: the Triton version; empty if the file does not say.
        proof: what Triton's own hash of kernel, configs, compiler and key is, for its own results.
        timings: the configs, the best first.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    origin: Literal["triton", "triton-dejavu", "fla", "vllm"]
    function: Text
    key: tuple[str, ...] = ()
    named: dict[str, str] = Field(default_factory=dict)
    device: str = ""
    triton: str = ""
    proof: str = ""
    timings: tuple[Timing, ...] = Field(min_length=1)

    def fits(
        self, keys: Sequence[Sequence[str]], named: dict[str, str], device: str, triton: str
    ) -> bool:
        """Whether this speaks of a launch, on a device, with a Triton.

        Args:
            keys: the launch's key as it is, and as its buckets make it.
            named: the launch's key arguments by name, as its buckets make them.
        """
        same_key = (
            self.key in [tuple(key) for key in keys]
            if self.key
            else self.named.items() <= named.items()
        )
        return same_key and self.device in ("", letters(device)) and self.triton in ("", triton)


def letters(name: str) -> str:
    """A device's name without what each tool replaces by something else."""
    return re.sub(r"[^0-9A-Za-z]+", "", name)


def _config(values: dict[str, Any]) -> Config:
    held = {
        **values.get("kwargs", {}),
        **{name: value for name, value in values.items() if name != "kwargs"},
    }
    options = {
        name: value for name, value in held.items() if name in _OPTIONS and value is not None
    }
    params = {
        name: value for name, value in held.items() if name not in _OPTIONS and name not in _GONE
    }
    return Config(params=params, options=options)


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def read_triton(folder: Path) -> Iterator[Imported]:
    """Triton's cache folder: `HASH/KERNEL.autotune.json`, with every config's timings."""
    for path in sorted(folder.rglob("*.autotune.json")):
        held = _json(path)
        timings = [
            Timing(
                config=_config(config),
                **dict(zip(("median", "p20", "p80"), _finite(times), strict=False)),
            )
            for config, times in held["configs_timings"]
            if _finite(times)
        ]
        if timings:
            yield Imported(
                origin="triton",
                function=path.name.removesuffix(".autotune.json"),
                key=tuple(map(str, held["key"])),
                proof=path.parent.name,
                timings=tuple(sorted(timings, key=lambda each: each.median or 0.0)),
            )


def _finite(times: Any) -> list[float]:
    values = [float(value) for value in (times if isinstance(times, list) else [times])]
    return values if values and all(0 <= value < float("inf") for value in values) else []


def read_triton_dejavu(folder: Path) -> Iterator[Imported]:
    """triton-dejavu's folder: `…/triton_3.3.1/…/gpu_NVIDIA_H100/KERNEL/…/cache.json`, the best with its time."""
    for path in sorted(folder.rglob("cache.json")):
        held = _json(path)
        parts = {part.partition("_")[0]: part.partition("_")[2] for part in path.parts}
        function = re.sub(r".*:|\)$", "", held["signature"])
        for key, config in held["cache"].items():
            pairs = (pair.partition(": ") for pair in config.split(", "))
            values = {name: _value(text) for name, _, text in pairs}
            times = _finite(held.get("timings", {}).get(key, []))
            yield Imported(
                origin="triton-dejavu",
                function=function,
                key=tuple(map(str, ast.literal_eval(key))),
                device=letters(parts.get("gpu", "")),
                triton=parts.get("triton", ""),
                timings=(Timing(config=_config(values), median=times[0] if times else None),),
            )


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def read_fla(folder: Path) -> Iterator[Imported]:
    """flash-linear-attention's configs: `GPU/KERNEL.json`, the best of each key."""
    for path in sorted(folder.rglob("*.json")):
        held = _json(path)
        for entry in (held.get("autotune_entries") or {}).values():
            yield Imported(
                origin="fla",
                function=held.get("kernel_name") or path.stem,
                key=tuple(map(str, entry["autotune_key"])),
                device=letters(path.parent.name),
                triton=held.get("triton_version") or "",
                timings=(Timing(config=_config(entry["config"])),),
            )


def read_vllm(folder: Path) -> Iterator[Imported]:
    """vLLM's fused-MoE configs: `E=8,N=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8.json`, the best of each M."""
    for path in sorted(folder.rglob("E=*device_name=*.json")):
        name = re.sub(r",block_shape=\[.*\]", "", path.stem)
        said = dict(part.split("=", 1) for part in name.split(",") if "=" in part)
        for m, config in _json(path).items():
            if not m.isdigit():  # newer files say their Triton's version too
                continue
            yield Imported(
                origin="vllm",
                function="fused_moe_kernel",
                named={"E": said["E"], "N": said["N"], "M": m},
                device=letters(said["device_name"]),
                timings=(Timing(config=_config(config)),),
            )


READERS = {
    "triton": read_triton,
    "triton-dejavu": read_triton_dejavu,
    "fla": read_fla,
    "vllm": read_vllm,
}


def read_foreign(origin: str, folder: Path) -> list[Imported]:
    """All that a folder of another tool's files says.

    Raises:
        SettingsError: it is no folder, or one of its files is not what that tool writes.
    """
    if not folder.is_dir():
        raise SettingsError(f"{folder} is no folder")
    try:
        return list(READERS[origin](folder))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SyntaxError) as error:
        raise SettingsError(
            f"{folder} does not hold what {origin} writes: {type(error).__name__}: {error}"
        ) from None


def write_imported(entries: Iterable[Imported]) -> str:
    """Entries as JSON lines, each once, in order."""
    return "".join(
        sorted({entry.model_dump_json(exclude_defaults=True) + "\n" for entry in entries})
    )


def read_imported(text: str, where: str) -> list[Imported]:
    """Entries from JSON lines.

    Raises:
        StoreError: a line is none.
    """
    try:
        return [Imported.model_validate_json(line) for line in text.splitlines() if line]
    except ValidationError as error:
        raise StoreError(
            f"{where} does not hold imported results: {error.errors(include_url=False)[0]['msg']}"
        ) from None
