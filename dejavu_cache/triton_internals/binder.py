"""From a launch's arguments to one key, by a function that is written for the kernel's signature.

Triton does the same for the same reason: a loop over the parameters would take longer than all the rest. A part of
the key may tell apart what Triton takes for the same, which costs an entry; it never takes for the same what Triton
tells apart. What an argument is to Triton is asked of Triton's own function, once per integer and, where more than
type and alignment count, once per launch.
"""

from __future__ import annotations

import inspect
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from triton import knobs

from ..model.buckets import Bucket, Edges, Exact, Multiple, Pow2
from .versions import SPECIALIZE, WATCHED, only_alignment_counts, specializer

__all__ = ["OPEN", "Binder", "binder_for", "bucket_part"]

Binder = Callable[..., tuple[dict[str, Any], tuple[Any, ...]]]
"""From a launch's arguments to all parameters by name, in the signature's order, and the key."""

OPEN: Any = type("_Open", (), {"__repr__": lambda _: "<left open>"})()
"""What a parameter is bound to that configs set."""

_REMEMBERED = 1 << 16


class _Integers(dict[int, Any]):
    """What Triton makes of integers, remembered."""

    def __init__(self, specialize: Callable[[int], Any]) -> None:
        self._specialize = specialize

    def __missing__(self, value: int) -> Any:
        if len(self) >= _REMEMBERED:
            self.clear()
        self[value] = found = self._specialize(value)
        return found


def binder_for(
    fn: Any, tuned: frozenset[str], keys: Sequence[str], buckets: Mapping[str, Bucket]
) -> Binder:
    """The binder of a jit function for the current device.

    It raises where a launch's arguments do not fit, or cannot be part of a key; what the error should say is
    Triton's to know.

    Args:
        tuned: the parameters that configs set.
        keys: the key arguments.
        buckets: the buckets of some of them.
    """
    namespace = {
        "__fn": fn,
        "__knobs": knobs,
        "__open": OPEN,
        "__tensors": _tensors(fn),
        "__constant": _constant,
    }
    namespace |= {"__bisect_right": bisect_right, **specializer(fn)}
    defaults = {
        each.name: each.default for each in fn.params if each.has_default and each.name not in tuned
    }
    namespace |= {f"__default_{name}": default for name, default in defaults.items()}
    namespace |= {
        f"__edges_{name}": bucket.edges
        for name, bucket in buckets.items()
        if isinstance(bucket, Edges)
    }
    # Where a key argument has a default, leaving it out is a scenario of its own.
    counted = [name for name in keys if name in defaults]
    parts = [_argument_part(each, namespace) for each in fn.params if each.name not in tuned]
    parts += [bucket_part(name, buckets.get(name)) for name in keys]
    parts += [f"__given_{name}" for name in counted]
    parts += ["str(__options) if __options else None", "__fn.debug", *WATCHED]
    lines = [f"def bind({', '.join(_parameters(fn, tuned, counted))}):"]
    lines += [
        f"    if {name} is not __open: raise TypeError" for name in fn.arg_names if name in tuned
    ]
    for name in counted:
        lines += [
            f"    __given_{name} = {name} is not __open",
            f"    if not __given_{name}: {name} = __default_{name}",
        ]
    bound = ", ".join(f"{name!r}: {name}" for name in fn.arg_names)
    lines += [f"    return {{{bound}}}, ({', '.join(parts)},)"]
    exec("\n".join(lines), namespace)
    made: Binder = namespace["bind"]
    return made


def _parameters(fn: Any, tuned: frozenset[str], counted: Sequence[str]) -> list[str]:
    """The binder's parameters: the kernel's, where what is tuned, and what follows it, may be left out."""
    written, past, starred = [], False, False
    for name, parameter in fn.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            written.append(f"*{name}")
            starred = True
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            written.append("*")
            starred = True
        past = past or name in tuned
        if (
            name in tuned
            or name in counted
            or (past and parameter.default is inspect.Parameter.empty)
        ):
            written.append(f"{name}=__open")
        elif parameter.default is not inspect.Parameter.empty:
            written.append(f"{name}=__default_{name}")
        else:
            written.append(name)
    return [*written, "**__options"]


def _argument_part(parameter: Any, namespace: dict[str, Any]) -> str:
    """What Triton distinguishes of one argument."""
    name = parameter.name
    if parameter.is_constexpr:
        return f"{name} if {name}.__class__ is int else __constant({name})"
    flags = (
        parameter.is_const,
        not parameter.do_not_specialize,
        not parameter.do_not_specialize_on_alignment,
    )
    asked = SPECIALIZE.format(value=name, flags=", ".join(map(str, flags)))
    integers = "__integers_" + "_".join(map(str, flags))
    if integers not in namespace:
        ask = "lambda value: " + SPECIALIZE.format(value="value", flags=", ".join(map(str, flags)))
        namespace[integers] = _Integers(eval(ask, namespace))
    return (
        f"{integers}[{name}] if {name}.__class__ is int else "
        f"({name}.dtype, {name}.data_ptr() & 15) if {name}.__class__ in __tensors else ({name}.__class__, {asked})"
    )


def bucket_part(name: str, bucket: Bucket | None) -> str:
    """An expression that differs wherever a key argument's bucket or type does; within a bucket it may differ too."""
    finer = {
        Pow2: f"{name}.bit_length()",  # whatever the bounds
        Edges: f"__bisect_right(__edges_{name}, {name})",
        Multiple: f"{name} // {getattr(bucket, 'n', 1)}",
        Exact: name,
        type(None): name,
    }.get(type(bucket))
    if finer is None:
        return f"__constant({name})"
    return f"{finer} if {name}.__class__ is int and {name} > 0 else __constant({name})"


def _constant(value: Any) -> Any:
    """A value as part of a key, told from others that compare equal."""
    if isinstance(value, float):
        return value.__class__, repr(value)  # 0.0 and -0.0 are two constants, and nan is one
    if isinstance(value, tuple):
        return value.__class__, *map(_constant, value)
    if value is OPEN:
        raise TypeError
    return value.__class__, value


def _tensors(fn: Any) -> frozenset[type]:
    """The types of which type and alignment are all that Triton looks at."""
    torch = sys.modules.get("torch")
    return (
        frozenset({torch.Tensor, torch.nn.Parameter})
        if torch and only_alignment_counts(fn)
        else frozenset()
    )
