"""Identify a kernel by a hash of its code that ignores comments, formatting and line numbers.

Triton's own `cache_key` hashes the text and the line number, so that a comment above a kernel would
discard its timings. This hash is of normalised syntax trees: the function's and those of all
functions that it reaches, with the decorators' arguments and the values of the globals that they
read. What cannot be read closes the door: equal hashes mean equal code.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

from ..errors import UnreadableKernelError
from .constants import ConstantReader, library_of, plain_text
from .python_reads import (
    MISSING,
    NamedCallee,
    check_reads,
    imported_values,
    is_standard,
    resolve,
    values_of_names,
)
from .syntax import FunctionSyntax
from .syntax_files import function_syntax
from .syntax_names import Chain
from .triton_objects import (
    is_jit,
    is_triton_own,
    module_name,
    python_function,
    qualified_name,
    unwrap,
)

__all__ = [
    "SourceHash",
    "hash_source",
    "kernel_name",
    "source_hash",
    "value_hash",
]

Parameters = Mapping[str, inspect.Parameter]
Names = Mapping[str, Any]


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
    return f"{module_name(function)}.{function.__qualname__}"


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
    reader = _CodeReader()
    digest = _digest(reader.read_kernel(kernel))
    return SourceHash(digest, reader.may_change, tuple(reader.callees))


def value_hash(value: Any) -> str:
    """Return 32 hexadecimal digits that differ between values which compile differently.

    Args:
        value: a constant, or a function with the values that it is bound to.

    Raises:
        UnreadableKernelError: the value has no encoding.
    """
    return _digest(_CodeReader().constants.read("value", value))


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


class _CodeReader:
    """Walk through a function and all that it reaches, each function once."""

    def __init__(self) -> None:
        self.constants = ConstantReader(self._read_named)
        self._names: dict[Callable[..., Any], str] = {}
        self._functions: dict[str, Callable[..., Any]] = {}
        self.may_change = False
        self.callees: list[NamedCallee] = []

    def read_kernel(self, kernel: Any) -> Iterator[str]:
        yield from self._read_named("", kernel)
        while not inspect.isfunction(kernel):
            yield from self._read_heuristics(_heuristics(kernel))
            kernel = kernel.fn

    def _read_heuristics(self, heuristics: Mapping[str, Any]) -> Iterator[str]:
        is_mentioned = False
        for name, heuristic in sorted(heuristics.items()):
            self.may_change |= not isinstance(heuristic, FunctionType)
            tokens = list(self.constants.read(f"heuristic {name}", heuristic))
            yield from tokens
            text = " ".join(tokens)
            is_mentioned |= any(f"{other!a}" in text for other in heuristics if other != name)
        order = list(heuristics)
        if is_mentioned and order != sorted(order):
            yield f"in the order {order}"

    def _read_named(self, name: str, kernel: Any) -> Iterator[str]:
        function = python_function(kernel)
        if function in self._names:
            # The name alone tells the function, unless it stands for several.
            if self._names[function] != name or self._functions.get(name) is not function:
                yield f"as {list(self._names).index(function)}"
            return
        self._names[function] = name
        self._functions.setdefault(name, function)
        yield from self._read(kernel, function)

    def _read(self, kernel: Any, function: Callable[..., Any]) -> Iterator[str]:
        compiled = _jit_object(kernel)
        is_compiled = _compiles(compiled)
        # The text of a `constexpr_function` is that of what its decorators wrap, and not of these.
        text = getattr(compiled, "src", None) if is_compiled else None
        if text is None and is_compiled:
            # Triton's interpreter runs what the file holds at the first launch, not what it held.
            text = inspect.getsource(function.__code__)
        syntax = function_syntax(function, text)
        _refuse_reflection(function, syntax)
        names = values_of_names(function)
        chains = syntax.dotted_names
        if not is_compiled:
            names = {**names, **imported_values(function, syntax)}
            chains |= syntax.fetched_names  # in a jit function, `getattr` is Triton's
            check_reads(function, syntax, names)
        # Triton takes the parameters of what a decorator wraps; Python those of the wrapper.
        parameters = inspect.signature(function, follow_wrapped=is_compiled).parameters
        yield syntax.normalized
        for chain in sorted(chains):
            if chain[0] not in syntax.local_names:
                self.may_change |= _may_change(names, chain, is_compiled=is_compiled)
                self._note_callee(function, names, chain)
                yield from self._read_chain(names, chain)
        for name, default in sorted(_defaults(parameters)):
            yield from self._read_constant(f"default {name}", default, expect_constexpr=False)
        if not is_compiled:
            for name, value in sorted(vars(function).items()):
                if name != "__wrapped__":  # what runs is the function's own code
                    self.may_change = True
                    yield from self.constants.read(f"attribute {name}", value)
        yield from self._read_first_reads(names, syntax, is_compiled)
        yield from self._read_wrapping(names, syntax, is_compiled)
        if compiled is not None:
            yield from _decoration(compiled, parameters, syntax)

    def _note_callee(self, function: Callable[..., Any], names: Names, chain: Chain) -> None:
        value = resolve(names, chain)
        callee = NamedCallee(function, chain, value)
        # A module may make its attributes anew each time that they are read.
        if is_jit(value) and not (is_triton_own(value) or callee.is_replaced):
            self.callees.append(callee)

    def _read_chain(self, names: Names, chain: Chain) -> Iterator[str]:
        value = resolve(names, chain)
        if value is MISSING or isinstance(value, ModuleType):
            return
        if not (is_triton_own(value) and value is _usual_value(chain)):
            yield from self.constants.read(".".join(chain), value)

    def _read_constant(self, name: str, value: Any, *, expect_constexpr: bool) -> Iterator[str]:
        yield from self.constants.read(name, value)
        if unwrap(value)[1] != expect_constexpr:
            yield f"{name} wrapped {not expect_constexpr}"

    def _read_first_reads(
        self, names: Names, syntax: FunctionSyntax, is_compiled: bool
    ) -> Iterator[str]:
        """Write the globals that are read before a local of their name hides them."""
        early = syntax.read_first & syntax.local_names
        for chain in sorted(chain for chain in syntax.dotted_names if chain[0] in early):
            root = resolve(names, chain[:1])
            # Triton refuses to read any other global, so the name is a local of another branch.
            if not is_compiled or _is_legal_global(root):
                yield f"early {'.'.join(chain)}"
                yield from self._read_chain(names, chain)

    def _read_wrapping(
        self, names: Names, syntax: FunctionSyntax, is_compiled: bool
    ) -> Iterator[str]:
        """Write whether a global is a `tl.constexpr`, unless that is as usual for its value."""
        hidden = syntax.local_names - syntax.read_first
        for chain in sorted(syntax.bare_names):
            raw = resolve(names, chain)
            value, wrapped = unwrap(raw)
            if isinstance(value, ModuleType):
                if not is_standard(value):
                    raise UnreadableKernelError(
                        f"{'.'.join(chain)} is a module, of which any attribute may be read"
                    )
                continue
            root = resolve(names, chain[:1])
            if raw is MISSING or is_standard(root) or chain[0] in hidden:
                continue
            if wrapped != (is_compiled and _is_usually_wrapped(value, root)):
                yield f"{'.'.join(chain)} wrapped {wrapped}"


def _may_change(names: Names, chain: Chain, *, is_compiled: bool) -> bool:
    """Return whether a program can give a dotted name another value, and Triton lets it.

    Triton refuses to launch once a global of a jit function has changed, but not an attribute.
    """
    is_watched = is_compiled and (len(chain) == 1 or is_standard(resolve(names, chain[:1])))
    return not (is_watched or _is_fixed(resolve(names, chain)))


def _is_fixed(value: Any) -> bool:
    """Return whether a value is a module or class, code of a library, or none.

    What is read of a module or class has a dotted name of its own. Where another jit function takes
    a name, Triton itself goes on with what it has compiled.
    """
    if isinstance(value, FunctionType):
        return bool(library_of(value))
    kinds = (ModuleType, type, BuiltinFunctionType)
    return value is MISSING or isinstance(value, kinds) or is_jit(value) or is_triton_own(value)


def _is_usually_wrapped(value: Any, root: Any) -> bool:
    """Return whether jit functions read a value mostly as a `tl.constexpr`.

    Args:
        value: the value, without the wrapper.
        root: the value of the first part of its dotted name.
    """
    text = plain_text(value)
    if text is not None:
        return not text.startswith("dtype:")
    return not (callable(value) or isinstance(root, type))


def _usual_value(chain: Chain) -> Any:
    """Return what a name of Triton's usually stands for: `tl.exp` and `exp` for Triton's `exp`.

    A kernel for which a name has its usual meaning adds nothing to the hash: the text says it.
    """
    import triton

    if chain[0] == "triton":
        return resolve({"triton": triton}, chain)
    return resolve({"tl": triton.language}, ("tl", *(chain[1:] or chain)))


def _refuse_reflection(function: Callable[..., Any], syntax: FunctionSyntax) -> None:
    for name in sorted(syntax.reflection):
        raise UnreadableKernelError(
            f"{qualified_name(function)} reads {name}, which is not part of what identifies a "
            "kernel: read it at the module's top, for a constant"
        )


def _jit_object(kernel: Any) -> Any:
    """Return Triton's object right around the Python function, or None without any."""
    inner = None
    while not inspect.isfunction(kernel):
        inner, kernel = kernel, kernel.fn
    return inner


