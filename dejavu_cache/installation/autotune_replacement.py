"""`install()`: `triton.autotune` becomes this package's, for libraries that are imported afterwards."""

from __future__ import annotations

import functools
import gc
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import KeyArgumentError
from ..notices import logger, warn_once
from ..policy import current_policy
from ..runtime.autotuner import CachedAutotuner
from ..runtime.hot_path import ChosenConfig
from ..triton_internals.hooks import replace_autotune
from ..triton_internals.source_hash import kernel_name
from ..triton_internals.upstream import Autotuner, autotune

__all__ = ["AdoptedAutotuner", "install", "uninstall"]

_THEIRS = autotune
_RUN = Autotuner.run
_LEFT_ALONE = ("torch", "triton")
"""Who builds autotuners for purposes of its own: Inductor compiles a user's kernel with a list of configs."""

_OWN = __name__.partition(".")[0]

_SAME = (
    "pre_hook", "post_hook", "user_defined_pre_hook", "user_defined_post_hook", "perf_model", "configs_top_k",
    "early_config_prune", "_do_bench", "num_warmups", "num_reps", "use_cuda_graph",
)  # fmt: skip
"""What an autotuner's constructor makes of its arguments, and a subclass's may change."""


class AdoptedAutotuner(CachedAutotuner):
    """The autotuner of a library that knows nothing of this package: what cannot be cached goes on as before."""

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ChosenConfig]:
        try:
            return super()._run(args, kwargs)
        except KeyArgumentError as error:
            warn_once(f"adopted {self._name}", f"{self._name} is tuned by Triton alone: {error}")
        launched = Autotuner.run(self, *args, **kwargs)
        return launched, ChosenConfig(self.best_config, {}, until=0.0)


def install() -> None:
    """Replaces `triton.autotune`; twice is once. The policy file says which kernels get what: see `policy`.

    Kernels that were decorated before cannot be reached: a warning names them, and the modules that took hold of
    `triton.autotune` by name.
    """
    if Autotuner.run is _run_another_kind:
        return
    late = sorted({*_decorated_before(), *_holding_the_name()})
    replace_autotune(_ours, _run_another_kind)
    if late:
        logger.warning(
            "install() came too late for %s: these stay with triton.autotune; call it before they are imported, "
            "or start the program with `dejavu-cache run`",
            ", ".join(late),
        )


def uninstall() -> None:
    """Gives `triton.autotune` back; kernels decorated meanwhile stay as they are."""
    replace_autotune(_THEIRS, _RUN)


@functools.wraps(_THEIRS)
def _ours(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    if sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] in _LEFT_ALONE:
        theirs: Callable[[Any], Any] = _THEIRS(*args, **kwargs)
        return theirs

    def decorate(fn: Any) -> Any:
        try:
            name = kernel_name(fn)
            if current_policy().rule_for(name).install:
                return _adopt_decorated(fn, *args, **kwargs)
        except Exception as error:  # what Triton can decorate must not fail for being cached
            warn_once(
                f"install {fn!r}",
                f"{fn!r} stays with triton.autotune: {type(error).__name__}: {error}",
            )
        return _THEIRS(*args, **kwargs)(fn)

    return decorate


def _adopt_decorated(fn: Any, *args: Any, **kwargs: Any) -> AdoptedAutotuner:
    """Return the adopted autotuner of a kernel, made of the arguments of `triton.autotune`."""
    arguments = inspect.signature(_THEIRS).bind(*args, **kwargs).arguments
    arguments.pop("cache_results", None)  # results are always kept
    return AdoptedAutotuner(
        fn, fn.arg_names, **{"reset_to_zero": None, "restore_value": None, **arguments}
    )


def _run_another_kind(self: Any, *args: Any, **kwargs: Any) -> Any:
    """`Autotuner.run` as a library's own kind of autotuner finds it when it calls `super().run`.

    One that has put a config into its `cache` itself has chosen, and Triton goes by that.
    """
    if isinstance(self, CachedAutotuner) or self.cache:
        return _RUN(self, *args, **kwargs)
    if not hasattr(self, "_adopted"):
        self._adopted = _adopted(self)
    if self._adopted is None:
        return _RUN(self, *args, **kwargs)
    launched = self._adopted.run(*args, **kwargs)
    self.best_config = self._adopted.best_config
    return launched


def _adopted(theirs: Autotuner) -> AdoptedAutotuner | None:
    """One of ours that tunes what an autotuner of a library's own kind would; None if that is not for us."""
    kinds = type(theirs).__mro__[: type(theirs).__mro__.index(Autotuner)]
    if not kinds or any(kind.__module__.partition(".")[0] in _LEFT_ALONE for kind in kinds):
        return None
    try:
        own = {
            name
            for kind in kinds
            for name in vars(kind)
            if name in vars(Autotuner) and not name.startswith("__")
        }
        if own - {"run"} or not current_policy().rule_for(kernel_name(theirs)).install:
            return None
        adopted = AdoptedAutotuner(
            theirs.fn,
            theirs.arg_names,
            theirs.configs,
            theirs.keys,
            theirs.reset_to_zero,
            theirs.restore_value,
        )
    except Exception as error:
        warn_once(
            f"install {theirs!r}", f"{theirs!r} tunes by itself: {type(error).__name__}: {error}"
        )
        return None
    adopted.__dict__.update({name: value for name, value in vars(theirs).items() if name in _SAME})
    return adopted


def _decorated_before() -> Iterator[str]:
    for held in gc.get_objects():
        if type(held) is Autotuner:
            try:
                yield kernel_name(held)
            except Exception:  # half made
                continue


def _holding_the_name() -> Iterator[str]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in (*_LEFT_ALONE, _OWN) and any(
            value is _THEIRS for value in list(getattr(module, "__dict__", {}).values())
        ) :  # fmt: skip
            yield f"module {name}"
