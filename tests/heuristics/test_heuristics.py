"""From records to a decision tree, to Python that chooses as it does, and to the command."""

import json
import math
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dejavu_client.heuristics.decision_tree import Tree
from dejavu_client.heuristics.fit import SlowdownTable, fit
from support import synthetic_matmul
from support.command_line import run_cli
from support.records import MOMENT, config, context, measurement, tuned_record

from dejavu_cache.errors import SettingsError, TooFewRecordsError
from dejavu_cache.model.record import Failure, Measurement, Record, RecordSet
from dejavu_cache.model.scenario import Scenario
from dejavu_cache.stores import FileStore

SIZES = (16, 256, 4096)


@pytest.fixture(scope="module")
def tree() -> Tree:
    """Fitted on three sizes of the imagined matrix product."""
    return fit(synthetic_matmul.sweep(synthetic_matmul.scenarios(SIZES)))


def fit_medians(
    launches: Iterable[dict[str, Any]], median: Callable[[int, dict[str, Any]], float]
) -> tuple[Tree, list[Record]]:
    """Return a tree for blocks of 16 to 128, fitted to what each takes in each launch."""
    records = [
        tuned_record(
            scenario=Scenario(args=args),
            measurements=tuple(
                measurement(block, median(block, args)) for block in (16, 32, 64, 128)
            ),
        )
        for args in launches
    ]
    return fit(RecordSet(context=context(), records=tuple(records))), records


def draw_value(chance: random.Random, values: list[Any]) -> Any:
    """Mostly what a kernel is launched with, sometimes what no fit has seen."""
    numbers = [chance.randint(-4, 70_000), 2 ** chance.randint(0, 40), chance.uniform(0, 5000), 0]
    return chance.choice([*values * 3, *numbers * 3, None, True, False, "auto", 1])


def check_agreement(fitted: Tree, seen: Sequence[Scenario], count: int) -> None:
    """Compare a tree with its Python on scenarios of the fit with some values changed.

    A tree answers few scenarios that are entirely random.
    """
    module: dict[str, Any] = {}
    exec(fitted.as_python(), module)  # it is what a person would paste
    chance, answers = random.Random(0), set()
    launches = [{name: one.values.get(name) for name in fitted.inputs} for one in seen]
    for _ in range(count):
        values = dict(chance.choice(launches))
        for name in chance.sample(list(values), chance.randint(0, min(4, len(values)))):
            values[name] = draw_value(chance, [launch[name] for launch in launches[:8]])
        ours, theirs = fitted.choose(values), module["choose"](**values)
        assert theirs == (ours and {**ours.params, **ours.options}), values
        answers.add(ours)
    assert answers == {None, *fitted.configs}


def test_every_other_scenario_says_what_to_take_in_those_between() -> None:
    at = [2**power for power in range(8)]

    def median(block: int, args: dict[str, Any]) -> float:
        m, n = math.log2(args["m"]), math.log2(args["n"])
        return 1 + 0.1 * abs(math.log2(block) - 4 - m / 4 - n / 5)

    launches = [{"m": m, "n": n} for m, n in product(at, at)]
    fitted, _ = fit_medians(launches[::2], median)
    for args in launches:
        chosen = fitted.choose(args)
        paid = min(median(block, args) for block in (16, 32, 64, 128) if config(block) == chosen)
        assert paid <= 1.06 * min(median(block, args) for block in (16, 32, 64, 128))


def test_timings_without_a_winner_do_not_count() -> None:
    """Nobody has compared their results: the fastest may be fast because it is wrong."""
    whole = synthetic_matmul.sweep(synthetic_matmul.scenarios()[:9])
    interrupted = synthetic_matmul.sweep(synthetic_matmul.scenarios()[9:20])
    unfinished = (record.model_copy(update={"winner": None}) for record in interrupted.records)
    both = whole.model_copy(update={"records": (*whole.records, *unfinished)})
    with pytest.raises(TooFewRecordsError, match=r"has 9 scenarios .* needs 10: tune 1 more"):
        fit(both)


