"""Turn a launch's arguments into its scenario: as a raw key, which is fast, or as a `Scenario`.

A scenario is the bucketed values of the key arguments and all else that a launch brings to the
compiler: the kind of each other argument, constants that no config sets, and options. Alignment,
divisibility and equality to 1 are left out: a bucket is a promise of the kernel's author.
"""

from __future__ import annotations

import hashlib
import inspect
import reprlib
from collections.abc import Mapping, MutableMapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import KeyArgumentError
from ..model.buckets import Bucket
from ..model.scenario import MOST_CHARACTERS, Scalar, Scenario, as_text, is_scalar
from ..system.background_threads import dropping_errors, let_signals_through
from .argument_reads import Answers, ReadArguments
from .binder import typed_constant
from .config_names import LAUNCH_OPTIONS
from .environment import backend_for, current_target, is_interpreting
from .identity import PROCESS, dtype_name, heuristics_of, is_jit, jit_function, value_text

if TYPE_CHECKING:
    from triton import Config as TritonConfig

RawKey = tuple[Any, ...]

_ABSENT: Any = object()

_NOT_OPTIONS = frozenset({"grid", "warmup"})


class ScenarioKey:
    """Key arguments and buckets of one kernel, applied to its launches.

    Args:
        kernel: the kernel: a jit function, or heuristics around one.
        keys: the key arguments.
        buckets: the buckets of some of them, but for `Exact`.
        configs: the `triton.Config`s; their hooks may change the blocks of descriptors.
    """

    def __init__(
        self,
        kernel: Any,
        keys: Sequence[str],
        buckets: Mapping[str, Bucket],
        configs: Sequence[TritonConfig] = (),
    ) -> None:
        """Plan how keys are computed; the arguments are described at the class."""
        from triton.runtime.jit import KernelParam

        self.keys = tuple(keys)
        self._heuristics = heuristics_of(kernel)
        self._configs: list[dict[str, Any]] = []
        self._has_hooks = False
        for config in configs:
            self._configs.append(config.all_kwargs())
            self._has_hooks = self._has_hooks or config.pre_hook is not None
        left_out = set(self._heuristics).union(*self._configs)
        self._defaults: dict[str, Any] = {}
        self._constants: list[str] = []
        self._others: list[str] = []
        self._parameters = dict(inspect.signature(jit_function(kernel).fn).parameters)
        for index, (name, given) in enumerate(self._parameters.items()):
            parameter = KernelParam(index, given, False, False)
            if parameter.has_default:
                self._defaults[name] = parameter.default
            if name not in left_out:
                if not parameter.is_constexpr:
                    self._others.append(name)
                elif name not in self.keys:
                    self._constants.append(name)
        self._bucket_of: dict[str, Bucket | None] = {**dict.fromkeys(keys), **buckets}

    def raw(self, device: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> RawKey:
        """Return a hashable key of a launch's scenario, for this process only."""
        named = {**dict(zip(self._parameters, args, strict=False)), **kwargs}
        raw: list[Any] = [device]
        for name, bucket in self._bucket_of.items():
            value: Any = named.get(name, _ABSENT)
            # The type too, since 1, 1.0 and True are equal.
            raw.append(value.__class__)
            raw.append(value if bucket is None else bucket(value))
        defaults = self._defaults
        for name in self._others:
            value = named.get(name, defaults.get(name))
            kind = value.__class__
            if kind is int:
                form = None if -(1 << 31) <= value < 1 << 31 else value.bit_length() > 63 or 64
            elif kind is float or kind is bool or value is None:
                form = kind
            else:
                form = getattr(value, "dtype", None)
                if form is None or not hasattr(value, "data_ptr"):
                    form = self._kind(value)
            raw.append(form)
        for name in self._constants:
            raw.append(_raw_constant(named.get(name, defaults.get(name))))
        for name, value in kwargs.items():
            if name not in self._parameters and name not in _NOT_OPTIONS:
                raw.append((name, _raw_constant(value)))
        if self._heuristics:
            known, tables = self._compute_values(device, args, kwargs)
            raw += [*known, *map(_raw_constant, known.values()), *tables.values()]
        return tuple(raw)

    def launch_scenario(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], device: int = 0
    ) -> tuple[Scenario, str | None]:
        """Return the scenario of a launch, and why it means nothing to another process, or None.

        Raises:
            KeyArgumentError: a key argument has a value that records have no form for.
        """
        named = {**dict(zip(self._parameters, args, strict=False)), **kwargs}
        values: dict[str, Scalar] = {}
        for name, bucket in self._bucket_of.items():
            if name in named:
                value = named[name]
                values[name] = _scalar(name, value if bucket is None else bucket(value))
        bound = {**self._defaults, **named}
        texts: dict[str, str | None] = {}
        for name in self._others:
            value = bound.get(name)
            is_usual = type(value) is int and -(1 << 31) <= value < 1 << 31
            if is_usual and type(values.get(name, 0)) is int:
                continue  # `i32`, which goes without saying
            kind = self._kind(value)
            if kind != (_usual_kind(values[name]) if name in values else "i32"):
                texts[name] = kind
        options: Mapping[str, Any] = {}
        if unknown := named.keys() - self._parameters.keys() - _NOT_OPTIONS:
            options = _options_of({name: named[name] for name in sorted(unknown)})
        constants = dict(options)
        for name in self._constants:
            constants[name] = bound.get(name)
        if self._heuristics:
            known, tables = self._compute_values(device, args, kwargs)
            constants |= known
            texts |= tables
        for name, value in constants.items():
            texts[name] = value_text(value)
        unnamed: list[str] = []
        dtypes: dict[str, str] = {}
        for name, text in texts.items():
            if text is None:
                unnamed.append(name)
                text = f"{type(named.get(name)).__qualname__} {PROCESS} {id(named.get(name))}"
            if text:
                dtypes[name] = as_text(text)
        reason = None
        if unnamed or not options.keys() <= LAUNCH_OPTIONS:
            reason = _why_unstored(sorted(unnamed), sorted(options.keys() - LAUNCH_OPTIONS), named)
        return Scenario(args=values, dtypes=dtypes), reason

    def _compute_values(
        self, device: int, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return what heuristics compute for a launch.

        A constant that needs no config's values is known. Of any other, the values by config count,
        for the bucketed key arguments: within a bucket they may differ.

        Returns:
            The known values, and the digests of the others' values by config.
        """
        known = self._ask({**dict(zip(self._parameters, args, strict=False)), **kwargs}, {})
        if len(known) == len(self._heuristics):
            return known, {}
        tables = self._tables.answer(device, args, kwargs)
        return known, {name: text for name, text in tables.items() if name not in known}

    @cached_property
    def _tables(self) -> Answers:
        """The digests by heuristic, which are computed anew where a heuristic reads otherwise."""
        return Answers([*self._parameters], self._tabulate)

    def _tabulate(
        self, read: set[str], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, str]:
        """Return a digest of the values that each heuristic computes for the declared configs."""
        named = {**dict(zip(self._parameters, args, strict=False)), **kwargs}
        for name, bucket in self._bucket_of.items():
            if bucket is not None and name in named:
                named[name] = bucket(named[name])
        computed = [
            (values, self._ask(ReadArguments({**named}, read), values)) for values in self._configs
        ]
        digests = {}
        for name in self._heuristics:
            by_config = sorted(
                f"{sorted(values.items(), key=str)}: {value_text(of_config.get(name, _ABSENT))}"
                for values, of_config in computed
            )
            digest = hashlib.sha256(repr(by_config).encode()).hexdigest()
            digests[name] = f"by config {digest[:32]}"
        return digests

    def _ask(self, named: MutableMapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
        """Return what heuristics compute; one that raises needs values that are not there."""
        computed: dict[str, Any] = {}
        named.update(config)
        for name, heuristic in self._heuristics.items():
            try:
                named[name] = computed[name] = heuristic(named)
            except Exception as error:
                if not isinstance(error, (KeyError, TypeError)):  # usual, and a look takes 0.2 ms
                    let_signals_through(error)
        return computed

    def _kind(self, value: Any) -> str | None:
        """Return the kind of an argument as Triton types it; a tensor's is that of its elements."""
        dtype = getattr(value, "dtype", None)
        if dtype is not None and hasattr(value, "data_ptr"):
            return dtype_name(dtype)
        if value is None or is_jit(value) or type(value).__name__ in ("constexpr", "dtype"):
            return value_text(value)
        if isinstance(value, tuple):
            kinds = [self._kind(item) or f"={item!r}" for item in value]
            return f"{type(value).__name__}({', '.join(kinds)})"
        base_dtype = getattr(getattr(value, "base", None), "dtype", None)
        if self._has_hooks and base_dtype is not None:  # a hook sets the block from the config
            return f"descriptor of {dtype_name(base_dtype)}"
        return _type_of(value)


def _type_of(value: Any) -> str | None:
    """Return Triton's type of an argument that is no tensor; None if it has none."""
    from triton.runtime.jit import mangle_type

    with dropping_errors():
        type_ = mangle_type(value)
        return value_text(value) if type_ == "constexpr" else str(type_)
    return None


def _usual_kind(value: Any) -> str | None:
    """Return the kind that goes without saying beside a key's value."""
    if type(value) is int:
        return "i32"
    return _type_of(value) if type(value) in (bool, float) else value_text(value)


def _raw_constant(value: Any) -> Any:
    """Return a constant with its type, as a launch's key on the hot path holds it."""
    try:
        hash(value)
    except TypeError:
        return value.__class__, repr(value)
    return typed_constant(value)


def _options_of(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return which of a launch's options differ from the compiler's defaults."""
    if is_interpreting():
        return options
    defaults = vars(backend_for(current_target()).parse_options({}))
    return {
        name: value
        for name, value in options.items()
        if name not in defaults or (type(value), value) != (type(defaults[name]), defaults[name])
    }


def _why_unstored(
    unnamed: Sequence[str], refused: Sequence[str], named: Mapping[str, Any]
) -> str | None:
    if unnamed:
        kinds = ", ".join(f"{name} ({type(named.get(name)).__qualname__})" for name in unnamed)
        return f"the launch is given {kinds}, whose code has no name in another process"
    if refused:
        return f"the launch sets {', '.join(refused)}, whose effect is not in the value"
    return None


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
