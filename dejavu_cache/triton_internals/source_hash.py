"""Identify a kernel by a hash of its code that ignores comments, formatting and line numbers.

Triton's own `cache_key` hashes the text and the line number, so that a comment above a kernel would
discard its timings. This hash is of normalised syntax trees: the function's and those of all
functions that it reaches, with the decorators' arguments and the values of the globals that they
read. What cannot be read closes the door: equal hashes mean equal code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..errors import UnreadableKernelError
from ..model.scenario import as_text
from .code_reader import CodeReader
from .name_values import NamedCallee
from .triton_objects import module_name, python_function

__all__ = [
    "SourceHash",
    "hash_source",
    "kernel_name",
    "source_hash",
    "value_hash",
]


class SourceHash(NamedTuple):
    """A kernel's source hash, for now or for good.

    Attributes:
        digest: 32 hexadecimal digits.
        may_change: whether the kernel reads values that the program can change, and Triton lets it.
        callees: the jit functions that it reaches, by the names under which it does.
    """

    digest: str
    may_change: bool
    callees: tuple[NamedCallee, ...]


def kernel_name(kernel: Any) -> str:
    """Return a kernel's module and qualified name; `module_name` says which module a script is."""
    function = python_function(kernel)
    return as_text(f"{module_name(function)}.{function.__qualname__}")


def source_hash(kernel: Any) -> str:
    """Return 32 hexadecimal digits that change when the code does.

    They do not change with comments, docstrings, formatting, line numbers, file paths, or the
    version of Python.

    Raises:
        OSError: the source text is not available (Triton itself needs it too).
        UnreadableKernelError: the code depends on something that has no encoding, or that raises
            an error when it is read.
    """
    return hash_source(kernel).digest


def hash_source(kernel: Any) -> SourceHash:
    """Return a kernel's source hash, as `source_hash` does, and whether it may change."""
    reader = CodeReader(value_hash)
    digest = _digest(reader.read_kernel(kernel))
    return SourceHash(digest, reader.may_change, tuple(reader.callees))


def value_hash(value: Any) -> str:
    """Return 32 hexadecimal digits that differ between values which compile differently.

    Args:
        value: a constant, or a function with the values that it is bound to.

    Raises:
        UnreadableKernelError: the value has no encoding.
    """
    return _digest(CodeReader(value_hash).constants.read("value", value))


def _digest(tokens: Iterator[str]) -> str:
    hasher = hashlib.sha256()
    try:
        for token in tokens:
            hasher.update(token.encode())
            hasher.update(b"\0")
    except RecursionError:
        raise UnreadableKernelError("what the kernel reaches is nested too deeply") from None
    except (UnreadableKernelError, OSError):
        raise
    except Exception as error:
        # A lazy module or a placeholder of a missing package may raise anything when it is read.
        raise UnreadableKernelError(
            f"what the kernel reaches cannot be read: {type(error).__name__}: {error}"
        ) from error
    return hasher.hexdigest()[:32]
