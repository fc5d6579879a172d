"""From a tree to Python that chooses as the tree does."""

from __future__ import annotations

from typing import Any

import pytest
from support.records import context, measurement, tuned_record
from support.tree_agreement import check_agreement

from dejavu_cache.errors import SettingsError
from dejavu_cache.heuristics.fit import fit
from dejavu_cache.heuristics.python_export import as_python
from dejavu_cache.model.decision_tree import Tree
from dejavu_cache.model.record import RecordSet
from dejavu_cache.model.scenario import Scenario


def test_the_exported_python_agrees_on_flags_words_none_and_fractions_too() -> None:
    """One input of each kind, and one that is a number or None."""

    def median(block: int, args: dict[str, Any]) -> float:
        wanted = (
            16
            if args["window"] is None
            else 32
            if args["share"] <= 0.3
            else 64
            if args["causal"]
            else 128
        )
        columns = args["layout"] == "rows" and block == 128
        return 1.0 + abs(block - wanted) / 16 + (3.0 if columns else 0.0)

    seen = [
        {"window": window, "share": share, "causal": causal, "layout": layout}
        for window in (None, 128, 1024)
        for share in (0.0, 0.25, 0.5, 1.0)
        for causal in (True, False)
        for layout in ("rows", "columns", "blocks")
    ]
    records = [
        tuned_record(
            scenario=Scenario(args=args),
            measurements=tuple(
                measurement(block, median(block, args)) for block in (16, 32, 64, 128)
            ),
        )
        for args in seen
    ]
    fitted = fit(RecordSet(context=context(), records=tuple(records)))
    assert fitted.regret.max < 0.06
    check_agreement(fitted, [record.scenario for record in records], 10_000)


@pytest.mark.parametrize("name", ["n): pass #", "type", "CONFIGS", "__debug__"])
def test_a_name_that_the_exported_python_cannot_have_is_not_exported(name: str) -> None:
    with pytest.raises(SettingsError, match="cannot be a parameter"):
        as_python(fit_over_one_input(name))


def fit_over_one_input(name: str) -> Tree:
    records = [
        tuned_record(
            scenario=Scenario(args={name: n}),
            measurements=(measurement(16, n), measurement(32, 16 / n)),
        )
        for n in (1, 2, 3, 5, 6, 7, 8, 9, 10, 11)
    ]
    return fit(RecordSet(context=context(), records=tuple(records)))


def test_a_kernels_name_cannot_reorder_the_exported_python(tree: Tree) -> None:
    text = tree.text.replace("pkg.kernels.matmul", "pkg.\u202ekernels\u009b2J.matmul")
    assert text != tree.text
    head = as_python(Tree.parse(text, "the tree")).splitlines()[0]
    assert head.startswith("# pkg.\\u202ekernels\\u009b2J.matmul on")


def test_the_exported_python_agrees_where_one_of_two_numbers_is_always_missing() -> None:
    records = [
        tuned_record(
            scenario=Scenario(args={"M": n, "N": None} if n % 2 else {"M": None, "N": n}),
            measurements=(measurement(16, n), measurement(32, 16 / n)),
        )
        for n in range(1, 17)
    ]
    fitted = fit(RecordSet(context=context(), records=tuple(records)))
    check_agreement(fitted, [record.scenario for record in records], 1000)
