"""Triton's `Autotuner` whose configs, keys, function and cache a program may change."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from ..triton_internals.versions import Autotuner
from .choices import ConfigCache

__all__ = ["ChangingAutotuner"]

_OF_THE_BENCHMARK = frozenset({"do_bench", "method"})
"""Derived attributes that neither the configs nor the function change."""


class ChangingAutotuner(Autotuner):  # type: ignore[misc]
    """Triton's `Autotuner`, which derives anew what follows from an attribute that has changed.

    `configs`, `keys`, `fn` and `cache` may be assigned at any time, as for Triton's. The lists may
    also change in place: the next launch that does not take the hot path notices.
    """

    @property
    def configs(self) -> Sequence[Any]:
        """The configs to choose from."""
        return self._configs

    @configs.setter
    def configs(self, configs: Sequence[Any]) -> None:
        self._configs = configs
        self._seen_configs = list(configs) if isinstance(configs, list) else None
        self._forget_declaration()
        self.forget_choices()

    def _notice_changes_in_place(self) -> None:
        """Derive everything anew if the list of configs or of keys has changed in place."""
        # Lists of the same objects are equal without a look into them, so this takes little time.
        if self._seen_configs is not None and self._seen_configs != self._configs:
            self.configs = self._configs
        if self._seen_keys != self._keys and self._seen_keys != list(self._keys):
            self.keys = self._keys

    @property
    def keys(self) -> Sequence[str]:
        """The names of the key arguments, as the program gave them."""
        return self._keys

    @keys.setter
    def keys(self, keys: Sequence[str]) -> None:
        self._keys = keys
        self._seen_keys = list(keys)
        self._forget_declaration()
        self.forget_choices()

    @property
    def fn(self) -> Any:
        """The `triton.jit` function, or heuristics around one."""
        return self._fn

    @fn.setter
    def fn(self, fn: Any) -> None:
        self._fn = fn
        self._forget_declaration()

    @property
    def cache(self) -> Any:
        """The configs by Triton's key of a launch; what a program puts there decides launches."""
        return self._cache

    @cache.setter
    def cache(self, cache: Any) -> None:
        # Triton's constructor makes the first one; a later mapping is the program's, of any kind.
        self._cache = cache if "_cache" in self.__dict__ else ConfigCache(cache)
        if isinstance(self._cache, ConfigCache):
            self._cache.add_user(self)
        self.forget_choices()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return an autotuner with copies of Triton's attributes and the same options."""
        twin = copy.copy(self)
        memo[id(self)] = twin

        def copy_value(value: Any) -> Any:
            return copy.deepcopy(value, memo)

        twin.fn, twin.keys = copy_value(self.fn), copy_value(self.keys)
        twin.configs = copy_value(self.configs)
        if isinstance(self._cache, ConfigCache):
            twin.cache = self._cache.duplicate(copy_value)
        else:
            twin.cache = copy_value(self._cache)
        for name in ("arg_names", "reset_to_zero", "restore_value", "best_config"):
            if name in self.__dict__:
                setattr(twin, name, copy_value(getattr(self, name)))
        return twin

    def _forget_declaration(self) -> None:
        """Drop what was derived from the configs and the function."""
        for base in type(self).__mro__:
            for name, value in vars(base).items():
                if isinstance(value, cached_property) and name not in _OF_THE_BENCHMARK:
                    self.__dict__.pop(name, None)

    def forget_choices(self) -> None:
        """Choose the config of each launch anew; launching is a subclass's concern."""
