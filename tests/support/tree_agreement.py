"""Whether a tree's Python chooses what the tree does."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from dejavu_cache.heuristics.python_export import as_python
from dejavu_cache.model.decision_tree import Tree, leaves
from dejavu_cache.model.scenario import Scenario


def exported_choose(fitted: Tree) -> Callable[..., dict[str, Any] | None]:
    """Return the `choose` function of a tree's Python export."""
    module: dict[str, Any] = {}
    exec(as_python(fitted), module)  # it is what a person would paste
    return module["choose"]  # type: ignore[no-any-return]


def draw_value(chance: random.Random, values: list[Any]) -> Any:
    """Mostly what a kernel is launched with, sometimes what no fit has seen."""
    numbers = [chance.randint(-4, 70_000), 2 ** chance.randint(0, 40), chance.uniform(0, 5000), 0]
    return chance.choice([*values * 3, *numbers * 3, None, True, False, "auto", 1])


def check_agreement(fitted: Tree, seen: Sequence[Scenario], count: int) -> None:
    """Compare a tree with its Python export on scenarios of the fit with some values changed.

    A tree answers few scenarios that are entirely random.
    """
    choose, chance = exported_choose(fitted), random.Random(0)
    launches = [
        {name: {**scenario.dtypes, **scenario.args}.get(name) for name in fitted.inputs}
        for scenario in seen
    ]
    answers = set()
    for _ in range(count):
        values = dict(chance.choice(launches))
        for name in chance.sample(list(values), chance.randint(0, min(4, len(values)))):
            values[name] = draw_value(chance, [launch[name] for launch in launches[:8]])
        scenario = Scenario(args=values)
        ours, theirs = fitted.choose(scenario), choose(**scenario.args)
        assert theirs == (ours and {**ours.params, **ours.options}), scenario
        answers.add(ours)
    assert answers == {None, *(fitted.configs[leaf.ranking[0]] for leaf in leaves(fitted.root))}