def test_equal_records_give_an_equal_tree() -> None:
    forwards = synthetic_matmul.sweep(synthetic_matmul.scenarios(SIZES))
    backwards = forwards.model_copy(update={"records": forwards.records[::-1]})
    assert fit(backwards).as_json() == fit(forwards).as_json()


def test_the_regret_that_is_told_is_the_regret_that_strangers_meet(tree: Tree) -> None:
    """On sizes between those of the fit, of which no fold has seen any."""
    assert (tree.regret.scenarios, tree.regret.failed) == (36, 0)
    assert 0 < tree.regret.mean < 0.03
    assert tree.regret.max < 0.1
    unseen = SlowdownTable.of(
        synthetic_matmul.sweep(synthetic_matmul.scenarios((64, 1024)), noise=0).records
    )
    columns = {config: column for column, config in enumerate(unseen.configs)}
    paid = [
        unseen.slowdown[row][columns[chosen]] - 1
        for row, scenario in enumerate(unseen.scenarios)
        if (chosen := tree.choose(scenario.values)) is not None
    ]
    assert len(paid) == len(unseen.scenarios)
    assert tree.single is not None
    assert np.mean(paid) < tree.single.mean / 2


def test_a_leaf_avoids_what_failed_in_any_of_its_scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dejavu_client.heuristics.fit.LEAVES", 2)
    failure = Failure(kind="out_of_resources", reason="no")
    failed = Measurement(config=config(16), failure=failure, at=MOMENT)
    records = [
        tuned_record(
            scenario=Scenario(args={"n": n}),
            measurements=(
                failed if n == 7 else measurement(16, 1.0),
                measurement(32, 1.2),
                measurement(64, 1.04 if n == 7 else 3),
            ),
        )
        for n in range(1, 61)
    ]
    fitted = fit(RecordSet(context=context(), records=tuple(records)))
    assert fitted.choose({"n": 7}) != config(16)


def test_a_kind_of_scenario_that_was_never_fitted_gets_no_answer(tree: Tree) -> None:
    values = synthetic_matmul.scenarios(SIZES)[0].values
    assert tree.choose(values) is not None
    for changed in ({"M": None}, {"M": "many"}, {"M": True}, {"bias": None}, {"a_ptr": "float8"}):
        assert tree.choose({**values, **changed}) is None
    assert tree.choose({name: values[name] for name in values if name != "K"}) is None


def test_what_was_always_the_same_number_must_be_that_number() -> None:
    fitted, _ = fit_medians(({"n": n, "k": 256} for n in range(1, 12)), lambda block, _: block)
    assert fitted.choose({"n": 3, "k": 256}) == config(16)
    assert fitted.choose({"n": 3, "k": 64}) is None


def test_the_exported_python_agrees_on_flags_words_none_and_fractions_too() -> None:
    """One input of each kind, and one that is a number or None."""

    def median(block: int, args: dict[str, Any]) -> float:
        wanted = 128
        if args["window"] is None:
            wanted = 16
        elif args["share"] <= 0.3:
            wanted = 32
        elif args["causal"]:
            wanted = 64
        columns = args["layout"] == "rows" and block == 128
        return 1.0 + abs(block - wanted) / 16 + (3.0 if columns else 0.0)

    names = ("window", "share", "causal", "layout")
    kinds = ((None, 128, 1024), (0.0, 0.25, 0.5, 1.0), (True, False), ("rows", "columns", "blocks"))
    launches = [dict(zip(names, values, strict=True)) for values in product(*kinds)]
    fitted, records = fit_medians(launches, median)
    assert fitted.regret.max < 0.06
    check_agreement(fitted, [record.scenario for record in records], 10_000)


