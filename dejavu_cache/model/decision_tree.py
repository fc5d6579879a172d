"""A small decision tree that chooses a config for a scenario which nobody tuned.

It is data: JSON that is read without importing or running anything, and that can only ever name configs.
`dejavu_cache.heuristics.fit` makes trees out of records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, TypeVar, Union

from pydantic import AfterValidator, BaseModel, Field, StrictFloat, StrictInt, ValidationError

from ..errors import DamagedRecordsError, NewerFormatError
from .scenario import Config, Context, FrozenModel, Moment, Scalar, Scenario, Text

__all__ = [
    "TREE_FORMAT",
    "AtMost",
    "Equals",
    "Input",
    "Leaf",
    "Node",
    "Ranking",
    "Regret",
    "Tree",
    "leaves",
    "prepared",
]

TREE_FORMAT = 1
"""The format version that this code writes; it reads this one and every older one."""

Ranking = tuple[Config, ...]
"""Configs from the one that costs least; empty where a tree has nothing to say."""

T = TypeVar("T")

_WIDTH = 110
_NUMBERS = (int, float)  # exactly these types: a bool is a category


class Leaf(FrozenModel):
    """The end of a path."""

    ranking: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1)
    """Places in the tree's list of configs, from the one that costs least: a kernel may not declare the first."""


class AtMost(FrozenModel):
    """Whether an input, or the product of several, is a number no greater than another."""

    inputs: tuple[Text, ...] = Field(min_length=1, max_length=4)
    at_most: StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)]
    yes: Node
    no: Node


class Equals(FrozenModel):
    """Whether an input has a certain value."""

    input: Text
    equals: Scalar
    yes: Node
    no: Node


Node = Union[AtMost, Equals, Leaf]  # noqa: UP007 - a forward reference on 3.10


class Input(FrozenModel):
    """What a key argument, or a tensor's dtype, may be for the tree to answer."""

    numbers: bool = False
    """Any number, since the tree was fitted on several."""
    values: tuple[Scalar, ...] = ()
    """Else one of these: all that it was fitted on."""


class Regret(FrozenModel):
    """What a choice costs over the best config of each scenario, on scenarios held out of the fit."""

    mean: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """As a share: 0.02 is 2% slower."""
    max: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    failed: int = Field(default=0, ge=0)
    """Scenarios in which the chosen config cannot run; the two above leave them out."""
    scenarios: int = Field(ge=1)
    folds: int = Field(ge=1)


def _sorted(inputs: Mapping[str, Input]) -> dict[str, Input]:
    return dict(sorted(inputs.items()))


class Tree(FrozenModel):
    """A decision tree over key arguments and dtypes.

    It answers only for scenarios of the kind it was fitted on: where a key argument was a number it takes
    any number; where it was a word, a flag, None or always the same number, and for dtypes, only what it has seen.
    """

    format: int = TREE_FORMAT
    context: Context
    """Whose records it was fitted on."""
    configs: tuple[Config, ...] = Field(min_length=1, max_length=256)
    inputs: Annotated[dict[Text, Input], AfterValidator(_sorted)] = Field(
        default_factory=dict, max_length=256
    )
    root: Node
    bound: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """The set of configs holds one within this share of the best in every scenario of the fit."""
    regret: Regret
    at: Moment
    """When the last of its measurements was taken: the same records give the same tree."""

    def model_post_init(self, _: Any) -> None:
        for node in _walk(self.root):
            if isinstance(node, Leaf):
                if max(node.ranking) >= len(self.configs):
                    raise ValueError(
                        f"a leaf names config {max(node.ranking)} of {len(self.configs)}"
                    )
            else:
                unknown = set(node.inputs if isinstance(node, AtMost) else [node.input]) - set(
                    self.inputs
                )
                if unknown:
                    raise ValueError(f"a node asks for {sorted(unknown)}, not among the inputs")

    @classmethod
    def parse(cls, text: str, where: str) -> Tree:
        """Reads a tree's JSON.

        Raises:
            NewerFormatError: a newer version wrote it.
            DamagedRecordsError: it is no tree.
        """
        try:
            return cls._checked(text, where)
        except (ValidationError, RecursionError) as error:
            raise DamagedRecordsError(f"{where} is not a decision tree: {_reason(error)}") from None

    @classmethod
    def _checked(cls, text: str, where: str) -> Tree:
        found = _Versioned.model_validate_json(text).format
        if found > TREE_FORMAT:
            raise NewerFormatError(where, found, TREE_FORMAT)
        return cls.model_validate_json(text)

    @property
    def text(self) -> str:
        """The tree as it is written down."""
        return _laid_out(self.model_dump(mode="json")) + "\n"

    def choose(self, scenario: Scenario) -> Config | None:
        """The config of a scenario, or None if the scenario is of another kind than those of the fit."""
        return next(iter(self.rank({**scenario.dtypes, **scenario.args})), None)

    @cached_property
    def rank(self) -> Callable[[Mapping[str, Any]], Ranking]:
        """The choice prepared for speed: from bucketed key values and dtype names, by name, to a `Ranking`."""
        return prepared(self.root, self.inputs, self.configs)


