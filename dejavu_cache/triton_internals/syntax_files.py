"""Describe the text of each function once: in a process, and in files of the user's cache folder.

To parse a text and to walk through its tree takes some milliseconds, which a program would pay for
every kernel at each start. The outcome depends on the text, on Python and on the code that
describes, so a file is named by a digest of these three. For a function of Python's, the text is
that of its file and of its compiled code. A wrong file could make two kernels equal: only files
that this user or root wrote are read, and each holds a digest of its name and content. A program
with a prewarmed folder writes none.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from ..errors import DejavuError, UnreadableKernelError
from ..settings import current_settings
from ..system.safe_files import open_folder, read_own_file, replace_file
from ..system.user_folder import user_folder
from . import running_code, syntax, syntax_names
from .running_code import describe_function, text_of_code, text_of_file
from .syntax import FunctionSyntax, describe_text
from .triton_objects import qualified_name

__all__ = ["function_syntax"]

_LIFETIME = 90 * 24 * 3600
"""Seconds after which a file is removed; if its text is still in use, it is written again."""

_NAME = re.compile(r"[0-9a-f]{64}(\.tmp-.*)?")


def _maker_of_descriptions() -> bytes:
    """Return a digest of this Python and of the modules that describe functions.

    It is empty if their code cannot be read.
    """
    digest = hashlib.sha256(sys.version.encode())
    for module in (syntax, syntax_names, running_code):
        loader: Any = module.__loader__
        try:
            code = loader.get_data(module.__file__)  # packages in a zip file have no files
        except (AttributeError, OSError):
            return b""
        digest.update(hashlib.sha256(code).digest())
    return digest.digest()


# Read when the module is imported, so that it is of the code that runs, also after an upgrade.
_MAKER = _maker_of_descriptions()


def function_syntax(function: Callable[..., Any], text: str | None = None) -> FunctionSyntax:
    """Return the syntax of a function, read from its source.

    Args:
        function: a Python function.
        text: the source, where it is not the file's.

    Raises:
        OSError: the source text is not available.
        UnreadableKernelError: the text in the file is not the function's.
    """
    try:
        if text is not None:
            return _syntax_of(text)
        # The outcome depends on the whole file, in which the running code must be found.
        read = f"{text_of_file(function)}\0{text_of_code(function.__code__)}"
        return _load_or_describe(read, lambda: describe_function(function))
    except SyntaxError as error:
        raise UnreadableKernelError(
            f"{qualified_name(function)} cannot be parsed: {error}; perhaps its file has changed "
            "since it was imported"
        ) from None


@lru_cache(maxsize=1024)
def _syntax_of(text: str) -> FunctionSyntax:
    """Return the syntax of a text; many kernels share their helpers."""
    return _load_or_describe(text, lambda: describe_text(text))


def _load_or_describe(read: str, describe: Callable[[], FunctionSyntax]) -> FunctionSyntax:
    """Return the syntax that a text leads to, from a file if there is one."""
    if not _MAKER:
        return describe()
    path = _path_of(read)
    described = _load(path)
    if described is None:
        described = describe()
        _save(path, described)
    return described


def _load(path: Path) -> FunctionSyntax | None:
    """Return what a file holds, or None if there is none that can be trusted."""
    try:
        digest, _, content = read_own_file(path).partition(b"\n")
        return _decode(content) if digest == _digest(path, content) else None
    except (OSError, ValueError):
        return None


def _save(path: Path, described: FunctionSyntax) -> None:
    content = _encode(described)
    with suppress(OSError, DejavuError):
        if "prewarmed://" in current_settings().url:
            return  # such a program leaves nothing behind, in no folder
        replace_file(path, _digest(path, content) + b"\n" + content, mode=0o600, durable=False)
        _remove_old_files(path.parent)


def _encode(described: FunctionSyntax) -> bytes:
    parts = {
        name: sorted(part) if isinstance(part, frozenset) else part
        for name, part in described._asdict().items()
    }
    return json.dumps(parts).encode()


def _decode(content: bytes) -> FunctionSyntax:
    parts = json.loads(content)
    return FunctionSyntax(
        normalized=parts["normalized"],
        local_names=frozenset(parts["local_names"]),
        dotted_names=frozenset(map(tuple, parts["dotted_names"])),
        bare_names=frozenset(map(tuple, parts["bare_names"])),
        read_first=frozenset(parts["read_first"]),
        annotations=parts["annotations"],
        bound_names=frozenset(parts["bound_names"]),
        imports=frozenset(map(tuple, parts["imports"])),
        fetched_names=frozenset(map(tuple, parts["fetched_names"])),
        declared_names=frozenset(parts["declared_names"]),
        changed_names=frozenset(map(tuple, parts["changed_names"])),
        mutated_names=frozenset(map(tuple, parts["mutated_names"])),
        reflection=frozenset(parts["reflection"]),
    )


def _digest(path: Path, content: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + content).hexdigest().encode()


def _path_of(text: str) -> Path:
    folder = user_folder("syntax")
    return folder / hashlib.sha256(_MAKER + text.encode(errors="surrogatepass")).hexdigest()


@cache
def _remove_old_files(folder: Path) -> None:
    """Remove files that are no longer in use, or soon written again; once in a process."""
    with open_folder(folder.parent, folder) as handle:
        for name in filter(_NAME.fullmatch, os.listdir(handle)):
            with suppress(OSError):
                changed = os.stat(name, dir_fd=handle, follow_symlinks=False).st_mtime
                if changed < time.time() - _LIFETIME:
                    os.unlink(name, dir_fd=handle)
