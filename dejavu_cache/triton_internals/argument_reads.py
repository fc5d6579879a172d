"""The answers of a function of a launch's arguments, which is asked again where it may answer anew.

A function that prunes configs, or a heuristic, gets the arguments by name. What it looks at is
noted, and its answer holds for all launches that are equal in that.
"""

import dis
import enum
import inspect
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from types import CodeType
from typing import Any

from ..system.background_threads import dropping_errors

_MOST_ANSWERS = 1 << 15
"""Answers that are kept; of an argument such as a seed, each value may have its own."""

_NOT_ARGUMENTS = frozenset({"grid", "warmup"})

_ABSENT = object()

_PLAIN_TYPES = frozenset({int, bool, str, bytes, type(None)})

_SEE_ALL_VARIABLES = frozenset({"locals", "vars", "eval", "exec", "inspect", "sys", "_getframe"})
"""Names by which a function can reach a variable that its code does not name."""


class ReadArguments(dict[str, Any]):
    """Arguments by name, which notes the names whose values are read.

    What is written to this dictionary is written to the launch's arguments, too.
    """

    def __init__(self, arguments: dict[str, Any], read: set[str]) -> None:
        """Note nothing yet."""
        super().__init__(arguments)
        self._arguments = arguments
        self._read = read

    def __getitem__(self, name: str) -> Any:
        """Return an argument, and note that it was read."""
        value = super().__getitem__(name)
        self._read.add(name)
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        """Set an argument."""
        super().__setitem__(name, value)
        self._arguments[name] = value

    def __delitem__(self, name: str) -> None:
        """Remove an argument."""
        super().__delitem__(name)
        del self._arguments[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names; without this, `**` would copy the values unnoted."""
        return super().__iter__()

    # Those of a dictionary read and write without asking the methods above.
    get, items, values = Mapping.get, Mapping.items, Mapping.values  # type: ignore[assignment]
    pop, popitem = MutableMapping.pop, MutableMapping.popitem
    setdefault, update = MutableMapping.setdefault, MutableMapping.update
    clear, __eq__ = MutableMapping.clear, Mapping.__eq__
    __hash__ = None

    def copy(self) -> dict[str, Any]:
        """Return all arguments, which reads them."""
        return dict(self)

    __copy__ = copy

    def __or__(self, other: Any) -> Any:
        """Return a union, which reads all arguments."""
        return dict(self) | dict(other)

    def __ror__(self, other: Any) -> Any:
        """Return a union, which reads all arguments."""
        return dict(other) | dict(self)

    def __ior__(self, other: Any) -> Any:
        """Set several arguments."""
        self.update(other)
        return self

    def __repr__(self) -> str:
        """Show all arguments, which reads them."""
        return repr(dict(self))


def noting_reads(function: Callable[..., Any], read: set[str]) -> Callable[..., Any]:
    """Return a function that does the same, and notes which of a launch's arguments it may read.

    What it is given by name counts as read, but for what it ignores as a part of `**rest`. Of a
    dictionary, what it looks at counts.
    """
    parameters = _parameters_beside_rest(getattr(function, "__code__", None))

    def call(*args: Any, **kwargs: Any) -> Any:
        read.update(kwargs if parameters is None else kwargs.keys() & parameters)
        noting = [ReadArguments(arg, read) if arg.__class__ is dict else arg for arg in args]
        return function(*noting, **kwargs)

    return call


def _parameters_beside_rest(code: CodeType | None) -> frozenset[str] | None:
    """Return the parameters of a function that does not look at its `**rest`, and else None."""
    if code is None or not code.co_flags & inspect.CO_VARKEYWORDS:
        return None
    if not _SEE_ALL_VARIABLES.isdisjoint(code.co_names):
        return None
    count = code.co_argcount + code.co_kwonlyargcount
    rest = code.co_varnames[count + bool(code.co_flags & inspect.CO_VARARGS)]
    for instruction in dis.get_instructions(code):
        used = instruction.argval  # one instruction may load two variables
        if rest == used or (isinstance(used, tuple) and rest in used):
            return None
    return frozenset(code.co_varnames[:count])


def _visible(value: Any) -> Hashable:
    """Return what differs wherever a function could tell two values apart.

    A tensor counts by its type, dtype, shape, strides, device and alignment on 16 bytes. Its
    elements do not count, since comparing them would make each launch wait for the device.

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
    torch = sys.modules.get("torch")
    if torch is not None and kind in (torch.Tensor, torch.nn.Parameter):
        layout = value.dtype, value.shape, value.stride(), value.device
        return kind, *layout, value.data_ptr() & 15
    if value is _ABSENT or kind.__name__ in ("dtype", "device"):  # Triton's and PyTorch's
        return kind, value
    raise TypeError(f"the values of {kind.__qualname__} cannot be compared")


Ask = Callable[[set[str], Sequence[Any], Mapping[str, Any]], Any]
"""Function that answers for a launch, and adds the names of the arguments that it reads."""


class Answers:
    """The answers of a function, asked once for launches that are equal in all that it has read.

    What it has read for one launch is compared for every other one. The grid does not count.
    """

    def __init__(self, arg_names: Sequence[str], ask: Ask) -> None:
        """Keep no answer yet."""
        self._arg_names = arg_names
        self._ask = ask
        # What was read, with its place among the parameters: pairs, over which each launch goes.
        self._read: tuple[tuple[str, int], ...] = ()
        self._kept: dict[Hashable, Any] = {}

    def form(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Hashable, ...]:
        """Return what of a launch's arguments may tell its answer from others.

        The names of the keywords count too, among which `grid` and `warmup` are not.

        Raises:
            TypeError: an argument that was read cannot be compared.
        """
        count = len(args)
        form: tuple[Hashable, ...] = (count, *kwargs) if kwargs else (count,)
        for name, place in self._read:
            value = args[place] if place < count else kwargs.get(name, _ABSENT)
            form += (value if value.__class__ is int else _visible(value),)
        return form

    def answer(self, device: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the answer for a launch, whose keywords include `grid` and `warmup`."""
        given = {name: value for name, value in kwargs.items() if name not in _NOT_ARGUMENTS}
        with dropping_errors(), suppress(KeyError, TypeError):  # most are: a look takes 0.2 ms
            return self._kept[device, self.form(args, given)]
        read: set[str] = set()
        answer = self._ask(read, args, kwargs)
        if more := read - _NOT_ARGUMENTS - dict(self._read).keys():
            names = list(self._arg_names)
            places = {name: names.index(name) if name in names else len(names) for name in more}
            self._read += tuple(places.items())
            self._kept.clear()
        elif len(self._kept) >= _MOST_ANSWERS:
            self._kept.clear()
        with dropping_errors():  # what cannot be compared may differ at each launch
            self._kept[device, self.form(args, given)] = answer
        return answer
