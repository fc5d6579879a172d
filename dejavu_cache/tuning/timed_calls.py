"""Mark the part of a benchmarked call that an ordinary launch has too, so that only it is timed.

Triton saves, zeroes and restores arguments around each launch that it benchmarks, and around no
other. Their time would hide the difference of two short configs, and a tensor that was just saved
is in the L2 cache, where a program's launch does not find it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = ["TimedCall", "do_nothing", "keep_restoring_out", "restores_arguments", "time_all"]

TimedCall = Callable[[Callable[[], object], Callable[[], object]], Any]
"""A call; it calls the first argument where the timed part begins, the second where it ends."""


def do_nothing() -> None:
    """Mark the begin or the end of a call that nobody times."""


def time_all(call: Callable[[], Any]) -> TimedCall:
    """Return a call of which all is timed."""

    def run(begin: Callable[[], object], end: Callable[[], object]) -> Any:
        begin()
        result = call()
        end()
        return result

    return run


def restores_arguments(autotuner: Any) -> bool:
    """Return whether Triton saves, zeroes or restores arguments around a benchmarked launch.

    A hook of the kernel's author takes the place of Triton's.
    """
    has_own_hooks = autotuner.user_defined_pre_hook and autotuner.user_defined_post_hook
    zeroes = autotuner.reset_to_zero and not autotuner.user_defined_pre_hook
    return bool(zeroes) or bool(autotuner.restore_value and not has_own_hooks)


@contextmanager
def keep_restoring_out(
    autotuner: Any, call: Callable[[], Any], arguments: Mapping[str, Any]
) -> Iterator[TimedCall]:
    """Yield a benchmarked call that leaves Triton's saving and restoring of arguments untimed.

    An author's hooks are timed, as Triton does. So is a config's hook, which every launch runs.

    Args:
        autotuner: a `triton.runtime.Autotuner`; its hooks are replaced while the context is open.
        call: runs its hooks around a launch.
        arguments: the launch's arguments by name, the config's included.
    """
    if not restores_arguments(autotuner):
        yield time_all(call)
        return
    pre_hook, post_hook = autotuner.pre_hook, autotuner.post_hook
    prepares = not autotuner.user_defined_pre_hook
    ends: list[Callable[[], object]] = []

    def end_and_restore(values: Any, exception: BaseException | None) -> Any:
        ends.pop()()
        return post_hook(values, exception=exception)

    def run(begin: Callable[[], object], end: Callable[[], object]) -> Any:
        if prepares:
            pre_hook(arguments)
        begin()
        ends[:] = [end]
        call()
        if ends:
            ends.pop()()

    if prepares:
        autotuner.pre_hook = lambda values, reset_only=False: None
    if not autotuner.user_defined_post_hook:
        autotuner.post_hook = end_and_restore
    try:
        yield run
    finally:
        autotuner.pre_hook, autotuner.post_hook = pre_hook, post_hook
