"""Tell which of a launch's arguments a kernel reads and which it writes.

A compiled kernel says so by its Triton IR, for all launches of its code. The interpreter shows it
for one launch, by the addresses that are loaded and stored.
"""

from __future__ import annotations

import itertools
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..system.background_threads import dropping_errors
from .hooks import set_interpreter_memory

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

READ, WRITTEN, UNKNOWN = "read", "written", "unknown"

_EFFECTS = {
    "tt.load": (READ,),
    "tt.descriptor_load": (READ,),
    "tt.descriptor_gather": (READ,),
    "tt.store": (WRITTEN,),
    "tt.descriptor_store": (WRITTEN,),
    "tt.descriptor_scatter": (WRITTEN,),
    "tt.descriptor_reduce": (READ, WRITTEN),
    "tt.atomic_rmw": (READ, WRITTEN),
    "tt.atomic_cas": (READ, WRITTEN),
}
"""What operations do to the memory behind their first operand."""

_PASSING = ("scf.for", "scf.if", "scf.while")
"""Operations that give their regions pointers, and return those that they pass on, in order."""

_DERIVING = frozenset(
    {
        "arith.select", "tt.addptr", "tt.advance", "tt.bitcast", "tt.broadcast", "tt.cat",
        "tt.expand_dims", "tt.join", "tt.make_tensor_descriptor", "tt.make_tensor_ptr",
        "tt.reshape", "tt.splat", "tt.split", "tt.trans", "tt.unsplat", *_PASSING,
    }
)  # fmt: skip
"""Operations whose pointers are those that they are given."""


class Accesses(NamedTuple):
    """What a kernel does with the memory behind its arguments.

    Attributes:
        read: the arguments that it may read; parts of tuples have names such as `outs[0]`.
        written: those that it may write.
        elsewhere: whether it may write memory to which no argument points.
    """

    read: frozenset[str]
    written: frozenset[str]
    elsewhere: bool = False


def accesses_of_kernel(kernel: CompiledKernel) -> Accesses | None:
    """Return what a compiled kernel does by its IR, or None where that cannot be told."""
    # It may be in another language than Triton's, or call a function that is not inlined.
    with dropping_errors("a kernel's accesses are unknown"):
        return _accesses_in(kernel.asm["ttir"], tuple(_pointers(kernel.src.signature)))
    return None


def _pointers(signature: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of a kernel's pointers and descriptors, in order."""
    for name, kind in signature.items():
        if isinstance(kind, (tuple, list)):
            yield from _pointers({f"{name}[{index}]": part for index, part in enumerate(kind)})
        elif str(kind).startswith(("*", "tensordesc")):
            yield name


@lru_cache(32)  # configs that differ in their warps or stages share their text
def _accesses_in(text: str, names: tuple[str, ...]) -> Accesses:
    from triton._C.libtriton import ir

    context = ir.context()
    ir.load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=".ttir") as file:
        file.write(text)
        file.flush()
        module = ir.parse_mlir_module(file.name, context)
    return _trace_pointers(module, names)


def _trace_pointers(module: Any, names: Sequence[str]) -> Accesses:
    """Follow the pointers from a kernel's arguments to what uses them.

    Raises:
        ValueError: the module has a function that is called, or other arguments than the names.
    """
    flow = _PointerFlow()
    module.walk(flow.visit)
    function = module.get_function(module.get_entry_func_name())
    arguments = _pointers_among([function.args(at) for at in range(function.get_num_args())])
    if flow.functions != 1 or len(arguments) != len(names):
        raise ValueError("the kernel's arguments cannot be told apart")
    effects = {name: flow.effects_on(at) for name, at in zip(names, arguments, strict=True)}
    known = {flow.root(at) for at in arguments}
    others = {effect for root, effect in flow.effects if flow.root(root) not in known}
    read = frozenset(name for name, seen in effects.items() if seen & {READ, UNKNOWN} or others)
    written = frozenset(name for name, seen in effects.items() if seen & {WRITTEN, UNKNOWN})
    return Accesses(read, written, bool(others & {WRITTEN, UNKNOWN}))


