"""Names of engines' tuned tables, and the launches that a table is for.

A name such as `E=8,N=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8.json` has labels. They stand for
the values of a kernel's arguments; a table has a config for each of several batch sizes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from .lora_tables import LORA_KERNELS, lora_labels

__all__ = [
    "FUNCTIONS",
    "SIZE_NAMES",
    "STATE_UPDATE",
    "TableEntry",
    "format_labels",
    "parse_labels",
]

FUSED_MOE = "fused_moe_kernel"
STATE_UPDATE = "_selective_scan_update_kernel"
BLOCK_PRODUCTS = {
    "fp8_w8a8": "_w8a8_triton_block_scaled_mm",
    "int8_w8a8": "_w8a8_block_int8_matmul",
}
"""Kernels that multiply block-scaled matrices, by the dtype in their tables' names."""

SIZE_NAMES = {
    **dict.fromkeys(LORA_KERNELS.values(), "m"),
    FUSED_MOE: "M",
    STATE_UPDATE: "effective_batch",
    **dict.fromkeys(BLOCK_PRODUCTS.values(), "M"),
}
"""The argument that counts the batch, by kernel."""

FUNCTIONS = tuple(SIZE_NAMES)
"""Kernels that have tables."""

_FLAGS = ("fp8_w8a8", "int8_w8a8", "int8_w8a16")
"""Quantizations that the fused kernel is told by arguments `use_…`."""

_UNLABELLED = frozenset({"E", "N", "K", "M", "top_k", "group_n", "group_k"})
_FURTHER = ("backend", "per_channel_quant", "down")
"""Labels of fused experts that stand for themselves."""

_OF_STATES = frozenset({"dim", "dstate", "cache_dtype"})
"""Arguments of a state update that the labels of its table stand for."""

_UNDERSTOOD = ("E", "N", "device_name", "dtype", "block_shape")
_ORDER = (
    *("E", "headdim", "N", "K", "dstate", "device_name"),
    *("dtype", "block_shape", "per_channel_quant", "backend", "cache_dtype"),
)
_DOWN = "_down"
"""End of the names of SGLang's tables for the second product."""


class TableEntry(NamedTuple):
    """The launches that one config of a table is for.

    Attributes:
        function: the kernel's name.
        named: values of its arguments, as text.
        size_name: the argument that counts the batch, which is not among `named`.
    """

    function: str
    named: dict[str, str]
    size_name: str

    @classmethod
    def of_labels(cls, labels: Mapping[str, str]) -> TableEntry | None:
        """Return the launches of a table, or None for a table of another operation.

        One without a quantization is for launches without one.
        """
        if {"E", "N"} <= labels.keys():
            return cls(FUSED_MOE, _fused_moe_arguments(labels), "M")
        if {"N", "K", "block_shape"} <= labels.keys():
            function = BLOCK_PRODUCTS.get(labels.get("dtype", "fp8_w8a8"))
            if function:
                named = {"N": labels["N"], "K": labels["K"], **_block_arguments(labels)}
                return cls(function, named, "M")
        if {"headdim", "dstate"} <= labels.keys():
            named = {"dim": labels["headdim"], "dstate": labels["dstate"]}
            named["cache_dtype"] = labels.get("cache_dtype", "")
            return cls(STATE_UPDATE, named, "effective_batch")
        return None

    def labels(self) -> dict[str, str] | None:
        """Return the labels of the table without its device, or None if there is no such table.

        The arguments that tell the layer's features and experts per token, which a table does not
        depend on, are left out. Any other argument that no label names could change what is best.
        """
        named = self.named
        dtypes = {dtype for dtype, function in BLOCK_PRODUCTS.items() if function == self.function}
        if self.function in LORA_KERNELS.values():
            return lora_labels(self.function, named)
        if self.function == FUSED_MOE and {"E", "N"} <= named.keys():
            quantization = _quantization_labels(named)
            if quantization is not None:
                return {"E": named["E"], "N": named["N"], **quantization}
        if dtypes and {"N", "K", "group_n", "group_k"} <= named.keys():
            return {"N": named["N"], "K": named["K"], "dtype": dtypes.pop(), **_block_label(named)}
        if self.function == STATE_UPDATE and named.keys() - {self.size_name} == _OF_STATES:
            labels = {"headdim": named["dim"], "dstate": named["dstate"]}
            dtype = named["cache_dtype"]  # earlier tables are of no dtype
            return {**labels, "cache_dtype": dtype} if dtype else labels
        return None


def parse_labels(stem: str) -> dict[str, str]:
    """Parse a table's name without its suffix, `E=8,N=7168,block_shape=[128, 128]`."""
    base = stem.removesuffix(_DOWN)
    pairs = re.findall(r"(\w+)=(\[[^\]]*\]|[^,]*)", base)
    labels = {label: value.replace(" ", "") for label, value in pairs}
    return labels if base == stem else {**labels, "down": "True"}


def format_labels(labels: Mapping[str, str]) -> str:
    """Return a table's name without its suffix; the inverse of `parse_labels`."""
    ordered = [label for label in _ORDER if label in labels]
    text = ",".join(f"{label}={labels[label]}" for label in ordered)
    return text + (_DOWN if labels.get("down") == "True" else "")


def _fused_moe_arguments(labels: Mapping[str, str]) -> dict[str, str]:
    named = {"E": labels["E"], "N": labels["N"], **_block_arguments(labels)}
    dtype = labels.get("dtype", "")
    named |= {label: value for label, value in labels.items() if label not in _UNDERSTOOD}
    for quantized in {*_FLAGS, *([dtype] if dtype else [])}:
        named[f"use_{quantized}"] = str(quantized == dtype)
    return named


def _quantization_labels(named: Mapping[str, str]) -> dict[str, str] | None:
    """Return the labels of a quantization, or None for arguments that no label stands for."""
    labels: dict[str, str] = {}
    for name, value in sorted(named.items()):
        if value == "False" or name in _UNLABELLED:
            continue
        if name.startswith("use_") and value == "True" and "dtype" not in labels:
            labels["dtype"] = name.removeprefix("use_")
        elif name in _FURTHER:
            labels[name] = value
        else:
            return None
    return {**labels, **_block_label(named)}


def _block_arguments(labels: Mapping[str, str]) -> dict[str, str]:
    sizes = labels.get("block_shape", "[0,0]").strip("[]").split(",")
    return {"group_n": sizes[0], "group_k": sizes[-1]}


def _block_label(named: Mapping[str, str]) -> dict[str, str]:
    sizes = [named.get("group_n", "0"), named.get("group_k", "0")]
    return {"block_shape": f"[{','.join(sizes)}]"} if "0" not in sizes else {}
