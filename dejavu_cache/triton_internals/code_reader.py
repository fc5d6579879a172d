"""Write down a function and all that it reaches, as tokens to hash."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from ..errors import UnreadableKernelError
from .constants import ConstantReader, library_of, plain_text
from .decoration import read_decoration
from .name_values import (
    MISSING,
    NamedCallee,
    Names,
    imported_values,
    is_standard,
    resolve,
    values_of_names,
)
from .python_reads import check_reads
from .syntax import FunctionSyntax
from .syntax_files import function_syntax
from .syntax_names import Chain
from .triton_objects import is_jit, is_triton_own, python_function, qualified_name, unwrap

__all__ = ["CodeReader"]

Parameters = Mapping[str, inspect.Parameter]


@dataclass(frozen=True)
class _Code:
    """A function's code, and what tells the meaning of its names.

    Attributes:
        function: the Python function.
        jit_object: Triton's object right around it, or None.
        is_compiled: whether Triton compiles it. Python runs any other, such as a heuristic.
        syntax: what its text says.
        names: the values of its globals, of what it closes over, and of the imports inside it.
        parameters: its parameters.
    """

    function: Callable[..., Any]
    jit_object: Any
    is_compiled: bool
    syntax: FunctionSyntax
    names: Names
    parameters: Parameters

    @classmethod
    def of(cls, kernel: Any, function: Callable[..., Any]) -> _Code:
        """Find the code of a Python function, which a kernel may decorate.

        Raises:
            OSError: the source text is not available.
            UnreadableKernelError: Python runs the function, and it reads what has no encoding.
        """
        jit_object = _jit_object(kernel)
        is_compiled = _compiles(jit_object)
        # The text of a `constexpr_function` is that of what its decorators wrap, and not of these.
        text = getattr(jit_object, "src", None) if is_compiled else None
        if text is None and is_compiled:
            # Triton's interpreter runs what the file holds at the first launch, not what it held.
            text = inspect.getsource(function.__code__)
        syntax = function_syntax(function, text)
        _refuse_reflection(function, syntax)
        names = values_of_names(function)
        if not is_compiled:
            names = {**names, **imported_values(function, syntax)}
            check_reads(function, syntax, names)
        # Triton takes the parameters of what a decorator wraps; Python those of the wrapper.
        parameters = inspect.signature(function, follow_wrapped=is_compiled).parameters
        return cls(function, jit_object, is_compiled, syntax, names, parameters)

    @property
    def outer_chains(self) -> list[Chain]:
        """The dotted names that begin with no local name, sorted."""
        chains = self.syntax.dotted_names
        if not self.is_compiled:  # in a jit function, `getattr` is Triton's
            chains |= self.syntax.fetched_names
        return sorted(chain for chain in chains if chain[0] not in self.syntax.local_names)


class CodeReader:
    """Writes a function and all that it reaches as tokens, each function once.

    The tokens of a function are its text, what the names in it stand for, its defaults, its
    attributes and its decorator. Where a name stands for another function, that one's tokens follow
    at once. Records are found by the hash of the tokens, so neither they nor their order may change
    for code that has a hash already.

    Args:
        value_hash: hashes an argument of a decorator.

    Attributes:
        constants: writes values.
        may_change: whether what was written may change, as `SourceHash` has it.
        callees: the jit functions that were written, by the names under which they are called.
    """

    def __init__(self, value_hash: Callable[[Any], str]) -> None:
        """Begin with no function; the argument is described at the class."""
        self._value_hash = value_hash
        self.constants = ConstantReader(self._read_named)
        self._names: dict[Callable[..., Any], str] = {}
        self._functions: dict[str, Callable[..., Any]] = {}
        self.may_change = False
        self.callees: list[NamedCallee] = []

    def read_kernel(self, kernel: Any) -> Iterator[str]:
        """Write a kernel with its heuristics.

        Args:
            kernel: a Python or jit function, or heuristics around one.

        Raises:
            OSError: the source text is not available.
            UnreadableKernelError: the code depends on something that has no encoding.
        """
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
        """Write a function that is read under a name, or which one it is of those written before.

        Args:
            name: the name; empty for the kernel itself.
            kernel: the Python function, or what decorates it.
        """
        function = python_function(kernel)
        if function not in self._names:
            self._names[function] = name
            self._functions.setdefault(name, function)
            yield from self._read(_Code.of(kernel, function))
        # The name alone tells the function, unless it stands for several.
        elif self._names[function] != name or self._functions.get(name) is not function:
            yield f"as {list(self._names).index(function)}"

    def _read(self, code: _Code) -> Iterator[str]:
        yield code.syntax.normalized
        for chain in code.outer_chains:
            self.may_change |= _may_change(code.names, chain, is_compiled=code.is_compiled)
            self._note_callee(code, chain)
            yield from self._read_chain(code.names, chain)
        yield from self._read_defaults(code.parameters)
        if not code.is_compiled:
            yield from self._read_attributes(code.function)
        yield from self._read_first_reads(code)
        yield from _read_wrapping(code)
        if code.jit_object is not None:
            yield from read_decoration(
                code.jit_object, code.parameters, code.syntax, self._value_hash
            )

    def _note_callee(self, code: _Code, chain: Chain) -> None:
        value = resolve(code.names, chain)
        callee = NamedCallee(code.function, chain, value)
        # A module may make its attributes anew each time that they are read.
        if is_jit(value) and not is_triton_own(value) and callee.successor is value:
            self.callees.append(callee)

    def _read_chain(self, names: Names, chain: Chain) -> Iterator[str]:
        value = resolve(names, chain)
        if value is MISSING or isinstance(value, ModuleType):
            return
        if not (is_triton_own(value) and value is _usual_value(chain)):
            yield from self.constants.read(".".join(chain), value)

    def _read_defaults(self, parameters: Parameters) -> Iterator[str]:
        defaults = {name: parameter.default for name, parameter in parameters.items()}
        for name, default in sorted(defaults.items(), key=itemgetter(0)):
            if default is not inspect.Parameter.empty:
                yield from self.constants.read(f"default {name}", default)
                if unwrap(default)[1]:
                    yield f"default {name} wrapped True"

    def _read_attributes(self, function: Callable[..., Any]) -> Iterator[str]:
        for name, value in sorted(vars(function).items()):
            if name != "__wrapped__":  # what runs is the function's own code
                self.may_change = True
                yield from self.constants.read(f"attribute {name}", value)

    def _read_first_reads(self, code: _Code) -> Iterator[str]:
        """Write the globals that are read before a local of their name hides them."""
        early = code.syntax.read_first & code.syntax.local_names
        for chain in sorted(chain for chain in code.syntax.dotted_names if chain[0] in early):
            root = resolve(code.names, chain[:1])
            # Triton refuses to read any other global, so the name is a local of another branch.
            if not code.is_compiled or _is_legal_global(root):
                yield f"early {'.'.join(chain)}"
                yield from self._read_chain(code.names, chain)


def _read_wrapping(code: _Code) -> Iterator[str]:
    """Write whether a global is a `tl.constexpr`, unless that is as usual for its value.

    Raises:
        UnreadableKernelError: a module is read as a whole.
    """
    hidden = code.syntax.local_names - code.syntax.read_first
    for chain in sorted(code.syntax.bare_names):
        raw = resolve(code.names, chain)
        value, wrapped = unwrap(raw)
        if isinstance(value, ModuleType):
            if not is_standard(value):
                raise UnreadableKernelError(
                    f"{'.'.join(chain)} is a module, of which any attribute may be read"
                )
            continue
        root = resolve(code.names, chain[:1])
        if raw is MISSING or is_standard(root) or chain[0] in hidden:
            continue
        if wrapped != (code.is_compiled and _is_usually_wrapped(value, root)):
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
