"""Decision trees that choose a config for a scenario, as JSON and as Python.

The Python is a function like listing 2 of the paper, to review or to paste into code that does not
use this library.
"""

from __future__ import annotations

import builtins
import keyword
import math
from collections.abc import Iterator, Mapping
from typing import Any

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.scenario import Config, Context, FrozenModel, Moment, Scalar
from dejavu_cache.system.notices import printable

_NUMBER = "type({}) in (int, float)"

_USED_NAMES = {"CONFIGS", *dir(builtins)}
"""Names that the exported code has or may use itself."""


class Leaf(FrozenModel):
    """A choice: the index of one of the tree's configs."""

    config: int


class AtMost(FrozenModel):
    """A test whether an input, or the product of several, is at most a number."""

    inputs: tuple[str, ...]
    at_most: int | float
    yes: Node
    no: Node


class Equals(FrozenModel):
    """A test whether an input has a value."""

    input: str
    equals: Scalar
    yes: Node
    no: Node


Node = AtMost | Equals | Leaf


class Input(FrozenModel):
    """The values of a key argument, or of a tensor's dtype, for which the tree answers."""

    numbers: bool = False
    """Whether any number is accepted, because the tree was fitted to several."""
    values: tuple[Scalar, ...] = ()
    """Further accepted values: those that the tree was fitted to."""

    def accepts(self, value: object) -> bool:
        """Return whether the tree answers for a value."""
        return (self.numbers and is_number(value)) or value in self.values


class Regret(FrozenModel):
    """Slowdown of the tree's choices against the best config, on scenarios held out of the fit."""

    mean: float
    """As a share: 0.02 is 2% slower."""
    max: float
    failed: int
    """Scenarios in which the chosen config failed or was not timed; they are not in the mean."""
    scenarios: int
    folds: int


class Single(FrozenModel):
    """The best config for all scenarios alike, which a tree must beat, and its slowdown."""

    config: Config
    mean: float
    max: float


class Tree(FrozenModel):
    """A decision tree over key arguments and dtypes.

    It answers only for scenarios of the kind it was fitted to. A key argument that had several
    numbers may be any number; dtypes, strings, flags, None and a number that was always the same
    must be among the values of the fit.
    """

    context: Context
    """The context of the records that it was fitted to."""
    configs: tuple[Config, ...]
    inputs: dict[str, Input]
    root: Node
    regret: Regret
    single: Single | None
    at: Moment
    """When the latest of its measurements was taken: equal records give an equal tree."""

    def choose(self, values: Mapping[str, Any]) -> Config | None:
        """Choose a config for key values and dtype names, or None for those of another kind."""
        index = choice(self.root, self.inputs, values)
        return None if index is None else self.configs[index]

    @property
    def leaves(self) -> int:
        """The number of leaves."""
        return len([*choices(self.root)])

    def as_json(self) -> str:
        """Return the JSON text."""
        return self.model_dump_json(indent=1) + "\n"

    def as_python(self) -> str:
        """Return the source of a module without imports that chooses as the tree does.

        The module defines `CONFIGS`, and `choose`, which agrees with the method for all values.

        Raises:
            SettingsError: the name of an input cannot be a parameter of the function.
        """
        for name in self.inputs:
            if not name.isidentifier() or keyword.iskeyword(name) or name in _USED_NAMES:
                raise SettingsError(f"{name!r} cannot be a parameter in Python: export the JSON")
        return "\n".join(
            [
                *map(printable, self._head()),
                "",
                "CONFIGS = (",
                *(f"    {config.values!r}," for config in self.configs),
                ")",
                "",
                "",
                *self._function(),
                "",
            ]
        )

    def _head(self) -> Iterator[str]:
        environment, regret = self.context.environment, self.regret
        device, method = environment.device, self.context.problem.method
        yield f"# {self.context.kernel.name} on {device.name} ({device.arch}),"
        yield f"# Triton {environment.triton}, {method}: chosen by a decision tree."
        yield f"# It costs {regret.mean:.1%} over the best on average, {regret.max:.1%} at worst,"
        yield f"# in {regret.scenarios} scenarios, each held out of a fit."

    def _function(self) -> Iterator[str]:
        yield f"def choose({'*, ' if self.inputs else ''}{', '.join(self.inputs)}):"
        yield (
            '    """The config for bucketed key values and names of dtypes; '
            'None for a kind that the tree never saw."""'
        )
        for unknown in self._unknown():
            yield f"    if {unknown}:"
            yield "        return None"
        yield from self._branch(self.root, "    ")

    def _unknown(self) -> Iterator[str]:
        """Yield the conditions under which a tree does not answer."""
        only_numbers = {
            name: accepted.numbers and not accepted.values for name, accepted in self.inputs.items()
        }
        numbers = [name for name in self.inputs if only_numbers[name]]
        if numbers:
            yield f"not all({_NUMBER.format('value')} for value in [{', '.join(numbers)}])"
        for name, accepted in self.inputs.items():
            if accepted.numbers and accepted.values:
                yield f"not ({_NUMBER.format(name)} or {name} in {accepted.values!r})"
            elif not accepted.numbers:
                yield f"{name} not in {accepted.values!r}"

    def _branch(self, node: Node, margin: str) -> Iterator[str]:
        if isinstance(node, Leaf):
            yield f"{margin}return CONFIGS[{node.config}]"
            return
        yield f"{margin}if {self._question(node)}:"
        yield from self._branch(node.yes, margin + "    ")
        yield from self._branch(node.no, margin)

    def _question(self, node: AtMost | Equals) -> str:
        if isinstance(node, Equals):
            return f"{node.input} {'is' if node.equals is None else '=='} {node.equals!r}"
        # An input that is not always a number must be checked before it is compared.
        guards = [_NUMBER.format(name) for name in node.inputs if self.inputs[name].values]
        return " and ".join([*guards, f"{' * '.join(node.inputs)} <= {node.at_most!r}"])


def choice(root: Node, inputs: Mapping[str, Input], values: Mapping[str, Any]) -> int | None:
    """Return what the leaf has to which values lead; None if they are of another kind."""
    if not all(accepted.accepts(values.get(name)) for name, accepted in inputs.items()):
        return None
    node = root
    while not isinstance(node, Leaf):
        if isinstance(node, AtMost):
            factors: list[Any] = [values.get(name) for name in node.inputs]
            is_yes = all(map(is_number, factors)) and math.prod(factors) <= node.at_most
        else:
            is_yes = values.get(node.input) == node.equals
        node = node.yes if is_yes else node.no
    return node.config


def is_number(value: object) -> bool:
    """Return whether a value can be compared with a limit; a bool is a category."""
    return type(value) in (int, float)


def choices(node: Node) -> Iterator[int]:
    """Yield what each leaf has."""
    if isinstance(node, Leaf):
        yield node.config
    else:
        yield from choices(node.yes)
        yield from choices(node.no)
