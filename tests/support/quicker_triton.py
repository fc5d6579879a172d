"""Have Triton do once what it does in each process and call, and leave out what it does not use.

Its interpreter replaces the language again for each function that a kernel calls, makes a table of
NumPy's types whenever it looks one up, and computes sums of integers again for an assertion that
only `debug` would make. Processes that are forked later find the digest of Triton's files, which
takes half a second.
"""

import dataclasses
import os
from functools import cache
from typing import Any

from triton import compiler, language, runtime
from triton.language import core
from triton.runtime import interpreter

_patch_language, _find_np_dtype = interpreter._patch_lang, interpreter._get_np_dtype
_find_once = cache(_find_np_dtype)


def _patch_lang(fn: Any) -> Any:
    """Replace what a function sees of the language, unless it was replaced for its caller."""
    seen = [value for value in fn.__globals__.values() if value is language or value is core]
    samples = core.tensor.__add__, *(module.load for module in seen)
    if seen and not any(map(core.is_builtin, samples)):
        return interpreter._LangPatchScope()
    return _patch_language(fn)


def _get_np_dtype(dtype: Any) -> Any:
    scalar = dtype.scalar
    return _find_np_dtype(scalar) if scalar.is_ptr() else _find_once(scalar)


interpreter._patch_lang = _patch_lang
interpreter._get_np_dtype = _get_np_dtype
_builder = interpreter.interpreter_builder
_builder.options = dataclasses.replace(_builder.options, sanitize_overflow=_builder.options.debug)
triton_key: Any = getattr(runtime.cache, "triton_key", 0) or compiler.compiler.triton_key
if os.environ.get("TRITON_INTERPRET") != "1":
    triton_key()
