"""Suites of cases for a sweep; a case is one launch of a kernel with arguments made on demand."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ..errors import SettingsError
from ..model.scenario import Scenario

__all__ = ["Case", "Suite", "load_suite", "preset_of", "read_names", "read_numbers"]

DEFAULT_NAME = "suite"


@dataclass(frozen=True)
class Case:
    """One launch to tune.

    Attributes:
        name: unique in its suite, and the same in every process.
        kernel: a kernel decorated with `cached_autotune`, with or without `triton.heuristics`
            around it.
        grid: a tuple, or a function that returns one for the meta-parameters, as in a launch.
        arguments: function that returns the launch's arguments by name, on the current device. The
            measuring process calls it when the case's turn comes, and drops the arguments
            afterwards.
    """

    name: str
    kernel: Any
    grid: Any
    arguments: Callable[[], Mapping[str, Any]]


@dataclass(frozen=True)
class Suite:
    """The cases of a sweep.

    Attributes:
        cases: function that returns all cases. It may take options as keyword arguments of type str
            (`--preset llama3-8b`, `--option tp=4`).
        for_scenario: function that returns the case for a kernel's name and a scenario that
            programs missed, or several, or None; used by `--from-misses`. It is only called for
            kernels that the cases have.
        everything: options with which `cases` returns what may have a record, where it returns less
            without them. `--from-misses`, `audit` and `verify` begin with these.
        why_empty: the reason, for users, why `cases` may return none.

    Cases of one scenario are measured together: see `case_scores` for what wins.
    """

    cases: Callable[..., Iterable[Case]]
    for_scenario: Callable[[str, Scenario], Case | Iterable[Case] | None] | None = None
    everything: Mapping[str, str] = field(default_factory=dict)
    why_empty: str = "the suite has no cases"

    def load_cases(self, options: Mapping[str, str]) -> list[Case]:
        """Return the cases in order.

        Raises:
            SettingsError: the suite raised, lacks an option, returned something else, or two cases
                share a name.
        """
        _refuse_unknown_options(self.cases, options)
        given = " for " + ", ".join(map("=".join, options.items())) if options else ""
        try:
            made = self.cases(**options)
            if not isinstance(made, Iterable):
                raise SettingsError(f"the suite gave {str(made)[:80]!r}, which is no list of Cases")
            cases = list(made)
        except SettingsError:
            raise
        except (Exception, SystemExit) as error:
            raise SettingsError(
                f"the suite raised{given}: {type(error).__name__}: {error}"
            ) from error
        for case in cases:
            _check_case(case)
        counts = Counter(case.name for case in cases)
        repeated = sorted(name for name, count in counts.items() if count > 1)
        if repeated:
            raise SettingsError(f"the suite has several cases of the name {repeated[0]!r}")
        return cases

    def load_all_cases(self, options: Mapping[str, str]) -> list[Case]:
        """Return the cases with `everything`, as far as the options do not say otherwise.

        Raises:
            SettingsError: as in `load_cases`.
        """
        return self.load_cases({**self.everything, **options})

    def cases_for(self, kernel: str, scenario: Scenario) -> list[Case]:
        """Return the cases that the suite makes for a scenario.

        Raises:
            SettingsError: the suite returned something else.
            Exception: any error of the suite.
        """
        made = self.for_scenario(kernel, scenario) if self.for_scenario else None
        if made is None:
            return []
        cases = [made] if isinstance(made, Case) or not isinstance(made, Iterable) else list(made)
        for case in cases:
            _check_case(case)
        return cases


def _refuse_unknown_options(cases: Callable[..., object], options: Mapping[str, str]) -> None:
    try:
        parameters = inspect.signature(cases).parameters
    except (TypeError, ValueError):  # such as a built-in, which does not say what it takes
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in options:
        if name not in parameters:
            known = ", ".join(parameters) or "none"
            raise SettingsError(f"the suite has no option {name!r}; its options: {known}")


def _check_case(case: Any) -> None:
    if not isinstance(case, Case):
        raise SettingsError(f"the suite gave {str(case)[:80]!r}, which is no Case")
    if not isinstance(case.name, str):
        raise SettingsError(
            f"the suite has a case of the name {str(case.name)[:80]}, which is no text"
        )
    try:
        case.name.encode()
    except UnicodeEncodeError:
        raise SettingsError(
            f"the suite has a case of the name {case.name[:80]!a}, which has no UTF-8"
        ) from None


def load_suite(where: str) -> Suite:
    """Import a suite.

    Args:
        where: `MODULE[:NAME]` or `FILE.py[:NAME]` of a `Suite`, or of a function that returns the
            cases; the default name is `suite`.

    Raises:
        SettingsError: the object cannot be found, or is no suite.
    """
    module_name, _, name = where.partition(":")
    module = _import_module(module_name)
    suite = getattr(module, name or DEFAULT_NAME, None)
    if isinstance(suite, Suite):
        return suite
    if callable(suite):
        return Suite(cases=suite)
    raise SettingsError(
        f"{module_name} has no suite {name or DEFAULT_NAME!r}: "
        "give MODULE:NAME of a Suite, or of a function that gives cases"
    )


def _import_module(name: str) -> Any:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return _import_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise SettingsError(
            f"{name} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _import_file(path: Path) -> Any:
    name = path.stem
    if _is_other_module(path):
        # In its own name, the file would be imported wherever somebody means the other module.
        name += "_suite"
        folder = path.parent.resolve()
        others = [entry for entry in sys.path if Path(entry).resolve() != folder]
        sys.path[:] = [*others, str(folder)]
    else:
        sys.path.insert(0, str(path.parent.absolute()))  # as for a script
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


_NEEDED = sys.stdlib_module_names | {"numpy", "torch", "triton"}
"""Modules that a sweep may import later."""


def _is_other_module(path: Path) -> bool:
    """Return whether a file's name is that of another module that is loaded or will be needed.

    A module that is merely installed may be hidden: a program that imports the file by its name
    hides it too, and records name the kernels as that program does.
    """
    loaded = sys.modules.get(path.stem)
    if loaded is None:
        return path.stem in _NEEDED
    origin = getattr(loaded, "__file__", None)
    return origin is None or Path(origin).resolve() != path.resolve()


Preset = TypeVar("Preset")


def preset_of(name: str, presets: Mapping[str, Preset]) -> Preset:
    """Return a preset by its name.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in presets:
        raise ValueError(f"preset={name}: choose one of {', '.join(presets)}")
    return presets[name]


def read_numbers(text: str, default: Sequence[int]) -> tuple[int, ...]:
    """Return numbers that are separated by +; the default if there are none."""
    return tuple(map(int, text.split("+"))) if text else tuple(default)


def read_names(option: str, text: str, choices: Collection[str]) -> list[str]:
    """Return names that are separated by +; all choices if there are none.

    Raises:
        ValueError: a name is not among the choices.
    """
    names = text.split("+") if text else list(choices)
    if not set(names) <= set(choices):
        raise ValueError(f"{option}={text}: choose from {', '.join(choices)}, with + between them")
    return names
