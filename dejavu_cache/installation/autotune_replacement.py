"""Replace `triton.autotune`, so that libraries that are imported afterwards use the cache."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import triton

from ..errors import DejavuError
from ..policy import current_policy
from ..runtime.autotuner import CachedAutotuner
from ..runtime.choices import ConfigCache
from ..runtime.prewarmed_binaries import prepare_launches
from ..system.background_threads import dropping_errors
from ..system.notices import logger
from ..triton_internals.hooks import replace_autotune
from ..triton_internals.identity import kernel_name
from ..triton_internals.versions import Autotuner, Heuristics, autotune
from .inductor_pass import install_inductor_pass, uninstall_inductor_pass

_TRITON_AUTOTUNE = autotune
_EXCLUDED_PACKAGES = ("torch", "triton")
"""Packages with autotuners for other ends: Inductor compiles user kernels with several configs."""

_THIS_PACKAGE = __name__.partition(".")[0]

_COPIED_ATTRIBUTES = (
    "pre_hook", "post_hook", "user_defined_pre_hook", "user_defined_post_hook", "perf_model",
    "configs_top_k", "early_config_prune", "_do_bench",
)  # fmt: skip
"""Attributes that `Autotuner.__init__` derives from its arguments, and a subclass's may change."""


def install() -> None:
    """Replace `triton.autotune` by the cached one; the policy file may exclude kernels.

    Kernels of modules that were imported before, and modules that imported `triton.autotune` by
    name, are not affected: a warning names the modules. A second call does nothing.
    """
    if triton.autotune is _cached_or_triton_autotune:
        return
    late = sorted(_modules_with_autotuners())
    replace_autotune(_cached_or_triton_autotune, _run_subclass)
    install_inductor_pass()
    with suppress(DejavuError):  # a wrong setting is named when a kernel is decorated
        prepare_launches()
    if late:
        logger.warning(
            "install() came too late for the modules %s: their kernels stay with triton.autotune; "
            "call it before they are imported, or start the program with `dejavu-cache run`",
            ", ".join(late),
        )


def uninstall() -> None:
    """Restore `triton.autotune`; kernels that were decorated meanwhile stay cached."""
    uninstall_inductor_pass()
    replace_autotune(_TRITON_AUTOTUNE, None)


@functools.wraps(_TRITON_AUTOTUNE)
def _cached_or_triton_autotune(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    if sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] in _EXCLUDED_PACKAGES:
        decorator: Callable[[Any], Any] = _TRITON_AUTOTUNE(*args, **kwargs)
        return decorator

    def decorate(fn: Any) -> Any:
        # A kernel that Triton accepts must not fail here.
        with dropping_errors(f"{fn!r} stays with triton.autotune", about=f"install {fn!r}"):
            name = kernel_name(fn)
            if current_policy().rule_for(name).install:
                arguments = inspect.signature(_TRITON_AUTOTUNE).bind(*args, **kwargs).arguments
                arguments.pop("cache_results", None)  # results are always kept
                arguments = {"reset_to_zero": None, "restore_value": None, **arguments}
                return CachedAutotuner(fn, fn.arg_names, **arguments, is_adopted=True)
        return _TRITON_AUTOTUNE(*args, **kwargs)(fn)

    return decorate


def _run_subclass(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Launch through an adopted autotuner when a library's subclass calls `super().run`.

    Both share one cache: a config that the subclass puts there decides the launches of its key.
    """
    original = _run_subclass.replaced  # type: ignore[attr-defined]
    if isinstance(self, CachedAutotuner):
        return original(self, *args, **kwargs)
    if not hasattr(self, "_adopted"):
        self._adopted = _adopt_subclass(self)
    adopted = self._adopted
    if adopted is None:
        return original(self, *args, **kwargs)
    for name in ("cache", "configs", "keys", "fn"):
        if getattr(adopted, name) is not getattr(self, name):
            setattr(adopted, name, getattr(self, name))
    launched = adopted.run(*args, **kwargs)
    self.best_config, self.nargs = adopted.best_config, None
    return launched


def _adopt_subclass(theirs: Autotuner) -> CachedAutotuner | None:
    """Return a cached autotuner for a subclass's kernel, or None if it tunes by itself."""
    with dropping_errors(f"{theirs!r} tunes by itself", about=f"install {theirs!r}"):
        if not _may_adopt(theirs):
            return None
        adopted = CachedAutotuner(
            theirs.fn,
            theirs.arg_names,
            theirs.configs,
            theirs.keys,
            theirs.reset_to_zero,
            theirs.restore_value,
            is_adopted=True,
        )
        theirs.cache = adopted.cache = ConfigCache(theirs.cache)
        adopted.__dict__.update(
            {name: value for name, value in vars(theirs).items() if name in _COPIED_ATTRIBUTES}
        )
        return adopted
    return None


def _may_adopt(theirs: Autotuner) -> bool:
    """Return whether a subclass replaces `run` alone, and the policy lets its kernel be cached."""
    subclasses = type(theirs).__mro__[: type(theirs).__mro__.index(Autotuner)]
    packages = {subclass.__module__.partition(".")[0] for subclass in subclasses}
    if not subclasses or not packages.isdisjoint(_EXCLUDED_PACKAGES):
        return False
    own = {name for kind in subclasses for name in vars(kind) if not name.startswith("__")}
    replaced = own & vars(Autotuner).keys()
    return replaced <= {"run"} and bool(current_policy().rule_for(kernel_name(theirs)).install)


def _modules_with_autotuners() -> Iterator[str]:
    """Yield the modules that have kernels that Triton tunes, or its decorator under a name."""
    for name, module in list(sys.modules.items()):
        values = list(getattr(module, "__dict__", {}).values())
        if name.partition(".")[0] not in (*_EXCLUDED_PACKAGES, _THIS_PACKAGE) and any(
            value is _TRITON_AUTOTUNE or type(_beneath_heuristics(value)) is Autotuner
            for value in values
        ):
            yield name


def _beneath_heuristics(value: Any) -> Any:
    while type(value) is Heuristics:
        value = value.fn
    return value
