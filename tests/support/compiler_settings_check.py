"""Compile kernels under each of Triton's settings, and compare the code with the settings' text."""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dejavu_cache.triton_internals.compiler_settings import (
    _NEUTRAL_VARIABLES,
    _groups,
    _knobs,
    code_generation_variables,
    compiler_settings,
)
from support.identity_check import TARGETS, load_corpus_kernel, machine_code
from support.identity_corpus import CORPUS

__all__ = ["SettingsOutcome", "check_settings"]

VALUES = ("1", "0", "7", "on", "")
"""Texts that each variable is set to; a knob is set to Python's own True and False."""


@dataclass
class SettingsOutcome:
    """What became of some settings.

    Attributes:
        cases: how many settings were tried.
        equal: cases in which the text of the settings stayed as it was.
        refused: cases of these under which Triton compiles nothing at all.
        wrong: cases of these in which the code differs.
        counted: settings that changed the text, and so make an environment of their own.
    """

    cases: int = 0
    equal: int = 0
    refused: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    counted: list[str] = field(default_factory=list)


def check_settings(kernels: tuple[str, ...], sample: int | None, seed: int) -> SettingsOutcome:
    """Compile under the knobs and variables of this Triton, each case in a forked process.

    Args:
        kernels: names of the corpus.
        sample: how many cases; None for all.
        seed: of the sample.
    """
    outcome = SettingsOutcome()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # dumps go here
        functions = {
            name: load_corpus_kernel(Path(folder) / f"{name}.py", CORPUS[name].source)
            for name in kernels
        }
        plain = _compile_apart(functions, {}, None)
        cases = list(_cases())
        for name, variables, knob in random.Random(seed).sample(cases, sample or len(cases)):
            result = _compile_apart(functions, variables, knob)
            outcome.cases += 1
            if result["settings"] != plain["settings"]:
                outcome.counted.append(name)
                continue
            outcome.equal += 1
            if any("Error" in code for code in result["codes"]):
                outcome.refused.append(name)
            elif result["codes"] != plain["codes"]:
                outcome.wrong.append(f"{name}: {variables or knob}")
    outcome.counted = sorted(set(outcome.counted))
    return outcome


def _cases() -> Iterator[tuple[str, dict[str, str], Any]]:
    # Without TRITON_ALWAYS_COMPILE, Triton would answer from its cache.
    variables = {*_NEUTRAL_VARIABLES, *code_generation_variables()}
    for group_name, group in _groups():
        for name, descriptor in _knobs(group):
            if name == "always_compile":
                continue
            if hasattr(descriptor, "key"):
                variables.add(descriptor.key)
            for switched in (True, False):
                yield f"{group_name}.{name}", {}, (group_name, name, switched)
    for variable in sorted(variables):
        for value in VALUES:
            yield variable, {variable: value}, None


def _compile_apart(
    functions: dict[str, Any], variables: dict[str, str], knob: tuple[str, str, bool] | None
) -> dict[str, Any]:
    """Set a variable or a knob in a forked process, and compile there if the text is the same."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(1, 2)
            answer = json.dumps(_compile_with(functions, variables, knob))
            os.write(writing, answer.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    # A setting that ends the process, or that this Triton refuses, is refused to its user too.
    return json.loads(answer) if answer else {"settings": "the process ended", "codes": []}


def _compile_with(
    functions: dict[str, Any], variables: dict[str, str], knob: tuple[str, str, bool] | None
) -> dict[str, Any]:
    from triton import knobs

    before = json.dumps(compiler_settings())
    os.environ.update(variables)
    try:
        if knob is not None:
            setattr(getattr(knobs, knob[0]), knob[1], knob[2])
        settings = json.dumps(compiler_settings())
    except Exception as error:
        return {"settings": f"refused: {error}", "codes": []}
    if settings != before:
        return {"settings": settings, "codes": []}
    codes = [
        machine_code(function, CORPUS[name], target)
        for name, function in functions.items()
        for target in TARGETS
    ]
    return {"settings": settings, "codes": codes}
