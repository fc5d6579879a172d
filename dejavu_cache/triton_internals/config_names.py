"""Convert `triton.Config`, which can carry code, to and from a record's `Config`, which cannot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..model.scenario import Config, Scalar
from ..notices import warn_once
from .scenario_key import dtype_name

__all__ = ["DeclaredConfigs", "describe"]


def describe(config: Any) -> Config:
    """Return a `triton.Config` as a record keeps it: everything but its hook."""
    everything = config.all_kwargs()
    # The first launch of a scenario describes all configs, so descriptions are cached. Their key is
    # the content and not the object, since a hook may change a config.
    content = (
        len(config.kwargs),
        *((name, value.__class__, value) for name, value in everything.items()),
    )
    try:
        return _described[content]
    except (KeyError, TypeError):
        pass
    options = {name: value for name, value in everything.items() if name not in config.kwargs}
    described = Config(params={k: _scalar(v) for k, v in config.kwargs.items()}, options=options)
    if all(type(value) in (int, bool, str, type(None)) for value in everything.values()):
        _described[content] = described
    return described


_described: dict[Any, Config] = {}


def _scalar(value: Any) -> Scalar:
    """Return a meta-parameter's value, as text if JSON has nothing better; it is only compared."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if type(value).__name__ == "constexpr":
        return _scalar(value.value)
    return (
        dtype_name(value)
        if type(value).__name__ == "dtype"
        else f"{type(value).__name__} {value!r}"[:500]
    )


class DeclaredConfigs:
    """The configs that a kernel declares, by their descriptions in records.

    A config from a store only selects one of these, so no store can make a launch run code or
    values that the kernel's author did not write.

    Args:
        kernel: the kernel's name, for warnings.
        configs: the declared `triton.Config`s.
    """

    def __init__(self, kernel: str, configs: Iterable[Any]) -> None:
        self._kernel = kernel
        self._by_name: dict[Config, Any] = {}
        for config in configs:
            first = self._by_name.setdefault(describe(config), config)
            if first.pre_hook is not config.pre_hook:
                warn_once(
                    f"hooks {kernel}",
                    f"{kernel} declares ({describe(config)}) twice with different hooks: "
                    "the first is used",
                )

    def __iter__(self) -> Iterator[Config]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, config: Config) -> bool:
        return config in self._by_name

    def __getitem__(self, config: Config) -> Any:
        return self._by_name[config]

    def pinned_config(self, config: Config) -> Any | None:
        """Return the `triton.Config` of a pin, or None if this kernel cannot run it.

        A pin need not be declared. It must set the same meta-parameters as the declared configs, to
        plain values, and it takes the hook that all of them share.
        """
        if config in self._by_name:
            return self._by_name[config]
        example = next(iter(self._by_name))
        hooks = {declared.pre_hook for declared in self._by_name.values()}
        if set(config.params) != set(example.params) or len(hooks) != 1:
            warn_once(
                f"pin {self._kernel} {config}",
                f"{self._kernel} cannot run the pinned ({config}): it is ignored",
            )
            return None
        import triton

        return triton.Config(dict(config.params), **config.options, pre_hook=hooks.pop())
