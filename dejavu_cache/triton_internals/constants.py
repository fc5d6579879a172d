"""Write down the constants that a kernel reads, by value and type; refuse what cannot be written.

The encoding is closed: a value is either known to be complete in its parts, or it is an
`UnreadableKernelError`. A library's own classes and pure functions are written by name, since the
library's version identifies them.
"""

from __future__ import annotations

import abc
import enum
import functools
import inspect
import struct
import sys
import types
from abc import ABC, ABCMeta
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, ClassVar, Generic, List, Optional, Protocol  # noqa: UP035

from ..errors import UnreadableKernelError
from .class_members import (
    aggregated_class,
    authored_attributes,
    authored_members,
    has_generated_methods,
    is_found_by_name,
    slots_of,
)
from .pure_functions import is_pure_function, refuse_impure
from .triton_objects import (
    defining_module,
    is_jit,
    is_triton_own,
    module_name,
    python_function,
    qualified_name,
    unwrap,
)

__all__ = ["ConstantReader", "library_of", "plain_text"]

Tokens = Iterator[str]

_PLAIN = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis), range)
_TYPING_FORMS: tuple[Any, ...] = (type(Optional), type(List))  # noqa: UP006
"""Classes of the names that `typing` has for annotations, such as `Optional`, without arguments."""
_EMPTY_BASES = (object, Generic, Protocol, ABC)
_AUTOTUNERS = f"{__name__.partition('.')[0]}.runtime."
"""Beginning of the names of the modules that define cached autotuners."""


def plain_text(value: Any) -> str | None:
    """Return a text that tells plain values apart, or None for a value that is not plain.

    Lists and tuples of too many items, all levels counted, are not plain: one that holds another
    twice, and so on, has a text that doubles with each level.
    """
    return _text_of_plain(value, count(1))


_MOST_ITEMS = 1 << 16


def _text_of_plain(value: Any, items: Iterator[int]) -> str | None:
    if type(value) is float and value != value:
        bits = struct.pack(">d", value).hex()
        return "float:nan" if bits == _USUAL_NAN else f"float:nan {bits}"
    if type(value) in _PLAIN:
        return f"{type(value).__name__}:{value!a}"
    if type(value) in (tuple, list):
        parts = []
        for item in value:
            part = _text_of_item(item, items) if next(items) <= _MOST_ITEMS else None
            if part is None:
                return None
            parts.append(part)
        text = ",".join(parts)
        return f"({text})" if type(value) is tuple else f"[{text}]"
    if type(value).__name__ == "dtype" and type(value).__module__.partition(".")[0] in _DTYPES:
        return f"dtype:{value}"
    return None


_USUAL_NAN = struct.pack(">d", float("nan")).hex()
_DTYPES = ("triton", "torch", "numpy")


def _text_of_item(item: Any, items: Iterator[int]) -> str | None:
    value, wrapped = unwrap(item)
    text = _text_of_plain(value, items)
    return f"constexpr {text}" if wrapped and text is not None else text


class _UnreadableMemberError(UnreadableKernelError):
    """A member of a class has no encoding; the message names it."""