def prepared(
    root: Node, inputs: Mapping[str, Input], choices: Sequence[T]
) -> Callable[[Mapping[str, Any]], tuple[T, ...]]:
    """A function from values by name to the choices that a tree ranks there; to none where it does not answer."""
    checks = [(name, each.numbers, each.values) for name, each in inputs.items()]
    first = _as_tuple(root, choices)

    def rank(values: Mapping[str, Any]) -> tuple[T, ...]:
        value: Any
        for name, numbers, known in checks:
            value = values.get(name)
            if not ((numbers and type(value) in _NUMBERS) or value in known):
                return ()
        node = first
        while len(node) == 5:
            name, more, wanted, yes, no = node
            value = values.get(name)
            if more is None:
                node = yes if value == wanted else no
                continue
            for other in more:
                factor: Any = values.get(other)
                value = (
                    value * factor if type(value) in _NUMBERS and type(factor) in _NUMBERS else None
                )
            node = yes if type(value) in _NUMBERS and value <= wanted else no
        return node[0]  # type: ignore[no-any-return]

    return rank


def _as_tuple(node: Node, choices: Sequence[Any]) -> tuple[Any, ...]:
    """A node as a tuple: of five for a question, of one for a leaf."""
    if isinstance(node, Leaf):
        return (tuple(choices[place] for place in node.ranking),)
    yes, no = _as_tuple(node.yes, choices), _as_tuple(node.no, choices)
    if isinstance(node, AtMost):
        return node.inputs[0], node.inputs[1:], node.at_most, yes, no
    return node.input, None, node.equals, yes, no


def _laid_out(value: Any, depth: int = 0) -> str:
    """JSON in which what fits on a line stands on one."""
    whole = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or len(whole) + depth <= _WIDTH:
        return whole
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(name, ensure_ascii=False)}: {_laid_out(part, depth + 1)}"
            for name, part in value.items()
        ]
    else:
        parts = [_laid_out(part, depth + 1) for part in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    margin = "\n" + " " * (depth + 1)
    return f"{opening}{margin}{f',{margin}'.join(parts)}{margin[:-1]}{closing}"


class _Versioned(BaseModel):
    format: int


def leaves(node: Node) -> Iterator[Leaf]:
    """The leaves from yes to no."""
    return (each for each in _walk(node) if isinstance(each, Leaf))


def _walk(node: Node) -> Iterator[Node]:
    yield node
    if not isinstance(node, Leaf):
        yield from _walk(node.yes)
        yield from _walk(node.no)


def _reason(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return "it is nested too deeply"
    first = error.errors(include_url=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
