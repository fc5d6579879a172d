"""Compute a launch's cache key with a function generated for the kernel's signature.

Triton generates its binder too, since a loop over the parameters would take longer than the rest of
a launch. A key may differ between arguments that Triton treats alike, which costs an entry; it
never is the same for arguments that Triton treats differently. Specialisations come from Triton's
own function, once per integer and, where more than type and alignment count, once per launch.

`form_of_launch` is such a key where a kernel has no autotuner. A `RepeatedLaunch` binds nothing:
the layers of a model launch one kernel with other pointers.
"""

from __future__ import annotations

import inspect
import sys
from bisect import bisect_right
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from triton import knobs
from triton.runtime import driver

from ..model.buckets import Bucket, Edges, Exact, Multiple, Pow2
from .versions import (
    SPECIALIZE,
    WATCHED_KNOBS,
    active_hook,
    c_launcher,
    expand_descriptor,
    expandable_descriptors,
    only_alignment_counts,
    specializer,
    watched_values,
)

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel
    from triton.runtime.jit import JITFunction, KernelParam

Binder = Callable[..., tuple[dict[str, Any], tuple[Any, ...]]]
"""Function from a launch's arguments to all parameters by name, in order, and the key."""

SET_BY_CONFIG: Any = type("_SetByConfig", (), {"__repr__": lambda _: "<set by config>"})()
"""Value of the parameters that are left to the config."""

_MOST_INTEGERS = 1 << 16


class _IntegerSpecializations(dict[int, Any]):
    """Cache of Triton's specialisations of integers, which an expression computes from `value`."""

    def __init__(self, expression: str, names: dict[str, Any]) -> None:
        self._specialize = eval(f"lambda value: {expression}", names)

    def __missing__(self, value: int) -> Any:
        if len(self) >= _MOST_INTEGERS:
            self.clear()
        self[value] = specialization = self._specialize(value)
        return specialization


def binder_for(
    fn: JITFunction, tuned: frozenset[str], keys: Sequence[str], buckets: Mapping[str, Bucket]
) -> Binder:
    """Generate the binder of a jit function for the current device.

    Of a kernel `(x, n, BLOCK: tl.constexpr)` with the key `n`, whose configs set `BLOCK`, it is

        def bind(x, n, BLOCK=__open, **__options):
            if BLOCK is not __open: raise TypeError
            return {'x': x, 'n': n, 'BLOCK': BLOCK}, (…x, …n, …bucket of n, …options and knobs,)

    The binder raises where arguments do not fit, or cannot be part of a key. Callers launch through
    Triton then, which reports the error. The function must have been launched on it.
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
    fn: JITFunction, tuned: frozenset[str], optional_keys: Sequence[str], parts: Sequence[str]
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
    fn: JITFunction, defaults: Mapping[str, Any], buckets: Mapping[str, Bucket]
) -> dict[str, Any]:
    """Return the global names of a binder's source code."""
    namespace = {
        "__fn": fn,
        "__knobs": knobs,
        "__open": SET_BY_CONFIG,
        "__tensors": _plain_tensor_types(fn),
        "__constant": typed_constant,
        "__bisect_right": bisect_right,
        **specializer(fn),
    }
    for name, default in defaults.items():
        namespace[f"__default_{name}"] = default
    for name, bucket in buckets.items():
        if isinstance(bucket, Edges):
            namespace[f"__edges_{name}"] = bucket.edges
    return namespace


def _parameters(fn: JITFunction, tuned: frozenset[str], optional_keys: Sequence[str]) -> list[str]:
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


