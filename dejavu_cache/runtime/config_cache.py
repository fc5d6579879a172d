"""`Autotuner.cache` of Triton, with the entries of the program told from those of this package."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Protocol

from ..system.fork_lock import ForkLock

__all__ = ["CacheUser", "ConfigCache"]

MOST_REPORTED = 1 << 16
"""Entries of this package that are kept; its keys have sizes as they are, and not their buckets."""


class CacheUser(Protocol):
    """An autotuner, whose choices depend on a `ConfigCache`."""

    def forget_choices(self) -> None:
        """Drop the choices: the cache has changed."""


def _wrap_change(name: str) -> Any:
    method: Callable[..., Any] = getattr(dict, name)

    @functools.wraps(method)
    def change(self: ConfigCache, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        finally:
            self.after_change()

    return change


class ConfigCache(dict[Any, Any]):
    """Configs by Triton's key of a launch.

    Programs read the configs that an autotuner chose, and put their own there, which Triton obeys.
    So an entry decides a launch unless this package has written it to report its own choice. A
    change by the program makes the autotuners that use the cache forget their choices. A copy is a
    plain dictionary, all entries of which are the program's.

    Args:
        entries: the program's entries.
    """

    def __init__(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = ()) -> None:
        """Copy the entries."""
        super().__init__(entries)
        self._lock = ForkLock()  # of the two dictionaries together
        self._reported: dict[Any, Any] = {}
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()

    __setitem__ = _wrap_change("__setitem__")
    __delitem__ = _wrap_change("__delitem__")
    __ior__ = _wrap_change("__ior__")
    clear = _wrap_change("clear")
    pop = _wrap_change("pop")
    popitem = _wrap_change("popitem")
    setdefault = _wrap_change("setdefault")
    update = _wrap_change("update")

    @property
    def has_choices(self) -> bool:
        """Whether the program has put a config here."""
        return len(self) > len(self._reported)

    def choice(self, key: Hashable) -> Any | None:
        """Return the config that the program has put here for a launch, or None."""
        return None if key in self._reported else self.get(key)

    def report(self, key: Hashable, config: Any) -> None:
        """Show the config that a launch runs, unless the program has chosen another one."""
        with self._lock:
            if key in self._reported or key not in self:
                if len(self._reported) >= MOST_REPORTED:
                    self._drop_reported()
                self._reported[key] = config
                super().__setitem__(key, config)

    def _drop_reported(self) -> None:
        """Leave only the program's entries, also if a signal handler launches or raises here."""
        while self._reported:
            key, config = self._reported.popitem()
            if self.get(key) is config:  # a thread may have just replaced it by the program's
                super().pop(key, None)

    def add_user(self, user: CacheUser) -> None:
        """Tell an autotuner about changes by the program, for as long as it lives."""
        self._users.add(user)

    def after_change(self) -> None:
        """Count replaced entries as the program's, and make the users choose anew."""
        with self._lock:
            self._reported = {
                key: config for key, config in self._reported.items() if self.get(key) is config
            }
        for user in list(self._users):
            user.forget_choices()

    def duplicate(self, copy_config: Callable[[Any], Any]) -> ConfigCache:
        """Return a cache of the same entries, with copies of the configs."""
        twin = ConfigCache({key: copy_config(config) for key, config in self.items()})
        twin._reported = {key: twin[key] for key in self._reported}
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a plain dictionary."""
        return dict, (dict(self),)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copy and pickle as a plain dictionary."""
        return self.__reduce__()
