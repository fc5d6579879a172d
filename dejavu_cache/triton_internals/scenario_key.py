"""Turn a launch's arguments into its scenario: as a raw key, which is fast, or as a `Scenario`."""

from __future__ import annotations

import hashlib
import reprlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

from ..errors import KeyArgumentError, UnreadableKernelError
from ..model.buckets import Bucket, Exact
from ..model.scenario import MOST_CHARACTERS, Scalar, Scenario, is_scalar
from .source_hash import kernel_name, value_hash
from .triton_objects import (
    dtype_name,
    is_jit,
    is_triton_own,
    qualified_name,
)

__all__ = ["ScenarioKey", "function_text"]

RawKey = tuple[Any, ...]

_ABSENT: Any = object()

_WITHOUT_CODE = frozenset({int, float, bool, str, type(None)})
"""The types of most arguments beside tensors, which need no closer look at each launch."""


class ScenarioKey:
    """Key arguments and buckets of one kernel, applied to its launches.

    Args:
        arg_names: the kernel's parameters, in order.
        keys: the key arguments.
        buckets: the buckets of some of them.
    """

    def __init__(
        self, arg_names: Sequence[str], keys: Sequence[str], buckets: Mapping[str, Bucket]
    ) -> None:
        """Plan how keys are computed; the arguments are described at the class."""
        self.keys = tuple(keys)
        self._names = frozenset(arg_names)
        self._bucket_of: dict[str, Callable[[Any], Any] | None] = {
            name: None if isinstance(buckets.get(name), Exact) else buckets.get(name)
            for name in self.keys
        }
        self._plan = [
            (name, list(arg_names).index(name), self._bucket_of[name]) for name in self.keys
        ]

    def raw(self, device: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> RawKey:
        """Return a hashable key of a launch's scenario, for this process only.

        Two launches of one scenario may have two keys if one of them passes an argument by name.

        Args:
            device: the device's index.
            args: the launch's positional arguments.
            kwargs: its keyword arguments.
        """
        positional = len(args)
        raw: list[Any] = [device]
        for name, index, bucket in self._plan:
            value = args[index] if index < positional else kwargs.get(name, _ABSENT)
            # The type too, since 1, 1.0 and True are equal.
            raw.append(value.__class__)
            raw.append(value if bucket is None else bucket(value))
        raw += [_raw_type(arg) for arg in args]
        if kwargs:
            types = ((name, _raw_type(arg)) for name, arg in kwargs.items())
            raw += [(name, type_) for name, type_ in types if type_ is not None]
        return tuple(raw)

    def scenario(self, named: Mapping[str, Any]) -> Scenario:
        """Return the scenario of a launch.

        Args:
            named: the launch's arguments by name, without those left to their defaults.

        Raises:
            KeyArgumentError: a key argument has a value that records have no form for.
        """
        args = {
            name: _scalar(name, self._representative(name, named[name]))
            for name in self.keys
            if name in named
        }
        types = {name: _type_name(arg) for name, arg in named.items() if name in self._names}
        return Scenario(args=args, dtypes={name: text for name, text in types.items() if text})

    def _representative(self, name: str, value: Any) -> Any:
        bucket = self._bucket_of[name]
        return value if bucket is None else bucket(value)


def _raw_type(arg: Any) -> Any:
    """Return what a launch's code depends on of any argument: a tensor's dtype, or a function."""
    dtype = getattr(arg, "dtype", None)
    if dtype is not None:
        return dtype
    if arg.__class__ in _WITHOUT_CODE:
        return None
    if _is_code(arg):
        return arg
    if isinstance(arg, tuple):
        return _raw_tuple(arg)
    return _descriptor_dtype(arg)


def _raw_tuple(items: tuple[Any, ...]) -> Any:
    """Return what code depends on of a tuple's items, and all of the values beside functions."""
    types = tuple(map(_raw_type, items))
    if _holds_functions(items):
        values = zip(items, types, strict=True)
        return tuple((item.__class__, item) if type_ is None else type_ for item, type_ in values)
    return None if types.count(None) == len(types) else types


def _type_name(arg: Any) -> str | None:
    if hasattr(arg, "dtype"):
        return dtype_name(arg.dtype)
    if _is_code(arg):
        return function_text(arg)
    if isinstance(arg, tuple):
        return _tuple_text(arg)
    dtype = _descriptor_dtype(arg)
    return None if dtype is None else dtype_name(dtype)


def _tuple_text(items: tuple[Any, ...]) -> str | None:
    """Return a text for the items that code depends on, or None if there are none."""
    # Such tuples have this text in the records of earlier versions.
    if _holds_functions(items) and not _is_unhashed(items):
        return function_text(items)
    names = [_type_name(item) for item in items]
    if names.count(None) == len(names):
        return None
    text = f"({', '.join(name or '_' for name in names)})"
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"tuple {hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _is_unhashed(arg: Any) -> bool:
    """Return whether a hash of values has no place for an argument, or for an item of it."""
    if isinstance(arg, tuple):
        return any(map(_is_unhashed, arg))
    return hasattr(arg, "dtype") or _descriptor_dtype(arg) is not None


def _is_code(arg: Any) -> bool:
    """Return whether an argument is a function that a kernel can call: a jit one, or Triton's."""
    return is_jit(arg) or (arg.__class__ is FunctionType and is_triton_own(arg))


def _holds_functions(arg: Any) -> bool:
    return isinstance(arg, tuple) and any(_is_code(item) or _holds_functions(item) for item in arg)


def _descriptor_dtype(arg: Any) -> Any:
    """Return the dtype of the tensor that a descriptor describes, or None."""
    return getattr(getattr(arg, "base", None), "dtype", None)


def function_text(value: Any) -> str:
    """Return a text for a function, or another value that holds code: its name and its hash."""
    if is_jit(value):
        name = kernel_name(value)
    elif is_triton_own(value):
        name = qualified_name(value)
    else:
        name = type(value).__name__
    try:
        return f"{name[:400]} {value_hash(value)}"
    except (UnreadableKernelError, OSError):
        return f"{name[:400]} unreadable {_PROCESS}"


_PROCESS = uuid.uuid4().hex
"""Stands for this process where a value has no text that means the same in another."""


def _scalar(name: str, value: Any) -> Scalar:
    if type(value).__name__ == "dtype":
        return dtype_name(value)
    is_plain = type(value) in (int, float, str)
    if (is_plain or value is None or type(value) is bool) and is_scalar(value):
        scalar: Scalar = value
        return scalar
    shown = reprlib.repr(value) if is_plain else type(value).__qualname__
    raise KeyArgumentError(
        f"key argument {name!r} is {shown}: a key may be an int of 64 bits, a bool, a finite "
        f"float, a string of at most {MOST_CHARACTERS} characters, None or a dtype"
    )