@dataclass(eq=False)
class _PointerFlow:
    """Sets of values of a module that hold the same pointers, and what is done with each.

    Values are known by their id. Loops and branches pass pointers on in their order.
    """

    effects: list[tuple[int, str]] = field(default_factory=list)
    functions: int = 0
    _parents: dict[int, int] = field(default_factory=dict)
    _inside: defaultdict[int, dict[int | str, list[int]]] = field(
        default_factory=partial(defaultdict, dict)
    )
    """Pointers that a region is given, by its blocks, and those that it passes on."""

    def root(self, value: int) -> int:
        """Return the value that stands for a set."""
        while (parent := self._parents.get(value, value)) != value:
            value = parent
        return value

    def effects_on(self, value: int) -> set[str]:
        """Return what is done to the memory that a value points to."""
        root = self.root(value)
        return {effect for changed, effect in self.effects if self.root(changed) == root}

    def visit(self, operation: Any) -> None:
        """Note what an operation does with pointers; those inside it were visited before."""
        name = operation.get_name()
        self.functions += name == "tt.func"
        if name in ("tt.func", "builtin.module"):
            return
        operands = [operation.get_operand(at) for at in range(operation.get_num_operands())]
        results = [operation.get_result(at) for at in range(operation.get_num_results())]
        block = operation.get_block()
        inside = self._inside[block.get_parent().id()]
        if block.id() not in inside:
            given = [block.get_argument(at) for at in range(block.get_num_arguments())]
            inside[block.id()] = _pointers_among(given)
        if name in ("scf.yield", "scf.condition"):
            inside[name] = _pointers_among(operands)
        elif name in _EFFECTS:
            first = operands[0].id()
            self.effects += [(first, effect) for effect in _EFFECTS[name]]
            self.effects += [(at, UNKNOWN) for at in _pointers_among(operands[1:])]
        else:
            passed = [_pointers_among(operands), _pointers_among(results)]
            for at in range(operation.get_num_regions()):
                passed += self._inside[operation.get_region(at).id()].values()
            self._unite([pointers for pointers in passed if pointers], name)
            if name not in _DERIVING:
                self.effects += [(at, UNKNOWN) for at in _pointers_among(operands)]

    def _unite(self, passed: list[list[int]], name: str) -> None:
        """Unite what an operation and its regions are given, pass on and return."""
        if name in _PASSING and len({len(pointers) for pointers in passed}) == 1:
            same = list(zip(*passed, strict=True))
        else:
            same = [tuple(itertools.chain(*passed))]
        for values in same:
            for value in values[1:]:
                self._parents[self.root(value)] = self.root(values[0])


def _pointers_among(values: Sequence[Any]) -> list[int]:
    """Return the ids of the values that hold pointers or descriptors."""
    kinds = ("!tt.ptr", "!tt.tensordesc")
    return [value.id() for value in values if any(kind in str(value.get_type()) for kind in kinds)]


@dataclass(eq=False)
class _WatchedMemory:
    """Stands in for the interpreter's accesses to memory, and notes their addresses."""

    memory: Any
    addresses: defaultdict[str, list[Any]] = field(default_factory=partial(defaultdict, list))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)

    def load(self, pointers: Any, mask: Any, *rest: Any) -> Any:
        self._note(pointers, mask, READ)
        return self.memory.load(pointers, mask, *rest)

    def store(self, pointers: Any, value: Any, mask: Any) -> Any:
        self._note(pointers, mask, WRITTEN)
        return self.memory.store(pointers, value, mask)

    def atomic_cas(self, pointers: Any, *rest: Any) -> Any:
        self._note(pointers, True, READ, WRITTEN)
        return self.memory.atomic_cas(pointers, *rest)

    def atomic_rmw(self, operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        self._note(pointers, mask, READ, WRITTEN)
        return self.memory.atomic_rmw(operation, pointers, value, mask, *rest)

    def _note(self, pointers: Any, mask: Any, *effects: str) -> None:
        import numpy

        accessed = numpy.unique(pointers[numpy.broadcast_to(mask, pointers.shape).astype(bool)])
        for effect in effects:
            self.addresses[effect].append(accessed)


@contextmanager
def watch_interpreter(spans: Mapping[str, tuple[int, int]]) -> Iterator[list[Accesses]]:
    """Watch what a launch by Triton's interpreter reads and writes.

    Args:
        spans: the addresses of the arguments' elements, from the first to behind the last.

    Yields:
        A list that holds the accesses once the context has ended without an error.
    """
    from triton.runtime import interpreter

    seen: list[Accesses] = []
    watch = _WatchedMemory(interpreter._interpreter)
    set_interpreter_memory(watch)
    try:
        yield seen
    finally:
        set_interpreter_memory(watch.memory)
    read, _ = _arguments_at(watch.addresses[READ], spans)
    written, elsewhere = _arguments_at(watch.addresses[WRITTEN], spans)
    seen.append(Accesses(read, written, elsewhere))


def _arguments_at(
    addresses: Sequence[Any], spans: Mapping[str, tuple[int, int]]
) -> tuple[frozenset[str], bool]:
    """Return the arguments that hold some addresses, and whether others lie outside of all."""
    import numpy

    found = numpy.unique(numpy.concatenate(addresses)) if addresses else numpy.zeros(0, "uint64")
    names, covered = [], numpy.zeros(len(found), bool)
    for name, (start, end) in spans.items():
        inside = (found >= numpy.uint64(start)) & (found < numpy.uint64(end))
        covered |= inside
        if inside.any():
            names.append(name)
    return frozenset(names), bool(len(found)) and not bool(covered.all())
