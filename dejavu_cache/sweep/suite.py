"""What a sweep measures: a suite of cases, each one launch of a kernel with arguments made on demand."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SettingsError
from ..model.scenario import Scenario

__all__ = ["Case", "Suite", "load_suite"]

DEFAULT_NAME = "suite"


@dataclass(frozen=True)
class Case:
    """One launch to tune.

    Attributes:
        name: tells it apart from the others of its suite, in every process alike.
        kernel: what `cached_autotune` made, with or without `triton.heuristics` around it.
        grid: as a launch takes it: a tuple, or a function of the meta-parameters to one.
        arguments: makes the launch's arguments, by name, on the current device. It is called in the process
            that measures, when it is this case's turn, and what it made is dropped afterwards.
    """

    name: str
    kernel: Any
    grid: Any
    arguments: Callable[[], Mapping[str, Any]]


@dataclass(frozen=True)
class Suite:
    """The cases of a sweep.

    Attributes:
        cases: gives all cases; may take options, as text, by name (`--preset llama3-8b`, `--option tp=4`).
        for_scenario: gives the case of a kernel, by its name, and a scenario that programs met and that is not
            among the cases, or None; for `--from-misses`. It is asked about the kernels that the cases have.
    """

    cases: Callable[..., Iterable[Case]]
    for_scenario: Callable[[str, Scenario], Case | None] | None = None

    def listed(self, options: Mapping[str, str]) -> list[Case]:
        """The cases, in order.

        Raises:
            SettingsError: the suite raised, gave something else, or two cases have one name.
        """
        try:
            cases = list(self.cases(**options))
        except (Exception, SystemExit) as error:
            told = ", ".join(f"{name}={value}" for name, value in options.items())
            raise SettingsError(
                f"the suite raised for ({told}): {type(error).__name__}: {error}"
            ) from error
        for case in cases:
            _check(case)
        names = [case.name for case in cases]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise SettingsError(f"the suite has several cases of the name {sorted(twice)[0]!r}")
        return cases

    def case_for(self, kernel: str, scenario: Scenario) -> Case | None:
        """The case that the suite makes for a scenario, if it does.

        Raises:
            SettingsError: it gave something else; the suite may raise whatever it likes.
        """
        case = self.for_scenario(kernel, scenario) if self.for_scenario else None
        if case is not None:
            _check(case)
        return case


def _check(case: Any) -> None:
    if not isinstance(case, Case):
        raise SettingsError(f"the suite gave {str(case)[:80]!r}, which is no Case")
    if not isinstance(case.name, str):
        raise SettingsError(
            f"the suite has a case of the name {str(case.name)[:80]}, which is no text"
        )


def load_suite(where: str) -> Suite:
    """Imports the suite that `MODULE[:NAME]` or `FILE.py[:NAME]` names.

    The object is a `Suite`, or a function that gives the cases.

    Raises:
        SettingsError: it cannot be found, or is no suite.
    """
    module_name, _, name = where.partition(":")
    module = _module(module_name)
    suite = getattr(module, name or DEFAULT_NAME, None)
    if isinstance(suite, Suite):
        return suite
    if callable(suite):
        return Suite(cases=suite)
    raise SettingsError(
        f"{module_name} has no suite {name or DEFAULT_NAME!r}: "
        "give MODULE:NAME of a Suite, or of a function that gives cases"
    )


def _module(name: str) -> Any:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return _from_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except (Exception, SystemExit) as error:  # it may raise whatever it likes
        raise SettingsError(
            f"{name} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _from_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    sys.path.insert(0, str(path.parent.absolute()))  # as for a script
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
