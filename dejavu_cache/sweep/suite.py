"""Suites of cases for a sweep; a case is one launch of a kernel with arguments made on demand."""

import importlib
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from ..errors import SettingsError
from ..model.scenario import Scenario

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

    Cases of one scenario are measured together; `model.selection` says what wins.

    Attributes:
        cases: function that returns all cases. It may take options as keyword arguments of type str
            (`--option preset=llama3-8b`, `--option tp=4`).
        for_scenario: function that returns the case, or several, for a kernel's name and a scenario
            that programs missed (`--from-misses`); None where the suite has none.
        why_empty: the reason, for users, why `cases` may return none.
    """

    cases: Callable[..., Iterable[Case]]
    for_scenario: Callable[[str, Scenario], Case | Iterable[Case] | None] | None = None
    why_empty: str = "the suite has no cases"

    def load_cases(self, options: Mapping[str, str]) -> list[Case]:
        """Return the cases in order.

        Raises:
            SettingsError: the suite raised, returned something else, or two cases share a name.
        """
        with _naming_errors():
            cases = _as_cases(self.cases(**options))
        counts = Counter(case.name for case in cases)
        repeated = sorted(name for name, count in counts.items() if count > 1)
        if repeated:
            raise SettingsError(f"the suite has several cases of the name {repeated[0]!r}")
        return cases

    def cases_for(self, kernel: str, scenario: Scenario) -> list[Case]:
        """Return the cases that the suite makes for a scenario.

        Raises:
            SettingsError: the suite raised, or returned something else.
        """
        if self.for_scenario is None:
            return []
        with _naming_errors():
            return _as_cases(self.for_scenario(kernel, scenario) or [])


@contextmanager
def _naming_errors() -> Iterator[None]:
    """Raise whatever a suite's function raises as a SettingsError."""
    try:
        yield
    except SettingsError:
        raise
    except (Exception, SystemExit) as error:
        raise SettingsError(f"the suite raised {type(error).__name__}: {error}") from error


def _as_cases(made: Case | Iterable[Case]) -> list[Case]:
    """Return what a suite's function made as a list.

    Raises:
        SettingsError: something is no case.
        Exception: what the function raises, if it is a generator.
    """
    cases = [made] if isinstance(made, Case) else list(made)
    for case in cases:
        if not isinstance(case, Case):
            raise SettingsError(f"the suite gave {str(case)[:80]!r}, which is no Case")
    return cases


def load_suite(where: str) -> Suite:
    """Import a suite from `MODULE[:NAME]` or `FILE.py[:NAME]`; the default name is `suite`.

    The name is that of a `Suite`, or of a function that returns the cases.

    Raises:
        SettingsError: the object cannot be found, or is no suite.
    """
    module_name, _, name = where.partition(":")
    suite = getattr(_import_module(module_name), name or DEFAULT_NAME, None)
    if isinstance(suite, Suite):
        return suite
    if callable(suite):
        return Suite(cases=suite)
    raise SettingsError(
        f"{module_name} has no suite {name or DEFAULT_NAME!r}: "
        "give MODULE:NAME of a Suite, or of a function that gives cases"
    )


def _import_module(where: str) -> ModuleType:
    """Import a module from the working folder or elsewhere, or a file by its name."""
    path = Path(where).absolute() if where.endswith(".py") else None
    sys.path.insert(0, str(path.parent if path else Path.cwd()))  # as for a script
    try:
        file = path.resolve(strict=True) if path else None  # else its name may find another module
        module = importlib.import_module(path.stem if path else where)
        if file not in (None, Path(module.__file__ or "").resolve()):
            raise ImportError(f"{module.__name__} is another module: rename the file")
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise SettingsError(
            f"{where} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    return module


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
