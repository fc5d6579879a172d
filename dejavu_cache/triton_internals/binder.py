"""Compute a launch's cache key with a function generated for the kernel's signature.

Triton generates its binder too, since a loop over the parameters would take longer than the rest of
a launch. A key may differ between arguments that Triton treats alike, which costs an entry; it
never is the same for arguments that Triton treats differently. Specialisations come from Triton's
own function, once per integer and, where more than type and alignment count, once per launch.
"""

from __future__ import annotations

import inspect
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from triton import knobs

from ..model.buckets import Bucket, Edges, Exact, Multiple, Pow2
from .versions import SPECIALIZE, WATCHED_KNOBS, only_alignment_counts, specializer

__all__ = ["SET_BY_CONFIG", "Binder", "binder_for"]

Binder = Callable[..., tuple[dict[str, Any], tuple[Any, ...]]]
"""Function from a launch's arguments to all parameters by name, in order, and the key."""

SET_BY_CONFIG: Any = type("_SetByConfig", (), {"__repr__": lambda _: "<set by config>"})()
"""Value of the parameters that are left to the config."""

_MOST_INTEGERS = 1 << 16


class _IntegerSpecializations(dict[int, Any]):
    """Cache of Triton's specialisations of integers.

    Args:
        specialize: returns the specialisation of an integer.
    """

    def __init__(self, specialize: Callable[[int], Any]) -> None:
        self._specialize = specialize

    def __missing__(self, value: int) -> Any:
        if len(self) >= _MOST_INTEGERS:
            self.clear()
        self[value] = specialization = self._specialize(value)
        return specialization


def binder_for(
    fn: Any,
    tuned: frozenset[str],
    keys: Sequence[str],
    buckets: Mapping[str, Bucket],
) -> Binder:
    """Generate the binder of a jit function for the current device.

    Of a kernel `(x, n, BLOCK: tl.constexpr)` with the key `n`, whose configs set `BLOCK`, it is

        def bind(x, n, BLOCK=__open, **__options):
            if BLOCK is not __open: raise TypeError
            return {'x': x, 'n': n, 'BLOCK': BLOCK}, (…x, …n, …bucket of n, …options and knobs,)

    The binder raises where arguments do not fit, or cannot be part of a key. Callers launch through
    Triton then, which reports the error.

    Args:
        fn: Triton's `JITFunction`, launched once on the current device.
        tuned: the parameters that configs set.
        keys: the key arguments.
        buckets: the buckets of some of them.
    """
    defaults = {
        parameter.name: parameter.default
        for parameter in fn.params
        if parameter.has_default and parameter.name not in tuned
    }
    namespace = _names_for(fn, defaults, buckets)
    # A launch that leaves out a key argument has another scenario than one that gives its default.
    optional_keys = [name for name in keys if name in defaults]
    parts = [
        *(
            _argument_part(parameter, namespace)
            for parameter in fn.params
            if parameter.name not in tuned
        ),
        *(_bucket_part(name, buckets.get(name)) for name in keys),
        *(f"__given_{name}" for name in optional_keys),
        *("str(__options) if __options else None", "__fn.debug", *WATCHED_KNOBS),
    ]
    exec(_binder_text(fn, tuned, optional_keys, parts), namespace)
    binder: Binder = namespace["bind"]
    return binder


def _binder_text(
    fn: Any, tuned: frozenset[str], optional_keys: Sequence[str], parts: Sequence[str]
) -> str:
    """Write the source code of a binder, whose key is made of `parts`."""
    lines = [f"def bind({', '.join(_parameters(fn, tuned, optional_keys))}):"]
    lines += [
        f"    if {name} is not __open: raise TypeError" for name in fn.arg_names if name in tuned
    ]
    for name in optional_keys:
        lines += [
            f"    __given_{name} = {name} is not __open",
            f"    if not __given_{name}: {name} = __default_{name}",
        ]
    bound = ", ".join(f"{name!r}: {name}" for name in fn.arg_names)
    lines += [f"    return {{{bound}}}, ({', '.join(parts)},)"]
    return "\n".join(lines)