def _compiles(compiled: Any) -> bool:
    return compiled is not None and type(compiled).__name__ != "ConstexprFunction"


def _heuristics(kernel: Any) -> dict[str, Any]:
    kinds = {kind.__name__ for kind in type(kernel).__mro__}
    return dict(kernel.values) if "Heuristics" in kinds else {}


# Attributes of a jit function that hold its source, its caches, or what runs beside the launch.
_NOT_CODE = frozenset(
    {"fn", "signature", "raw_src", "starting_line_number", "_fn_name", "_hash_lock", "_src", "src"}
    | {"hash", "used_global_vals", "module", "_repr", "launch_metadata", "params", "device_caches"}
    | {"kernel", "arg_names", "constexprs", "pre_run_hooks", "rewriter", "repr", "cache", "run"}
    | {"do_not_specialize", "do_not_specialize_on_alignment", "kwargs", "create_binder"}
    | {"type", "compiled", "binder", "tensor_arg_names", "is_gluon_", "version_", "CompiledKernel"}
    | {"file_name", "def_file_line_number", "def_file_col_number"}
    | {"compile", "ASTSource", "make_backend", "target", "backend", "binders", "cache_hook"}
)


def _decoration(compiled: Any, parameters: Parameters, syntax: FunctionSyntax) -> Iterator[str]:
    """Write the decorator and those of its arguments that are not the default."""
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


