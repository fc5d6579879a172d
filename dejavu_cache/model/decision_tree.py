"""Decision trees that choose a config for a scenario without a record.

A tree is data: reading its JSON imports and executes nothing, and it can only name configs.
`dejavu_cache.heuristics.fit` fits trees to records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    StrictFloat,
    StrictInt,
    Tag,
    ValidationError,
)

from ..errors import DamagedRecordsError, NewerFormatError
from .record import first_problem, version_of
from .scenario import Config, Context, FrozenModel, Moment, Scalar, Scenario, Text, sort_by_name

__all__ = [
    "MOST_QUESTIONS",
    "TREE_FORMAT",
    "AtMost",
    "Equals",
    "Input",
    "Leaf",
    "Node",
    "Regret",
    "Tree",
    "leaves",
    "ranking",
]

TREE_FORMAT = 1
"""The format version that this code writes; it reads this one and every older one."""

MOST_QUESTIONS = 64
"""Largest number of questions on the way to a leaf; Python nests at most 100 blocks."""

_WIDTH = 110
_NUMBERS = (int, float)  # exactly these types: a bool is a category


class Leaf(FrozenModel):
    """A leaf: a ranking of configs."""

    ranking: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1)
    """Indices into the tree's configs, by ascending cost.

    A kernel may no longer declare the first one; then the next is chosen.
    """


class AtMost(FrozenModel):
    """A test whether an input, or the product of several, is at most a number."""

    inputs: tuple[Text, ...] = Field(min_length=1, max_length=4)
    at_most: StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)]
    yes: Node
    no: Node


class Equals(FrozenModel):
    """A test whether an input has a value."""

    input: Text
    equals: Scalar
    yes: Node
    no: Node


def _kind_of(node: object) -> str | None:
    """Return the field that only one kind of node has, or None if there is none."""
    fields = node if isinstance(node, Mapping) else getattr(type(node), "model_fields", ())
    return next((name for name in ("at_most", "equals", "ranking") if name in fields), None)


# Without the discriminator, each node would be tried as every kind, all below it included: that
# takes twice as long with each further question on the way to a leaf.
Node = Annotated[
    Annotated[AtMost, Tag("at_most")]
    | Annotated[Equals, Tag("equals")]
    | Annotated[Leaf, Tag("ranking")],
    Discriminator(
        _kind_of,
        custom_error_type="node",
        custom_error_message="a node has none of `at_most`, `equals` and `ranking`",
    ),
]


class Input(FrozenModel):
    """The values of a key argument, or of a tensor's dtype, for which the tree answers."""

    numbers: bool = False
    """Whether any number is accepted, because the tree was fitted to several."""
    values: tuple[Scalar, ...] = ()
    """Further accepted values: those that the tree was fitted to."""


class Regret(FrozenModel):
    """Slowdown of the tree's choices against the best config, on scenarios held out of the fit."""

    mean: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """As a share: 0.02 is 2% slower."""
    max: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    failed: int = Field(default=0, ge=0)
    """Scenarios in which the chosen config cannot run; the two above leave them out."""
    scenarios: int = Field(ge=1)
    folds: int = Field(ge=1)


class Tree(FrozenModel):
    """A decision tree over key arguments and dtypes.

    It answers only for scenarios of the kind it was fitted to. A key argument that had several
    numbers may be any number; dtypes, strings, flags, None and a number that was always the same
    must be among the values of the fit.
    """

    format: int = TREE_FORMAT
    context: Context
    """The context of the records that it was fitted to."""
    configs: tuple[Config, ...] = Field(min_length=1, max_length=256)
    inputs: Annotated[dict[Text, Input], AfterValidator(sort_by_name)] = Field(
        default_factory=dict, max_length=256
    )
    root: Node
    bound: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """The largest slowdown over the scenarios of the fit if the best of `configs` is chosen."""
    regret: Regret
    at: Moment
    """When the latest of its measurements was taken: equal records give an equal tree."""

    def model_post_init(self, _: object) -> None:
        """Check the depth, and that nodes refer only to configs and inputs of this tree."""
        if _depth(self.root) > MOST_QUESTIONS:
            raise ValueError(f"more than {MOST_QUESTIONS} questions lead to a leaf")
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
        """Parse a tree from JSON.

        Raises:
            NewerFormatError: a newer version wrote it.
            DamagedRecordsError: the text is not a tree.
        """
        if (version := version_of(text)) > TREE_FORMAT:
            raise NewerFormatError(where, version, TREE_FORMAT)
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            reason = first_problem(error)
        except RecursionError:
            reason = "it is nested too deeply"
        raise DamagedRecordsError(f"{where} is not a decision tree: {reason}")

    @property
    def text(self) -> str:
        """Return the JSON text of the tree's file."""
        return _format_json(self.model_dump(mode="json")) + "\n"

    def choose(self, scenario: Scenario) -> Config | None:
        """Choose a config, or None if the scenario is of another kind than those of the fit."""
        return next(iter(self.rank(scenario.values)), None)

    def rank(self, values: Mapping[str, Any]) -> tuple[Config, ...]:
        """Return the configs for key values and dtype names, by ascending cost.

        There are none if the values are of another kind than those of the fit.
        """
        return tuple(self.configs[index] for index in ranking(self.root, self.inputs, values))


def ranking(root: Node, inputs: Mapping[str, Input], values: Mapping[str, Any]) -> tuple[int, ...]:
    """Return what the leaf has to which values lead from a tree's first node; empty if none does.

    Args:
        root: the first node.
        inputs: the accepted values by input.
        values: the bucketed key values and dtype names, by name.
    """
    for name, accepted in inputs.items():
        value = values.get(name)
        if not ((accepted.numbers and type(value) in _NUMBERS) or value in accepted.values):
            return ()
    node = root
    while not isinstance(node, Leaf):
        if isinstance(node, AtMost):
            factors: list[Any] = [values.get(name) for name in node.inputs]
            are_numbers = all(type(factor) in _NUMBERS for factor in factors)
            is_yes = are_numbers and math.prod(factors) <= node.at_most
        else:
            is_yes = values.get(node.input) == node.equals
        node = node.yes if is_yes else node.no
    return node.ranking


def _format_json(value: Any, depth: int = 0) -> str:
    """Format JSON with every value that fits on one line."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or len(line) + depth <= _WIDTH:
        return line
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(name, ensure_ascii=False)}: {_format_json(part, depth + 1)}"
            for name, part in value.items()
        ]
    else:
        parts = [_format_json(part, depth + 1) for part in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    margin = "\n" + " " * (depth + 1)
    return f"{opening}{margin}{f',{margin}'.join(parts)}{margin[:-1]}{closing}"


def leaves(node: Node) -> Iterator[Leaf]:
    """Yield the leaves, those of `yes` before those of `no`."""
    return (child for child in _walk(node) if isinstance(child, Leaf))


def _walk(node: Node) -> Iterator[Node]:
    yield node
    if not isinstance(node, Leaf):
        yield from _walk(node.yes)
        yield from _walk(node.no)


def _depth(node: Node) -> int:
    return 0 if isinstance(node, Leaf) else 1 + max(_depth(node.yes), _depth(node.no))