def _argument_part(parameter: KernelParam, namespace: dict[str, Any]) -> str:
    """Write the expression for one argument's specialisation.

    What it needs is added to the namespace, the binder's globals.
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
        namespace[integers] = _IntegerSpecializations(of_value, namespace)
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


def typed_constant(value: Any) -> Any:
    """Return a value with its type, so that 1, 1.0 and True are three keys.

    Raises:
        TypeError: the value is left to the config.
    """
    if isinstance(value, float):
        return value.__class__, repr(value)  # 0.0 and -0.0 are two constants, and nan is one
    if isinstance(value, tuple):
        return value.__class__, *map(typed_constant, value)
    if value is SET_BY_CONFIG:
        raise TypeError
    return value.__class__, value


def _plain_tensor_types(fn: JITFunction) -> frozenset[type]:
    """Return the types of which Triton looks at dtype and alignment only."""
    torch = sys.modules.get("torch")
    if torch is None or not only_alignment_counts(fn):
        return frozenset()
    return frozenset({torch.Tensor, torch.nn.Parameter})


def form_of_launch(
    kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Hashable, ...] | None:
    """Return what the compiled kernel of a launch on the current device depends on.

    The keywords are its constants and options. None stands for an argument of an unknown type.
    """
    forms = tuple(map(form_of_argument, args))
    if None in forms:
        return None
    device = driver.active.get_current_device()
    return kernel, device, watched_values(knobs), forms, tuple(kwargs.items())


def form_of_argument(value: Any) -> Hashable | None:
    """Return what Triton compiles a kernel for of an argument; None for a type unknown here.

    Pointers count by their alignment, and integers by their size and whether they are 1 or
    multiples of 16.
    """
    if type(value) is int:
        size = 0 if -(1 << 31) <= value < 1 << 31 else value
        return int, value == 1, value % 16 == 0, size
    if hasattr(value, "data_ptr"):
        return value.dtype, value.data_ptr() % 16 == 0
    if value is None or type(value) is float:
        return (type(value),)
    if type(value).__name__ == "TensorDescriptor" and hasattr(value, "layout"):
        return value.base.dtype, tuple(value.block_shape), len(value.shape), value.layout
    return None


def current_stream() -> int:
    """Return the address of the current device's stream, without PyTorch's object around it."""
    active = driver.active
    return int(active.get_current_stream(active.get_current_device()))


class RepeatedLaunch:
    """A launch whose kernel, grid and numbers stay as they are.

    The new values must be specialised like the first ones: tensors of the same dtypes on the same
    device, with pointers that are aligned alike.

    Args:
        kernel: Triton's `CompiledKernel`, launched once on the current device.
        grid: number of programs, of up to three dimensions.
        arguments: all of the function's arguments by name, in order, including those of a config.
        changing: names of the arguments that later launches give.
    """

    def __init__(
        self,
        kernel: CompiledKernel,
        grid: tuple[int, ...],
        arguments: Mapping[str, Any],
        changing: Sequence[str],
    ) -> None:
        """Prepare the launch; the arguments are described at the class."""
        descriptors = expandable_descriptors(kernel)
        self._metadata: dict[str, Any] = {}
        self._arguments: list[Any] = []
        self._places: dict[str, int | slice] = {}
        for index, (name, value) in enumerate(arguments.items()):
            begin = len(self._arguments)
            if index in descriptors:
                self._metadata[name] = descriptors[index]
                self._arguments += self.expand(name, value)
                self._places[name] = slice(begin, len(self._arguments))
            else:
                # A tensor that is kept here would never be freed.
                self._arguments.append(None if name in changing else value)
                self._places[name] = begin
        self._at: list[Any] = [self._places[name] for name in changing]
        self._grid = (*grid, 1, 1)[:3]
        self._call = c_launcher(kernel, expanded=bool(descriptors))
        self._device = driver.active.get_current_device()

    def with_values(
        self, grid: tuple[int, ...], values: Mapping[str, Any], changing: Collection[str]
    ) -> RepeatedLaunch:
        """Return a copy in which some of the changing arguments have values for good.

        Args:
            grid: the copy's number of programs.
            values: of all changing arguments, by name.
            changing: names of those that still change, whose values here do not matter.
        """
        launch = copy(self)
        launch._grid = (*grid, 1, 1)[:3]
        launch._arguments = self._arguments.copy()
        for name, value in values.items():
            if name not in changing:
                launch._arguments[self._places[name]] = self.expand(name, value)
        launch._at = [self._places[name] for name in changing]
        return launch

    @property
    def expands(self) -> bool:
        """Whether launches take descriptors as `expand` returns them, and not as they are."""
        return bool(self._metadata)

    def expand(self, name: str, descriptor: Any) -> Any:
        """Return a TMA descriptor as launches take it; it may be kept for later ones."""
        metadata = self._metadata.get(name)
        return descriptor if metadata is None else expand_descriptor(descriptor, metadata)

    def __call__(self, *values: Any) -> bool:
        """Launch with new values of the changing arguments, in their order.

        Args:
            *values: tensors and numbers, and descriptors as `expand` returns them.

        Returns:
            False if nothing was launched, because a hook wants to see each launch.
        """
        runtime = knobs.runtime
        if (
            active_hook(runtime.launch_enter_hook) is not None
            or active_hook(runtime.launch_exit_hook) is not None
        ):
            return False
        arguments = self._arguments.copy()  # another thread may launch meanwhile
        for index, value in zip(self._at, values, strict=True):
            arguments[index] = value
        stream = driver.active.get_current_stream(self._device)
        self._call(*self._grid, stream, None, None, None, arguments)
        return True
