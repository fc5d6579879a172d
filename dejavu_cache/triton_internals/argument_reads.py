"""Which arguments of a launch a function reads, and the values that it sees, as parts of a key."""

from __future__ import annotations

import contextlib
import enum
import inspect
import sys
from collections.abc import (
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from operator import attrgetter, methodcaller
from threading import get_ident
from types import FunctionType
from typing import Any

__all__ = ["Answers", "Part", "Place", "Reads"]

Place = int | str
"""Index of a launch's argument if it comes by position, or else its name."""

Part = Callable[[Any], Hashable]
"""Function from an argument to what was read of it: it differs wherever a reader could tell."""


class Reads:
    """The reads of one call of a function, which gets a launch's arguments by name.

    A number is read when it is handed out. A tensor's parts are read one by one, by PyTorch's
    functions, which say so while the tensors are `watched`. Its elements do not count, since
    comparing them would make each launch wait for the device.

    Args:
        places: the place of each argument by the parameter's name.

    Attributes:
        noted: the place and the part of each read, in order.
    """

    def __init__(self, places: Mapping[str, Place]) -> None:
        """Begin without reads."""
        self._places = places
        self._tensors: dict[int, set[Place]] = {}
        self._told_in: int | None = None
        self.noted: dict[tuple[Place, Part], None] = {}

    def mapping(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return arguments by name as a dictionary that notes which of its values are read."""
        return _RecordedArguments(arguments, self)

    def recorded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same, and whose reads are noted.

        A parameter counts as read. Those that a Python function collects in a dictionary
        (`**rest`) count once it reads them from there.
        """

        def call(*args: Any, **kwargs: Any) -> Any:
            args = tuple(self.mapping(arg) if arg.__class__ is dict else arg for arg in args)
            rest = _dictionary_of_rest(function)
            if rest is None:
                return function(*args, **self._hand_out_all(kwargs))
            twin, name, parameters = rest
            named = {key: kwargs.pop(key) for key in parameters if key in kwargs}
            return twin(*args, **self._hand_out_all(named), **{name: self.mapping(kwargs)})

        return call

    def _hand_out_all(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.hand_out(name, value) for name, value in arguments.items()}

    def hand_out(self, name: str, value: Any) -> Any:
        """Note that an argument is read, and return what the reader gets."""
        place = self._places.get(name)
        if place is None:
            return value
        if not _is_plain_tensor(value):
            self.noted[place, _whole] = None
            return value
        self.noted[place, type] = None
        self._tensors.setdefault(id(value), set()).add(place)
        if not self._is_told():
            self.note_parts(value, _TENSOR_PARTS)
        return value

    def watched(self) -> AbstractContextManager[Any]:
        """Return a context in which the reads of tensors that are handed out are noted."""
        if "torch" not in sys.modules:
            return nullcontext()
        context: AbstractContextManager[Any] = _watch()(self)
        return context

    def _is_told(self) -> bool:
        """Return whether reads are noted; not in another thread, or while that is switched off."""
        self._told_in = None
        _watch().probe.dtype  # noqa: B018
        return self._told_in == get_ident()

    def note_parts(self, tensor: Any, parts: Iterable[Part]) -> None:
        """Note that parts of a tensor are read, if it is one of those that were handed out."""
        self._told_in = get_ident()
        for place in self._tensors.get(id(tensor), ()):
            self.noted.update(dict.fromkeys((place, part) for part in parts))


_Dictionary: Any = dict  # mypy knows no class that is both


class _RecordedArguments(MutableMapping[str, Any], _Dictionary):  # type: ignore[misc]
    """A dictionary of arguments, any value of which is handed out by `Reads`.

    With an iterator that is not `dict`'s, Python takes no short cut to the values either where it
    copies or expands the dictionary. Names alone are no read: they are part of a launch's form.
    """

    def __init__(self, arguments: dict[str, Any], reads: Reads) -> None:
        dict.__init__(self, arguments)
        self._arguments, self._reads = arguments, reads

    def __getitem__(self, name: str) -> Any:
        return self._reads.hand_out(name, dict.__getitem__(self, name))

    def __setitem__(self, name: str, value: Any) -> None:
        dict.__setitem__(self, name, value)
        self._arguments[name] = value

    def __delitem__(self, name: str) -> None:
        dict.__delitem__(self, name)
        del self._arguments[name]

    def __iter__(self) -> Iterator[str]:
        return dict.__iter__(self)

    __reversed__ = dict.__reversed__
    __len__ = dict.__len__
    __contains__ = dict.__contains__

    def __or__(self, other: Any) -> Any:
        return dict(self) | other

    def __ror__(self, other: Any) -> Any:
        return other | dict(self)

    def __repr__(self) -> str:
        return repr(dict(self))

    def copy(self) -> dict[str, Any]:
        return dict(self)


def _dictionary_of_rest(
    function: Callable[..., Any],
) -> tuple[Callable[..., Any], str, tuple[str, ...]] | None:
    """Return a function that takes its `**rest` as one argument, its name, and the parameters.

    Python makes a new dictionary of `**rest` at each call, so no other one could be passed.
    """
    if function.__class__ is not FunctionType:
        return None
    code = function.__code__
    if not code.co_flags & inspect.CO_VARKEYWORDS or code.co_flags & inspect.CO_VARARGS:
        return None
    count = code.co_argcount + code.co_kwonlyargcount
    alike = code.replace(
        co_flags=code.co_flags & ~inspect.CO_VARKEYWORDS,
        co_kwonlyargcount=code.co_kwonlyargcount + 1,
    )
    twin = FunctionType(
        alike, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    names = code.co_varnames
    return twin, names[count], names[code.co_posonlyargcount : count]


def _whole(value: Any) -> Hashable:
    """Return what tells an argument from others; of a plain tensor, that it is one."""
    return value.__class__ if _is_plain_tensor(value) else _visible(value)


def _is_plain_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and value.__class__ is torch.Tensor


_DTYPE, _SHAPE, _STRIDE = attrgetter("dtype"), attrgetter("shape"), methodcaller("stride")
_DEVICE = attrgetter("device")


def _alignment(tensor: Any) -> int:
    return int(tensor.data_ptr() & 15)


_TENSOR_PARTS: tuple[Part, ...] = (_DTYPE, _SHAPE, _STRIDE, _DEVICE, _alignment)

_PARTS_OF_METHODS: dict[str, Part] = {
    "dtype": _DTYPE, "element_size": _DTYPE, "itemsize": _DTYPE, "is_floating_point": _DTYPE,
    "shape": _SHAPE, "size": _SHAPE, "numel": _SHAPE, "dim": _SHAPE, "ndim": _SHAPE,
    "__len__": _SHAPE, "stride": _STRIDE, "device": _DEVICE, "is_cuda": _DEVICE,
}  # fmt: skip
"""What tells the answer of a tensor's attribute or method; of any other, all parts together."""


@cache
def _watch() -> Any:
    """Return a context in which `Reads` is told of each tensor that PyTorch's functions read."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._pytree import tree_flatten

    parts: dict[Any, tuple[Part, ...]] = {}
    for name, part in _PARTS_OF_METHODS.items():
        member = getattr(torch.Tensor, name)
        parts[member if callable(member) else member.__get__] = (part,)

    class Watch(TorchFunctionMode):  # type: ignore[misc]
        probe = torch.empty(0, device="cpu")

        def __init__(self, reads: Reads) -> None:
            super().__init__()
            self._reads = reads

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if func in parts:
                self._reads.note_parts(args[0], parts[func])
            else:
                for value in tree_flatten((args, kwargs))[0]:
                    self._reads.note_parts(value, _TENSOR_PARTS)
            return func(*args, **kwargs)

    return Watch


_PLAIN_TYPES = frozenset({int, bool, str, bytes, type(None)})


def _visible(value: Any) -> tuple[Any, ...]:
    """Return a hashable tuple that differs wherever a function could tell two values apart.

    A tensor counts by its type, dtype, shape, strides, device and alignment on 16 bytes.

    Raises:
        TypeError: the value is of a type that may hide more than can be compared.
    """
    kind = value.__class__
    if kind in _PLAIN_TYPES or isinstance(value, enum.Enum):
        return kind, value
    if kind is float:
        return kind, repr(value)  # 0.0 and -0.0 are two values, and nan is one
    if kind in (tuple, list):
        return kind, *map(_visible, value)
    describe = _describers().get(kind)
    if describe is None:
        raise TypeError(f"the values of {kind.__qualname__} cannot be compared")
    return kind, *describe(value)


def _describers() -> dict[type, Callable[[Any], tuple[Any, ...]]]:
    """Return what describes the values of Triton's types, and of PyTorch's once it is imported."""
    if not _DESCRIBERS:
        import triton.language as tl

        _DESCRIBERS[tl.dtype] = _itself
        _DESCRIBERS[tl.constexpr] = lambda constant: _visible(constant.value)
    torch = sys.modules.get("torch")
    if torch is not None and torch.Tensor not in _DESCRIBERS:
        _DESCRIBERS[torch.dtype] = _DESCRIBERS[torch.device] = _itself
        _DESCRIBERS[torch.Tensor] = _DESCRIBERS[torch.nn.Parameter] = _describe_tensor
    return _DESCRIBERS


def _itself(value: Any) -> tuple[Any, ...]:
    return (value,)


def _describe_tensor(tensor: Any) -> tuple[Any, ...]:
    return tuple(part(tensor) for part in _TENSOR_PARTS)


_DESCRIBERS: dict[type, Callable[[Any], tuple[Any, ...]]] = {}


_MOST_NODES = 1 << 15
"""Values and answers that are kept; of an argument such as a seed, each value may have its own."""

_NOT_ARGUMENTS = frozenset({"grid", "warmup"})

Ask = Callable[[Reads, Sequence[Any], Mapping[str, Any]], Any]
"""Function that answers for a launch, and notes what it reads of the arguments."""


class Answers:
    """The answers of a function, asked once for launches that look the same to it.

    They are leaves of a tree: each branch is an argument that was read, with a child for each of
    its values, so that an answer holds for the launches that agree in all that was read for it. The
    grid does not count.

    Args:
        arg_names: the kernel's parameters, in order.
        ask: answers for a launch; an answer is no tuple.

    Attributes:
        find: function from a launch's device, positional arguments, and keyword arguments but
            `grid` and `warmup`, to the answer for launches that look the same. It raises an error
            if there is none yet, or an argument cannot be compared.
    """

    def __init__(self, arg_names: Sequence[str], ask: Ask) -> None:
        """Set up the tree without asking."""
        self._arg_names = arg_names
        self._ask = ask
        # By device and form: the number of positional arguments, and the names of the others.
        # A branch is (place of an argument, part of it that was read, children by its value).
        self._trees: dict[int, dict[Hashable, Any]] = {}
        self._kept = 0
        self.find = self._finder()

    def _finder(self) -> Callable[[int, Sequence[Any], Mapping[str, Any]], Any]:
        """Return `find`, whose names are all local since the hot path calls it."""
        trees = self._trees

        def find(device: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            node = trees[device][(len(args), *kwargs) if kwargs else len(args)]
            while node.__class__ is tuple:
                place, part, children = node
                value = args[place] if place.__class__ is int else kwargs[place]
                node = children[value if value.__class__ is int else part(value)]
            return node

        return find

    def answer(self, device: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the answer for a launch.

        Args:
            device: the device's index.
            args: the launch's positional arguments.
            kwargs: its keyword arguments, `grid` and `warmup` included.
        """
        given = {name: value for name, value in kwargs.items() if name not in _NOT_ARGUMENTS}
        with contextlib.suppress(Exception):
            return self.find(device, args, given)
        by_position = enumerate(self._arg_names[: len(args)])
        reads = Reads({name: place for place, name in by_position} | {name: name for name in given})
        answer = self._ask(reads, args, kwargs)
        with contextlib.suppress(Exception):  # what cannot be compared may differ at each launch
            self._keep(device, args, given, reads.noted, answer)
        return answer

    def _keep(
        self,
        device: int,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        noted: Iterable[tuple[Place, Part]],
        answer: Any,
    ) -> None:
        """Put an answer into the tree, below a branch for each read."""
        if self._kept >= _MOST_NODES:
            self._trees.clear()
            self._kept = 0
        unplaced = dict.fromkeys(noted)
        siblings = self._trees.setdefault(device, {})
        value: Hashable = (len(args), *kwargs) if kwargs else len(args)
        while (node := siblings.get(value)).__class__ is tuple or unplaced:
            if node.__class__ is not tuple:
                node = siblings[value] = (*next(iter(unplaced)), {})
                self._kept += 1
            place, part, siblings = node
            unplaced.pop((place, part), None)
            argument = args[place] if isinstance(place, int) else kwargs[place]
            value = argument if argument.__class__ is int else part(argument)
        siblings[value] = answer
        self._kept += 1
