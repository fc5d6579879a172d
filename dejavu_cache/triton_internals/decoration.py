"""Write down how a jit function is decorated, as far as that changes its code."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .syntax import FunctionSyntax

__all__ = ["read_decoration"]

_NOT_CODE = frozenset(
    {"fn", "signature", "raw_src", "starting_line_number", "_fn_name", "_hash_lock", "_src", "src"}
    | {"hash", "used_global_vals", "module", "_repr", "launch_metadata", "params", "device_caches"}
    | {"kernel", "arg_names", "constexprs", "pre_run_hooks", "rewriter", "repr", "cache", "run"}
    | {"do_not_specialize", "do_not_specialize_on_alignment", "kwargs", "create_binder"}
    | {"type", "compiled", "binder", "tensor_arg_names", "is_gluon_", "version_", "CompiledKernel"}
    | {"file_name", "def_file_line_number", "def_file_col_number"}
    | {"compile", "ASTSource", "make_backend", "target", "backend", "binders", "cache_hook"}
)
"""Attributes of a jit function that hold its source, its caches, or what runs beside the launch."""


def read_decoration(
    compiled: Any,
    parameters: Mapping[str, inspect.Parameter],
    syntax: FunctionSyntax,
    value_hash: Callable[[Any], str],
) -> Iterator[str]:
    """Write the decorator and those of its arguments that are not the default.

    Args:
        compiled: Triton's object right around the Python function.
        parameters: the parameters that it takes.
        syntax: what the function's text says.
        value_hash: hashes an argument of the decorator.
    """
    if type(compiled).__name__ not in ("JITFunction", "InterpretedFunction"):
        yield f"decorated by {type(compiled).__qualname__}"
    if type(compiled).__module__.partition(".")[0] != "triton":
        yield f"decorated by {value_hash(type(compiled))}"
    options = {**vars(compiled), **getattr(compiled, "kwargs", {})}
    for name in sorted(set(options) - _NOT_CODE):
        # An argument that is not given is None or False.
        if not name.startswith("__") and options[name] not in (None, False):
            yield f"decorator {name}={value_hash(options[name])}"
    for index, name in enumerate(parameters):
        for option in ("do_not_specialize", "do_not_specialize_on_alignment"):
            named = options.get(option) or ()
            if index in named or name in named:
                yield f"{option} {name}"
    yield from _annotations(parameters, syntax)


def _annotations(
    parameters: Mapping[str, inspect.Parameter], syntax: FunctionSyntax
) -> Iterator[str]:
    """Write the annotations whose meaning to Triton is not the one that their text has."""
    for name, parameter in parameters.items():
        text = syntax.annotations.get(name)
        if text is None and parameter.annotation is inspect.Parameter.empty:
            continue
        written = inspect.Parameter.empty if text is None else text.strip("'\"")
        meaning = _meaning_of_annotation(parameter)
        if meaning != _meaning_of_annotation(parameter.replace(annotation=written)):
            yield f"annotation {name}: {meaning}"


def _meaning_of_annotation(parameter: inspect.Parameter) -> tuple[Any, ...]:
    from triton.runtime.jit import KernelParam

    param = KernelParam(0, parameter, False, False)
    return param.is_constexpr, param.is_const, param.annotation_type