def _annotations(parameters: Parameters, syntax: FunctionSyntax) -> Iterator[str]:
    """Write the annotations whose meaning to Triton is not the one that their text has."""
    from triton.runtime.jit import KernelParam

    for name, parameter in parameters.items():
        text = syntax.annotations.get(name)
        if text is None and parameter.annotation is inspect.Parameter.empty:
            continue
        literal = text if text is None else text.strip("'\"")
        said = parameter.replace(annotation=inspect.Parameter.empty if text is None else literal)
        meanings = [
            (param.is_constexpr, param.is_const, param.annotation_type)
            for param in (KernelParam(0, kind, False, False) for kind in (said, parameter))
        ]
        if meanings[0] != meanings[1]:
            yield f"annotation {name}: {meanings[1]}"


def _defaults(parameters: Parameters) -> Iterator[tuple[str, Any]]:
    for parameter in parameters.values():
        if parameter.default is not inspect.Parameter.empty:
            yield parameter.name, parameter.default


def _is_legal_global(value: Any) -> bool:
    """Return whether Triton lets a jit function read a global of this value."""
    from triton import knobs

    inner, wrapped = unwrap(value)
    return value is not MISSING and (
        wrapped
        or is_jit(value)
        or isinstance(value, (ModuleType, type))
        or type(inner).__name__ == "dtype"
        or getattr(value, "__triton_builtin__", False)
        or bool(knobs.compilation.allow_non_constexpr_globals)
    )
