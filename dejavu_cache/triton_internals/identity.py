"""Identify a kernel by where it is defined and by what Triton's own key of its code holds.

Under an equal key Triton runs the same binary. The key changes with a comment as well; whether the
code is the same all the same, the IR that Triton generates says: see `generated_code`.

The functions at the end recognise Triton's objects: jit functions, wrapped constants, dtypes.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import inspect
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from ..model.scenario import GENERATED_MODULE, as_text
from ..system.background_threads import dropping_errors, let_signals_through

if TYPE_CHECKING:
    from triton import Config as TritonConfig

PROCESS = uuid.uuid4().hex
"""Stands for this process where a value has no text that means the same in another."""

_RANDOM = re.compile(r"tmp[a-z0-9_]{8}|(\w*_)?(?=\w*\d)([0-9a-f]{14,}|[a-z0-9]{32,})", re.ASCII)
"""Parts of module names made from a temporary folder or a digest."""


class KernelIdentity(NamedTuple):
    """What tells a kernel's code from any other's.

    Attributes:
        source: 32 hexadecimal digits: 24 for the code, 8 for what its decorator says of arguments;
            None where the kernel has no key.
        unstored: why its timings mean nothing to another process, or None if they do.
    """

    source: str | None
    unstored: str | None

    def with_code(self, code: str) -> KernelIdentity:
        """Return the identity of a kernel of which Triton generated other code than is recorded."""
        assert self.source is not None
        salted = _digest(self.source, code)
        return self._replace(source=salted[:24] + self.source[24:])


def identify(kernel: Any, configs: Iterable[TritonConfig]) -> KernelIdentity:
    """Return a kernel's identity, given all configs that it declares."""
    try:
        function = jit_function(kernel)
        source = _digest(function_key(function))[:24] + _digest(*_decoration(function))[:8]
        unnamed = set()
        for config in configs:
            for name, value in config.kwargs.items():
                if not value_text(value):
                    unnamed.add(name)
    except Exception as error:  # plain Triton would say at the launch what is wrong with it
        let_signals_through(error)
        return KernelIdentity(None, f"its code has no key: {type(error).__name__}: {error}")
    named = ", ".join(sorted(unnamed))
    reason = f"a config sets {named} to a value without a name" if unnamed else None
    return KernelIdentity(source, reason)


def is_decorated_alike(source: str, other: str) -> bool:
    """Return whether two kernels' decorators treat arguments alike, so that IR may be compared."""
    return source[24:] == other[24:]


def function_key(function: Any) -> str:
    """Return the key of a jit function and of all that it calls.

    It holds what Triton's `cache_key` holds, without line numbers, and does not depend on which
    kernel a process reads first, as that does before Triton 3.9.

    Raises:
        Exception: Triton cannot read the function.
    """
    texts: list[str] = []
    seen, waiting = set(), [jit_function(function)]
    while waiting:
        function = waiting.pop()
        if id(function.fn) in seen:
            continue
        seen.add(id(function.fn))
        is_interpreted = type(function).__name__ == "InterpretedFunction"
        if is_interpreted:
            from triton.runtime.jit import JITFunction

            function = JITFunction(function.fn)
        source, read = function.src, _read.get(function.fn)
        # A program may replace the text; the interpreter calls what has a callee's name by then.
        if read is None or read[0] != source or is_interpreted:
            read = _read[function.fn] = source, *_references(function)
        texts += (read[1], str(bool(getattr(function, "noinline", False))))
        waiting += reversed(read[2])
    return _digest(*texts)


_read: WeakKeyDictionary[Any, tuple[str, str, list[Any]]] = WeakKeyDictionary()
"""Each Python function's text, with the digest of that and its globals, and what it calls."""


def _references(function: Any) -> tuple[str, list[Any]]:
    """Return the digest of a function's text and the globals that it reads, and what it calls.

    Triton's finder looks for them, without the keys of what is called.
    """
    from triton.runtime.jit import DependenciesFinder

    nonlocals = inspect.getclosurevars(function.fn).nonlocals
    finder: Any = DependenciesFinder(
        function._fn_name, function.__globals__, nonlocals, function.src
    )
    callees: list[Any] = []
    values: list[str] = []
    record_by_triton = finder.record_reference

    def record(val: Any, var_dict: Any = None, name: Any = None) -> None:
        if type(val).__name__ == "InterpretedFunction":
            callees.append(val)
            return
        record_by_triton(val, var_dict, name)
        if val is None or inspect.ismodule(val):
            return
        if not callable(val) or type(val).__name__ == "constexpr":
            values.append(value_text(val) or type(val).__qualname__)

    finder.record_reference, finder._update_hash = record, callees.append
    finder.visit(function.parse())
    return _digest(finder.ret, *values), callees


