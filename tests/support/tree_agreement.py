"""Whether a tree's Python chooses what the tree does."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from dejavu_cache.heuristics.python_export import as_python
from dejavu_cache.model.decision_tree import Tree, leaves
from dejavu_cache.model.scenario import Scenario


def exported(fitted: Tree) -> Callable[..., dict[str, Any] | None]:
    """The `choose` of a tree's Python."""
    module: dict[str, Any] = {}
    exec(as_python(fitted), module)  # it is what a person would paste
    return module["choose"]  # type: ignore[no-any-return]


def anything(chance: random.Random, values: list[Any]) -> Any:
    """Mostly what a kernel is launched with, sometimes what no fit has seen."""
    numbers = [chance.randint(-4, 70_000), 2 ** chance.randint(0, 40), chance.uniform(0, 5000), 0]
    return chance.choice([*values * 3, *numbers * 3, None, True, False, "auto", 1])


def check_agreement(fitted: Tree, seen: Sequence[Scenario], count: int) -> None:
    """Asks both about scenarios of the fit with some values changed: a tree answers to few that are all random."""
    choose, chance = exported(fitted), random.Random(0)
    known = [
        {name: {**each.dtypes, **each.args}.get(name) for name in fitted.inputs} for each in seen
    ]
    answers = set()
    for _ in range(count):
        given = dict(chance.choice(known))
        for name in chance.sample(list(given), chance.randint(0, min(4, len(given)))):
            given[name] = anything(chance, [each[name] for each in known[:8]])
        scenario = Scenario(args=given)
        ours, theirs = fitted.choose(scenario), choose(**scenario.args)
        assert theirs == (ours and {**ours.params, **ours.options}), scenario
        answers.add(ours)
    assert answers == {None, *(fitted.configs[each.ranking[0]] for each in leaves(fitted.root))}
