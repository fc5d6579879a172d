"""From records to the smallest set of configs, and to a tree."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import synthetic_matmul
from support.processes import run_python
from support.records import MOMENT, config, context, measurement, tuned_record
from support.tree_agreement import check_agreement

from dejavu_cache.errors import (
    DamagedRecordsError,
    NewerFormatError,
    TooFewRecordsError,
)
from dejavu_cache.heuristics.fit import SlowdownTable, fit, smallest_subset
from dejavu_cache.model.decision_tree import MOST_QUESTIONS, Tree, leaves
from dejavu_cache.model.record import Failure, Measurement, RecordSet
from dejavu_cache.model.scenario import Config, Scenario


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.02, 0.1, 0.3]))
def test_the_subset_is_within_one_of_the_smallest_there_is(seed: int, bound: float) -> None:
    slowdown = 1 + np.random.default_rng(seed).integers(0, 8, size=(6, 7)) / 20
    slowdown /= slowdown.min(axis=1, keepdims=True)
    size = len(smallest_subset(slowdown, bound, limit=7).columns)
    smallest = next(
        size
        for size in range(1, 8)
        if any(
            (slowdown[:, list(some)].min(axis=1) <= 1 + bound).all()
            for some in combinations(range(7), size)
        )
    )
    assert smallest <= size <= smallest + 1


def test_where_the_limit_does_not_suffice_no_exchange_of_a_config_makes_the_set_cheaper() -> None:
    slowdown = SlowdownTable.of(
        synthetic_matmul.sweep(synthetic_matmul.scenarios()).records
    ).slowdown
    subset = smallest_subset(slowdown, 0.0, limit=4)
    assert len(subset.columns) == 4
    assert subset.bound == slowdown[:, subset.columns].min(axis=1).max() - 1 > 0

    def cost(columns: list[int]) -> float:
        return float(np.minimum(slowdown[:, columns].min(axis=1), 1.5).mean())

    for position, new in product(range(4), range(slowdown.shape[1])):
        exchanged = [*subset.columns[:position], new, *subset.columns[position + 1 :]]
        assert cost(exchanged) >= cost(subset.columns) - 1e-9


def test_every_other_scenario_says_what_to_take_in_those_between() -> None:
    blocks = (16, 32, 64, 128, 256)
    at = [2**power for power in range(8)]

    def median(m: int, n: int, block: int) -> float:
        return 1 + 0.1 * abs(math.log2(block) - 4 - math.log2(m) / 4 - math.log2(n) / 3)

    records = [
        tuned_record(
            scenario=Scenario(args={"m": m, "n": n}),
            measurements=tuple(measurement(block, median(m, n, block)) for block in blocks),
        )
        for m, n in product(at, at)
        if (m * n).bit_length() % 2
    ]
    fitted = fit(RecordSet(context=context(), records=tuple(records)))
    for m, n in product(at, at):
        chosen = fitted.choose(Scenario(args={"m": m, "n": n}))
        paid = min(median(m, n, block) for block in blocks if config(block) == chosen)
        assert paid <= 1.05 * min(median(m, n, block) for block in blocks)


def test_a_record_that_is_hardly_begun_does_not_count() -> None:
    record_set = synthetic_matmul.sweep(synthetic_matmul.scenarios())

    def rows_with(measured: int) -> int:
        begun = record_set.records[0].model_copy(
            update={"measurements": record_set.records[0].measurements[:measured]}
        )
        return len(SlowdownTable.of([begun, *record_set.records[1:]]))

    assert rows_with(9) == len(record_set.records) - 1
    assert rows_with(11) == len(record_set.records), "pruning may have left no more"


def test_timings_without_a_winner_do_not_count() -> None:
    """Nobody has compared their results: the fastest may be fast because it is wrong."""
    whole = synthetic_matmul.sweep(synthetic_matmul.scenarios()[:9])
    interrupted = synthetic_matmul.sweep(synthetic_matmul.scenarios()[9:20])
    unfinished = (record.model_copy(update={"winner": None}) for record in interrupted.records)
    both = whole.model_copy(update={"records": (*whole.records, *unfinished)})
    with pytest.raises(TooFewRecordsError, match="has 9 scenarios with a winner"):
        fit(both)


def test_too_few_records_are_refused_with_how_many_are_needed() -> None:
    with pytest.raises(TooFewRecordsError, match=r"has 7 scenarios .* needs 10: tune 3 more"):
        fit(synthetic_matmul.sweep(synthetic_matmul.scenarios()[:7]))


def test_equal_records_give_an_equal_tree() -> None:
    forwards = synthetic_matmul.sweep(synthetic_matmul.scenarios((16, 256, 4096)))
    backwards = forwards.model_copy(update={"records": forwards.records[::-1]})
    assert fit(backwards).text == fit(forwards).text


def test_a_tree_is_small_and_says_what_it_costs(tree: Tree) -> None:
    assert len(tree.configs) <= 12
    assert len(list(leaves(tree.root))) <= 16
    assert tree.regret.scenarios == 200
    assert 0 < tree.regret.mean < 0.03
    assert tree.regret.max < 0.15
    assert tree.regret.failed == 0


def test_the_regret_that_is_told_is_the_regret_that_strangers_meet(tree: Tree) -> None:
    """On sizes that no fold has seen, between and beyond those of the fit."""
    unseen = SlowdownTable.of(
        synthetic_matmul.sweep(
            synthetic_matmul.scenarios((32, 128, 512, 2048, 8192)), noise=0
        ).records
    )
    columns = {config: column for column, config in enumerate(unseen.configs)}
    paid = [
        unseen.slowdown[row][columns[chosen]] - 1
        for row, scenario in enumerate(unseen.scenarios)
        if (chosen := tree.choose(scenario)) is not None
    ]
    assert len(paid) == len(unseen.scenarios)
    assert np.mean(paid) < 0.1
    best_single = min(unseen.slowdown[:, column].mean() - 1 for column in columns.values())
    assert np.mean(paid) < best_single / 4


def test_a_tree_prefers_two_close_seconds_over_a_winner_that_is_terrible_elsewhere() -> None:
    """Choices are judged by their cost and not by how often they are the best."""

    def medians(n: int) -> tuple[float, float, float]:
        return (1.0, 9.0, 1.03) if n % 3 else (9.0, 1.0, 1.03)

    records = [
        tuned_record(
            scenario=Scenario(args={"n": n}),
            measurements=tuple(
                measurement(b, m) for b, m in zip((16, 32, 64), medians(n), strict=True)
            ),
        )
        for n in range(1, 31)
    ]
    fitted = fit(RecordSet(context=context(), records=tuple(records)))
    assert fitted.configs == (config(64),)
    assert fitted.regret.max == pytest.approx(0.03)


def test_a_leaf_avoids_what_failed_in_any_of_its_scenarios(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dejavu_cache.heuristics.fit.LEAVES", 2)

    def measurements(n: int) -> tuple[Measurement, ...]:
        failed = Measurement(
            config=config(16), failure=Failure(kind="out_of_resources", reason="no"), at=MOMENT
        )
        return (
            failed if n == 7 else measurement(16, 1.0),
            measurement(32, 1.2),
            measurement(64, 1.04 if n == 7 else 3),
        )

    records = [
        tuned_record(scenario=Scenario(args={"n": n}), measurements=measurements(n))
        for n in range(1, 61)
    ]
    fitted = fit(RecordSet(context=context(), records=tuple(records)))
    assert fitted.choose(Scenario(args={"n": 7})) != config(16)


def test_a_kind_of_scenario_that_was_never_fitted_gets_no_answer(tree: Tree) -> None:
    scenario = synthetic_matmul.scenarios()[0]
    assert tree.choose(scenario) is not None
    for args, dtypes in (
        ({"M": None}, {}),
        ({"M": "many"}, {}),
        ({"M": True}, {}),
        ({"bias": None}, {}),
        ({}, {"a_ptr": "float8_e4m3fn"}),
    ):
        other = Scenario(args={**scenario.args, **args}, dtypes={**scenario.dtypes, **dtypes})
        assert tree.choose(other) is None
    missing = Scenario(
        args={name: value for name, value in scenario.args.items() if name != "K"},
        dtypes=scenario.dtypes,
    )
    assert tree.choose(missing) is None


def test_what_was_always_the_same_number_must_be_that_number() -> None:
    fitted = fit(
        synthetic_matmul.sweep(
            scenario for scenario in synthetic_matmul.scenarios() if scenario.args["K"] == 256
        )
    )
    scenario = synthetic_matmul.scenarios()[0]
    assert (
        fitted.choose(Scenario(args={**scenario.args, "K": 256}, dtypes=scenario.dtypes))
        is not None
    )
    assert fitted.choose(Scenario(args={**scenario.args, "K": 64}, dtypes=scenario.dtypes)) is None


def chain(tree: Tree, questions: int, **question: Any) -> str:
    """Return the text of a tree in which every question follows the yes to the one before."""
    root: dict[str, Any] = {"ranking": [0]}
    for number in range(questions):
        root = {**question, "yes": root, "no": {"ranking": [number % 2]}}
    return changed_text(tree, root=root)


@pytest.mark.parametrize(
    "question", [{"inputs": ["M"], "at_most": 64}, {"input": "M", "equals": 64}], ids=str
)
def test_a_deep_tree_is_read_in_bounded_time(tree: Tree, question: dict[str, Any]) -> None:
    """Where each node is tried as every kind of node, each further question doubles the time."""
    text = chain(tree, MOST_QUESTIONS, **question)
    damaged = text.replace('{"ranking": [0]}', '{"ranking": []}')
    for read, reading in ((text, nullcontext()), (damaged, pytest.raises(DamagedRecordsError))):
        with reading:
            Tree.parse(read, "the tree")


def test_no_tree_is_deeper_than_python_nests(tree: Tree) -> None:
    deepest = Tree.parse(chain(tree, MOST_QUESTIONS, inputs=["M"], at_most=64), "the tree")
    check_agreement(deepest, synthetic_matmul.scenarios(), 100)
    with pytest.raises(DamagedRecordsError, match=f"more than {MOST_QUESTIONS} questions"):
        Tree.parse(chain(tree, MOST_QUESTIONS + 1, inputs=["M"], at_most=64), "the tree")


def test_a_fit_asks_no_more_questions_than_a_tree_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dejavu_cache.heuristics.fit.MOST_QUESTIONS", 1)
    fitted = fit(synthetic_matmul.sweep(synthetic_matmul.scenarios((16, 256, 4096))))
    assert sum(1 for _ in leaves(fitted.root)) == 2


def test_a_tree_survives_being_written_and_read(tree: Tree) -> None:
    assert Tree.parse(tree.text, "the tree") == tree
    assert max(map(len, tree.text.splitlines())) < 130


def changed_text(tree: Tree, **fields: Any) -> str:
    return json.dumps({**json.loads(tree.text), **fields})


def test_a_bad_tree_is_refused_by_name(tree: Tree) -> None:
    with pytest.raises(NewerFormatError, match=r"forest\.json has format 2"):
        Tree.parse(changed_text(tree, format=2, root="anything"), "forest.json")
    question = '{"input": "bias", "equals": true, "no": {"ranking": [0]}, "yes": '
    nested = question * 5000 + '{"ranking": [0]}' + "}" * 5000
    for text in (
        "",
        "[]",
        tree.text[:400],
        changed_text(tree, root={"ranking": [99]}),
        changed_text(tree, root={"ranking": []}),
        changed_text(
            tree,
            root={
                "inputs": ["nobody"],
                "at_most": 1,
                "yes": {"ranking": [0]},
                "no": {"ranking": [0]},
            },
        ),
        changed_text(tree, configs=[]),
        changed_text(tree, root=0).replace('"root": 0', f'"root": {nested}'),
    ):
        with pytest.raises(DamagedRecordsError, match=r"forest\.json is not a decision tree"):
            Tree.parse(text, "forest.json")


def test_choosing_needs_neither_numpy_nor_scikit_learn(tree: Tree) -> None:
    code = """
        import sys
        for name in ("torch", "triton", "numpy", "sklearn"):
            sys.modules[name] = None
        from dejavu_cache.model.scenario import Scenario
        from dejavu_cache.model.decision_tree import Tree
        tree = Tree.parse(sys.argv[1], "argument")
        print(tree.choose(Scenario.model_validate_json(sys.argv[2])).text)
    """
    scenario = synthetic_matmul.scenarios()[0]
    config = Config.model_validate_json(run_python(code, tree.text, scenario.text).stdout)
    assert config == tree.choose(scenario)
