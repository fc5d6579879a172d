"""Turn a launch's arguments into its scenario: as a raw key, which is fast, or as a `Scenario`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import KeyArgumentError
from ..model.buckets import Bucket, Exact
from ..model.scenario import Scalar, Scenario

__all__ = ["ScenarioKey", "dtype_name"]

RawKey = tuple[Any, ...]

_ABSENT: Any = object()


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
        raw += [getattr(arg, "dtype", None) for arg in args]
        if kwargs:
            raw += [(name, arg.dtype) for name, arg in kwargs.items() if hasattr(arg, "dtype")]
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
        dtypes = {
            name: dtype_name(arg.dtype)
            for name, arg in named.items()
            if name in self._names and hasattr(arg, "dtype")
        }
        return Scenario(args=args, dtypes=dtypes)

    def _representative(self, name: str, value: Any) -> Any:
        bucket = self._bucket_of[name]
        return value if bucket is None else bucket(value)


def dtype_name(dtype: Any) -> str:
    """Return a dtype's name, such as `float16` for `torch.float16`."""
    return str(dtype).removeprefix("torch.")


def _scalar(name: str, value: Any) -> Scalar:
    if value is None or type(value) in (bool, int, str):
        return value  # type: ignore[no-any-return]
    if type(value) is float and math.isfinite(value):
        return value
    if type(value).__name__ == "dtype":
        return dtype_name(value)
    shown = f"{value}" if isinstance(value, float) else type(value).__qualname__
    raise KeyArgumentError(
        f"key argument {name!r} is {shown}: a key may be an int, a bool, a finite float, a string, "
        "None or a dtype"
    )
