"""Export a decision tree as a Python function, like listing 2 of the paper."""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Iterator

from ..errors import SettingsError
from ..model.decision_tree import AtMost, Equals, Input, Leaf, Node, Tree
from ..system.notices import printable

__all__ = ["as_python"]

_NUMBER = "type({}) in (int, float)"

_USED_NAMES = {"CONFIGS", *dir(builtins)}
"""Names that the exported code has or may use itself."""


def as_python(tree: Tree) -> str:
    """Return the source of a module without imports that chooses as the tree does.

    The module defines `CONFIGS`, and `choose`, which agrees with `Tree.choose` for all scenarios.

    Raises:
        SettingsError: the name of an input cannot be a parameter of the function.
    """
    for name in tree.inputs:
        if not name.isidentifier() or keyword.iskeyword(name) or name in _USED_NAMES:
            raise SettingsError(f"{name!r} cannot be a parameter in Python: export the JSON")
    return "\n".join(
        [
            *map(printable, _head(tree)),
            "",
            "CONFIGS = (",
            *(f"    { ({**one.params, **one.options})!r}," for one in tree.configs),
            ")",
            "",
            "",
            *_choose(tree),
            "",
        ]
    )


def _head(tree: Tree) -> Iterator[str]:
    environment, regret = tree.context.environment, tree.regret
    yield f"# {tree.context.kernel.name} on {environment.device.name} ({environment.device.arch}),"
    method = tree.context.problem.method
    yield f"# Triton {environment.triton}, {method}: chosen by a decision tree."
    yield f"# That costs {regret.mean:.1%} over the best on average, and {regret.max:.1%} at worst,"
    yield f"# in {regret.scenarios} scenarios, each held out of a fit."


def _choose(tree: Tree) -> Iterator[str]:
    yield f"def choose({'*, ' if tree.inputs else ''}{', '.join(tree.inputs)}):"
    yield (
        '    """The config for bucketed key values and names of dtypes; '
        'None for a kind that the tree never saw."""'
    )
    for unknown in _unknown(tree.inputs):
        yield f"    if {unknown}:"
        yield "        return None"
    yield from _branch(tree.root, tree.inputs, "    ")


def _unknown(inputs: dict[str, Input]) -> Iterator[str]:
    """Yield the conditions under which a tree does not answer."""
    numbers = [name for name, domain in inputs.items() if domain.numbers and not domain.values]
    if numbers:
        yield f"not all({_NUMBER.format('value')} for value in [{', '.join(numbers)}])"
    for name, domain in inputs.items():
        if domain.numbers and domain.values:
            yield f"not ({_NUMBER.format(name)} or {name} in {domain.values!r})"
        elif not domain.numbers:
            yield f"{name} not in {domain.values!r}"


def _branch(node: Node, inputs: dict[str, Input], margin: str) -> Iterator[str]:
    if isinstance(node, Leaf):
        yield f"{margin}return CONFIGS[{node.ranking[0]}]"
        return
    yield f"{margin}if {_question(node, inputs)}:"
    yield from _branch(node.yes, inputs, margin + "    ")
    yield from _branch(node.no, inputs, margin)


def _question(node: AtMost | Equals, inputs: dict[str, Input]) -> str:
    if isinstance(node, AtMost):
        # An input that is not always a number must be checked before it is compared.
        guards = [
            _NUMBER.format(name) for name in dict.fromkeys(node.inputs) if inputs[name].values
        ]
        return " and ".join([*guards, f"{' * '.join(node.inputs)} <= {node.at_most!r}"])
    if node.equals is None:
        return f"{node.input} is None"
    return f"{node.input} == {node.equals!r}"