def test_the_exported_python_agrees_where_one_of_two_numbers_is_always_missing() -> None:
    launches = [{"M": n, "N": None} if n % 2 else {"M": None, "N": n} for n in range(1, 17)]
    fitted, records = fit_medians(
        launches, lambda block, args: abs(block - 8 * (args["M"] or args["N"])) + 1
    )
    check_agreement(fitted, [record.scenario for record in records], 1000)


@pytest.mark.parametrize("name", ["n): pass #", "type", "CONFIGS", "__debug__"])
def test_a_name_that_the_exported_python_cannot_have_is_not_exported(name: str) -> None:
    fitted, _ = fit_medians(({name: n} for n in range(1, 12)), lambda block, _: block)
    with pytest.raises(SettingsError, match="cannot be a parameter"):
        fitted.as_python()


def test_a_kernels_name_cannot_reorder_the_exported_python() -> None:
    records = synthetic_matmul.sweep(
        synthetic_matmul.scenarios()[:10], kernel="pkg.\u202ekernels\u009b2J.matmul"
    )
    head = fit(records).as_python().splitlines()[0]
    assert head.startswith("# pkg.\\u202ekernels\\u009b2J.matmul on")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FileStore:
    """Return a store with a kernel tuned well on one GPU, hardly on another; do not write to it."""
    store = FileStore(tmp_path_factory.mktemp("store"))
    for record_set in (
        synthetic_matmul.sweep(synthetic_matmul.scenarios((16, 256, 4096))),
        synthetic_matmul.sweep(synthetic_matmul.scenarios()[:4], device="NVIDIA L4"),
    ):
        store.put(record_set.context, record_set.records)
    return store


def test_the_command_prints_the_regret_and_what_one_config_would_cost(store: FileStore) -> None:
    out = run_cli("heuristics", "matmul", "--device", "H200", "--store", store.root)
    assert out.returncode == 0
    head, tree, scenarios, single = out.stdout.splitlines()
    assert head == "pkg.kernels.matmul on NVIDIA H200, Triton 3.6.0, events-cold"
    assert "over the best on average" in tree
    assert scenarios == "  in 36 scenarios, held out in 36 folds"
    assert "one config for all" in single


def test_the_tree_is_printed_for_programs_and_must_be_one(tmp_path: Path) -> None:
    """Of a kernel's versions, only the one that was tuned last counts."""
    store = FileStore(tmp_path)
    for triton, source, later in (("3.6.0", "a", 0), ("3.6.0", "b", 1), ("3.9.0", "a", 0)):
        record_set = synthetic_matmul.sweep(
            synthetic_matmul.scenarios()[:10], source=source * 32, later=later, triton=triton
        )
        store.put(record_set.context, record_set.records)
    words = ("heuristics", "matmul", "--store", tmp_path, "--as")
    out = run_cli(*words, "python")
    assert (out.returncode, out.stdout, "2 trees: name one" in out.stderr) == (2, "", True)
    printed = json.loads(run_cli(*words, "json", "--triton", "3.6.0").stdout)
    assert printed["context"]["kernel"]["source"] == "b" * 32
    assert "def choose(" in run_cli(*words, "python", "--triton", "3.6.0").stdout


def test_what_cannot_be_done_is_refused_in_a_line(store: FileStore) -> None:
    few = "NVIDIA L4, and a tree needs 10: tune 6 more"
    for words, code, said in (
        (("matmul", "--device", "L4"), 1, few),
        (("nobody",), 1, "has no kernel 'nobody'"),
        (("matmul", "--as", "c"), 2, "choose python or json"),
    ):
        out = run_cli("heuristics", *words, "--store", store.root)
        assert (out.returncode, out.stderr.count("\n"), said in out.stderr) == (code, 1, True), out


def test_without_numpy_the_extra_is_named(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("dejavu_client.heuristics")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numpy", None)
    out = run_cli("heuristics", "matmul", "--store", store.root)
    assert (out.returncode, "pip install 'dejavu-cache[sweep]'" in out.stderr) == (2, True)