class ConstantReader:
    """Writes values as tokens, each object once.

    Args:
        read_function: writes the tokens of a Python or jit function.
    """

    def __init__(self, read_function: Callable[[str, Any], Tokens]) -> None:
        """Set up the reader; the argument is described at the class."""
        self._read_function = read_function
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []  # an object's id is its own only while it lives

    def read(self, name: str, value: Any) -> Tokens:
        """Write a value that is read under a name.

        Raises:
            UnreadableKernelError: the value, or a part of it, has no encoding.
        """
        value, _ = unwrap(value)
        text = plain_text(value)
        if text is not None:
            yield f"{name}={text}"
        elif is_triton_own(value):
            function = python_function(value) if is_jit(value) else value
            yield f"{name} is Triton's {qualified_name(function)}"
        elif is_jit(value):
            yield f"{name} calls"
            yield from self._read_function(name, value)
        elif id(value) in self._numbers:
            yield f"{name} again {self._numbers[id(value)]}"
        else:
            self._numbers[id(value)] = len(self._numbers)
            self._alive.append(value)
            # In Python 3.10 it is of another type; the records of later versions say this one.
            kind = "_AnyMeta" if value is Any else type(value).__qualname__
            yield f"{name} is {kind} {{"
            yield from self._content(name, value)
            yield "}"

    def _content(self, name: str, value: Any) -> Tokens:
        """Write what a value of no plain type is made of."""
        writer = self._writers.get(type(value))
        if writer is not None:
            yield from writer(self, name, value)
        elif isinstance(value, enum.Enum):
            yield value.name
            yield from self.read(name, type(value))
        elif isinstance(value, type):
            yield from self._class(name, value)
        elif isinstance(value, _TYPING_FORMS):
            yield f"typing.{value._name} of python"
        elif _is_numpy_scalar(value):
            yield f"{value.dtype} {value.item()!a}"
        elif isinstance(value, tuple) and hasattr(type(value), "_fields"):
            yield from self.read(name, type(value))
            yield from self._items(name, tuple(value))
            for attribute, part in sorted(getattr(value, "__dict__", {}).items()):
                yield from self.read(f"{name}.{attribute}", part)
        else:
            yield from self._instance(name, value)

    def _items(self, name: str, values: Any) -> Tokens:
        for index, value in enumerate(values):
            yield from self._part(f"{name}[{index}]", value)

    def _part(self, name: str, value: Any) -> Tokens:
        """Write a part of another value, which may be a `tl.constexpr` or not."""
        if unwrap(value)[1]:
            yield "constexpr"
        yield from self.read(name, value)

    def _dictionary(self, name: str, values: dict[Any, Any]) -> Tokens:
        for index, (key, value) in enumerate(values.items()):
            yield from self.read(f"{name}.key{index}", key)
            yield from self._items(name, [value])

    def _set(self, name: str, values: Any) -> Tokens:
        texts = [_text_of_item(value, count(1)) for value in values]
        if None in texts:
            raise UnreadableKernelError(f"{name} is a set of other than plain values")
        yield from sorted(map(str, texts))

    def _function(self, name: str, function: Any) -> Tokens:
        library = library_of(function)
        if library and library == _library_of_module(defining_module(function)):
            _check_pure(name, function)
            yield f"{qualified_name(function)} of {library}"
        else:
            yield from self._read_function(name, function)

    def _builtin(self, name: str, function: Any) -> Tokens:
        library = library_of(function)
        owner = function.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            if not library:
                raise UnreadableKernelError(f"{name} is {function!r}, which has no source")
            _check_pure(name, function)
            yield f"{qualified_name(function)} of {library}"
        else:
            if isinstance(owner, type) and library_of(owner):
                _check_pure(name, function)
            yield function.__name__
            yield from self.read(name, owner)

    def _method(self, name: str, method: Any) -> Tokens:
        yield from self.read(name, method.__self__)
        yield from self.read(f"{name}()", method.__func__)

    def _partial(self, name: str, call: Any) -> Tokens:
        yield from self.read(name, call.func)
        yield from self._items(name, call.args)
        yield from self._dictionary(name, call.keywords)

    def _property(self, name: str, member: property) -> Tokens:
        for accessor in (member.fget, member.fset, member.fdel):
            yield from self.read(name, accessor)

    def _class(self, name: str, value: type) -> Tokens:
        library = library_of(value) if is_found_by_name(value) else ""
        if library or is_triton_own(value):
            yield f"{qualified_name(value)} of {library or 'triton'}"
            return
        if getattr(value, "__triton_aggregate__", False):
            yield from self.read(name, aggregated_class(value))
            return
        if type(value) not in (type, ABCMeta, enum.EnumMeta):
            raise UnreadableKernelError(f"{name} is a class of the metaclass {type(value)}")
        if isinstance(value, ABCMeta) and abc._get_dump(value)[0]:  # type: ignore[attr-defined]
            raise UnreadableKernelError(f"{name} is a class with registered subclasses")
        yield value.__qualname__
        for base in value.__bases__:
            if base not in _EMPTY_BASES:
                yield from self.read(f"{name} base", base)
        for field, annotation in inspect.get_annotations(value).items():
            yield f"{field}: {_annotation_text(annotation)}"
        yield from self._dataclass_fields(name, value)
        yield from self._members(name, value)

    def _dataclass_fields(self, name: str, value: type) -> Tokens:
        for field in vars(value).get("__dataclass_fields__", {}).values():
            yield f"{field.name} {field.init} {field.compare} {getattr(field, 'kw_only', False)}"
            if field.metadata:
                yield from self.read(f"{name}.{field.name} metadata", field.metadata)
            for default in (field.default, field.default_factory):
                if type(default).__name__ != "_MISSING_TYPE":
                    yield from self._part(f"{name}.{field.name}", default)
        options = getattr(value, "__dataclass_params__", None)
        if options is not None:
            yield f"{options.init} {options.eq} {options.order} {options.frozen}"

    def _members(self, name: str, value: type) -> Tokens:
        if isinstance(value, enum.EnumMeta):
            yield from self._enum_members(name, value)
        if "__match_args__" in vars(value) and not has_generated_methods(value):
            yield from self.read(f"{name}.__match_args__", vars(value)["__match_args__"])
        for attribute, member in authored_members(value):
            try:
                yield from self._part(f"{name}.{attribute}", member)
            except _UnreadableMemberError:
                raise
            except UnreadableKernelError as error:
                raise _UnreadableMemberError(
                    f"{error}; {value.__qualname__}.{attribute} counts because "
                    f"{value.__qualname__} is read as a whole: keep what kernels read in a class "
                    "without it"
                ) from None

    def _enum_members(self, name: str, value: enum.EnumMeta) -> Tokens:
        member: Any
        for label, member in value.__members__.items():
            yield label
            yield from self._part(f"{name}.{label}", member.value)
            for attribute, part in authored_attributes(member):
                yield from self.read(f"{name}.{label}.{attribute}", part)

    def _instance(self, name: str, value: Any) -> Tokens:
        """Write an object of a class that keeps all its state in attributes of its own."""
        kind = type(value)
        if any(base.__module__.startswith(_AUTOTUNERS) for base in kind.__mro__):
            raise UnreadableKernelError(
                f"{name} is an autotuned kernel, whose choices change while the program runs"
            )
        readable = type(kind) in (type, ABCMeta) and all(
            base in _EMPTY_BASES or base is types.SimpleNamespace or not library_of(base)
            for base in kind.__mro__
        )
        slots = [slot for base in kind.__mro__ for slot in slots_of(base)]
        if not readable or not (hasattr(value, "__dict__") or slots):
            raise UnreadableKernelError(
                f"{name} is a {qualified_name(kind)}, which has no encoding"
            )
        yield from self.read(f"{name} class", kind)
        state = {slot: getattr(value, slot) for slot in slots if hasattr(value, slot)}
        state |= getattr(value, "__dict__", {})
        for attribute in sorted(state):
            yield from self._items(f"{name}.{attribute}", [state[attribute]])

    _writers: ClassVar[dict[type, Callable[[ConstantReader, str, Any], Tokens]]] = {
        tuple: _items,
        list: _items,
        dict: _dictionary,
        types.MappingProxyType: _dictionary,
        set: _set,
        frozenset: _set,
        types.FunctionType: _function,
        types.BuiltinFunctionType: _builtin,
        types.MethodType: _method,
        functools.partial: _partial,
        functools._lru_cache_wrapper: lambda self, name, value: self.read(name, value.__wrapped__),
        functools.cached_property: lambda self, name, value: self.read(name, value.func),
        staticmethod: lambda self, name, value: self.read(name, value.__func__),
        classmethod: lambda self, name, value: self.read(name, value.__func__),
        property: _property,
    }


def _is_numpy_scalar(value: Any) -> bool:
    is_number = type(value).__module__ == "numpy" and hasattr(value, "item") and not value.shape
    return bool(is_number and value.dtype.kind != "O")


def library_of(value: Any) -> str:
    """Return the library that a function or class belongs to by its name and version, or ``."""
    return _library_of_module(getattr(value, "__module__", None) or "")


def _library_of_module(module: str) -> str:
    top = module.partition(".")[0]
    if top in ("torch", "numpy"):
        return f"{top} {getattr(sys.modules.get(top), '__version__', '')}"
    # Python's own functions keep their meaning from version to version.
    return "python" if top in sys.stdlib_module_names and top != "__main__" else ""


def _check_pure(name: str, function: Any) -> None:
    if not is_pure_function(function):
        raise refuse_impure(name, function)


def _annotation_text(annotation: Any) -> str:
    if isinstance(annotation, type):
        return f"{module_name(annotation)}.{annotation.__qualname__}"
    return repr(annotation)
