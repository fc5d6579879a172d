"""Have Triton do once what it does in each process and call, and leave out what it does not use.

Its interpreter looks for what it replaces at each call of a function, within others that have
replaced it, and computes sums of integers again for an assertion that only `debug` would make.
Processes that are forked later find the digest of Triton's files, which takes half a second.
"""

import dataclasses
import inspect
import os
from functools import cache
from typing import Any

from triton import compiler, runtime
from triton.language import core
from triton.runtime import interpreter


@cache
def _builtin_names(where: Any) -> list[str]:
    """Return what there is to replace in a module or class, when it is first asked for."""
    return [name for name, member in inspect.getmembers(where) if core.is_builtin(member)]


def _patch_builtin(where: Any, builder: Any, scope: Any) -> None:
    for name in _builtin_names(where):
        if core.is_builtin(member := getattr(where, name)):
            interpreter._patch_attr(where, name, member, builder, scope)


interpreter._patch_builtin = _patch_builtin
_builder = interpreter.interpreter_builder
_builder.options = dataclasses.replace(_builder.options, sanitize_overflow=_builder.options.debug)
triton_key: Any = getattr(runtime.cache, "triton_key", 0) or compiler.compiler.triton_key
if os.environ.get("TRITON_INTERPRET") != "1":
    triton_key()