def _names_for(
    fn: Any, defaults: Mapping[str, Any], buckets: Mapping[str, Bucket]
) -> dict[str, Any]:
    """Return the global names of a binder's source code."""
    namespace = {
        "__fn": fn,
        "__knobs": knobs,
        "__open": SET_BY_CONFIG,
        "__tensors": _plain_tensor_types(fn),
        "__constant": _constant_part,
        "__bisect_right": bisect_right,
        **specializer(fn),
    }
    for name, default in defaults.items():
        namespace[f"__default_{name}"] = default
    for name, bucket in buckets.items():
        if isinstance(bucket, Edges):
            namespace[f"__edges_{name}"] = bucket.edges
    return namespace


def _parameters(fn: Any, tuned: frozenset[str], optional_keys: Sequence[str]) -> list[str]:
    """Write the binder's parameters: the kernel's, optional from the first tuned one on."""
    written, after_tuned, keyword_only = [], False, False
    for name, parameter in fn.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            written.append(f"*{name}")
            keyword_only = True
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keyword_only:
            written.append("*")
            keyword_only = True
        after_tuned = after_tuned or name in tuned
        required = parameter.default is inspect.Parameter.empty
        if name in tuned or name in optional_keys or (after_tuned and required):
            written.append(f"{name}=__open")
        elif not required:
            written.append(f"{name}=__default_{name}")
        else:
            written.append(name)
    return [*written, "**__options"]


def _argument_part(parameter: Any, namespace: dict[str, Any]) -> str:
    """Write the expression for one argument's specialisation.

    Args:
        parameter: Triton's `KernelParam`.
        namespace: the binder's globals; what the expression needs is added.
    """
    name = parameter.name
    if parameter.is_constexpr:
        return f"{name} if {name}.__class__ is int else __constant({name})"
    flags = (
        parameter.is_const,
        not parameter.do_not_specialize,
        not parameter.do_not_specialize_on_alignment,
    )
    specialization = SPECIALIZE.format(value=name, flags=", ".join(map(str, flags)))
    integers = "__integers_" + "_".join(map(str, flags))
    if integers not in namespace:
        of_value = SPECIALIZE.format(value="value", flags=", ".join(map(str, flags)))
        namespace[integers] = _IntegerSpecializations(eval(f"lambda value: {of_value}", namespace))
    return (
        f"{integers}[{name}] if {name}.__class__ is int else "
        f"({name}.dtype, {name}.data_ptr() & 15) if {name}.__class__ in __tensors else "
        f"({name}.__class__, {specialization})"
    )


def _bucket_part(name: str, bucket: Bucket | None) -> str:
    """Write an expression that differs wherever a key argument's bucket or type does.

    It may differ within a bucket too, where that is cheaper to compute.
    """
    expression = {
        Pow2: f"{name}.bit_length()",  # whatever the bounds
        Edges: f"__bisect_right(__edges_{name}, {name})",
        Multiple: f"{name} // {getattr(bucket, 'n', 1)}",
        Exact: name,
        type(None): name,
    }.get(type(bucket))
    if expression is None:
        return f"__constant({name})"
    return f"{expression} if {name}.__class__ is int and {name} > 0 else __constant({name})"


def _constant_part(value: Any) -> Any:
    """Return a value with its type, so that 1, 1.0 and True are three keys."""
    if isinstance(value, float):
        return value.__class__, repr(value)  # 0.0 and -0.0 are two constants, and nan is one
    if isinstance(value, tuple):
        return value.__class__, *map(_constant_part, value)
    if value is SET_BY_CONFIG:
        raise TypeError
    return value.__class__, value


def _plain_tensor_types(fn: Any) -> frozenset[type]:
    """Return the types of which Triton looks at dtype and alignment only."""
    torch = sys.modules.get("torch")
    if torch is None or not only_alignment_counts(fn):
        return frozenset()
    return frozenset({torch.Tensor, torch.nn.Parameter})