def _decoration(function: Any) -> Iterator[str]:
    """Write what a decorator says of the arguments, which is not in the function's text."""
    yield f"{type(function).__module__}.{type(function).__qualname__}"
    options = {**vars(function), **getattr(function, "kwargs", {})}
    for option in ("do_not_specialize", "do_not_specialize_on_alignment"):
        listed = []
        for one in options.get(option) or ():
            listed.append(function.arg_names[one] if type(one) is int else str(one))
        yield f"{option} {sorted(listed)}"
    for option in ("noinline", "debug"):
        yield f"{option} {bool(options.get(option))}"


def kernel_name(kernel: Any) -> str:
    """Return where a kernel is defined: its module and qualified name.

    The module of a script is what it would be imported as. One whose name was made by chance or
    from a digest is called `GENERATED_MODULE`: its kernels are told apart by their code.
    """
    function = python_function(kernel)
    module = module_name(function)
    place = GENERATED_MODULE if any(map(_RANDOM.fullmatch, module.split("."))) else module
    return as_text(f"{place}.{function.__qualname__}")


def value_text(value: Any) -> str | None:
    """Return a text that means the same value in every process; None if there is none.

    Compile-time constants are plain values, dtypes, functions that kernels can call, members of
    enumerations, and tuples of those.
    """
    if type(value).__name__ == "constexpr" and hasattr(value, "value"):
        return value_text(value.value)
    if value is None or type(value) in (bool, int, float, str):
        return f"={value!r}"
    if type(value).__name__ == "dtype":
        return dtype_name(value)
    if isinstance(value, enum.Enum):
        of_value = value_text(value.value)
        return of_value and f"{qualified_name(type(value))}.{value.name}{of_value}"
    if isinstance(value, (tuple, list)):
        texts = list(map(value_text, value))
        kind = "" if type(value) is tuple else qualified_name(type(value))
        return None if None in texts else f"{kind}({', '.join(filter(None, texts))})"
    if is_triton_own(value):
        return qualified_name(value)
    if dataclasses.is_dataclass(value) and is_triton_own(type(value)):  # such as Gluon's layouts
        fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        written = {name: value_text(item) for name, item in fields.items()}
        return None if None in written.values() else f"{qualified_name(type(value))} {written}"
    if not is_jit(value):
        return None
    with dropping_errors():  # the launch reports what is wrong with it
        return f"{kernel_name(value)[:400]} {function_key(value)[:32]}"
    return None


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def python_function(kernel: Any) -> Callable[..., Any]:
    """Return the Python function under a kernel's decorators (`jit`, `heuristics`, `autotune`)."""
    while not inspect.isfunction(kernel):
        kernel = kernel.fn
    return kernel


def jit_function(kernel: Any) -> Any:
    """Return the `JITFunction` at the bottom of a stack of autotuners and heuristics."""
    while hasattr(kernel.fn, "fn"):
        kernel = kernel.fn
    return kernel


def heuristics_of(kernel: Any) -> dict[str, Callable[[Any], Any]]:
    """Return the heuristics around a jit function, in the order in which a launch asks them."""
    found: dict[str, Callable[[Any], Any]] = {}
    while hasattr(kernel, "fn") and not inspect.isfunction(kernel.fn):
        found.update(getattr(kernel, "values", {}))
        kernel = kernel.fn
    return found


def find_jit_function(value: Any) -> Any | None:
    """Return the `JITFunction` inside a decorated kernel, or None if a value is something else."""
    from triton.runtime.jit import JITFunction

    with suppress(AttributeError):
        function = jit_function(value)
        return function if isinstance(function, JITFunction) else None
    return None


def qualified_name(definition: Any) -> str:
    """Return the module and name of a function or class, as the definition itself has them."""
    return f"{definition.__module__}.{definition.__qualname__}"


def module_name(definition: Any) -> str:
    """Return the module of a function or class.

    That of a script which runs as `__main__`, or which a spawned process imports as `__mp_main__`,
    is the one it would be imported as.
    """
    module: str = getattr(definition, "__module__", None) or ""
    if module in ("__main__", "__mp_main__"):
        main = sys.modules[module]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        return spec.name if spec else Path(file).stem if file else "__main__"
    return module


def is_jit(value: Any) -> bool:
    """Return whether a value is a jit function, perhaps decorated, or a `constexpr_function`."""
    if isinstance(value, type) or not hasattr(value, "fn") or not callable(value):
        return False
    # Of a class that is none of Triton's, nor made from one, an object runs code of its own.
    if not any(kind.__module__.partition(".")[0] == "triton" for kind in type(value).__mro__):
        return False
    with suppress(AttributeError):
        return inspect.isfunction(python_function(value))
    return False


def is_triton_own(value: Any) -> bool:
    """Return whether a value is what a name in Triton's package stands for: its version tells."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(name, str) and callable(value)):
        return False
    found: Any = sys.modules.get(module) if module.partition(".")[0] == "triton" else None
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


def dtype_name(dtype: Any) -> str:
    """Return a dtype's name, such as `float16` for `torch.float16`."""
    return str(dtype).removeprefix("torch.")
