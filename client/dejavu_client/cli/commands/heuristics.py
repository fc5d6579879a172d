"""`heuristics fit` and `show`: decision trees fitted to records."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dejavu_cache.errors import SettingsError, TooFewRecordsError
from dejavu_cache.model.decision_tree import Tree, leaves
from dejavu_cache.model.record import RecordSet
from dejavu_cache.stores import FoundTree
from dejavu_cache.stores.file import read_text
from dejavu_cache.system.notices import counted

from ..chosen_store import open_existing_store
from ..errors import NoSuchStoreError, NothingFoundError
from ..options import (
    DeviceOption,
    JsonOption,
    KernelArgument,
    StoreOption,
    TritonOption,
)
from ..output import fail, say, show_json, show_progress, show_table
from ..queries import context_matches, describe_filters, matching_kernels, newest_record_sets

__all__ = ["register"]

COLUMNS = (
    "kernel",
    "device",
    "triton",
    "scenarios",
    "configs",
    "leaves",
    "mean_regret",
    "worst",
    "last_tuned",
)

heuristics = typer.Typer(
    help="Decision trees: what stands in where nothing near was tuned.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    heuristics.command()(fit)
    heuristics.command()(show)
    app.add_typer(heuristics, name="heuristics")


def fit(
    kernel: KernelArgument,
    store: StoreOption = "",
    bound: Annotated[
        float,
        typer.Option(
            metavar="PERCENT",
            min=0,
            max=1000,
            help="How far from the best the set of configs may be in any scenario.",
        ),
    ] = 5.0,
    device: DeviceOption = "",
    triton: TritonOption = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what a tree would cost, and write nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Fit decision trees to a kernel's records.

    There is one for each GPU and version of Triton. Exits with 1 if there are too few records.
    """
    from dejavu_cache.heuristics.fit import fit as fit_tree

    show_progress()
    rows: list[dict[str, Any]] = []
    refusals = []
    with open_existing_store(store, write=not dry_run) as source:
        for record_set in newest_record_sets(source, kernel, device, triton):
            try:
                tree = fit_tree(record_set, bound=bound / 100)
            except TooFewRecordsError as error:
                refusals.append(str(error))
                continue
            url = None if dry_run else source.put_tree(tree)
            rows.append({**_summary(tree), "one_config": _best_single(record_set), "file": url})
        if not rows and not refusals:
            refusals.append(f"{source.url} has no measurements of {kernel}")
    if as_json:
        show_json(rows)
    else:
        for row in rows:
            _say_fitted(row)
    for line in refusals:
        fail(line)
    if refusals:
        raise typer.Exit(1)


def show(
    kernel: Annotated[
        str,
        typer.Argument(
            metavar="KERNEL", help="The kernel, or the end of its name, or a tree's file; else all."
        ),
    ] = "",
    to: Annotated[
        str, typer.Option("--as", metavar="FORMAT", help="Print one tree alone: python or json.")
    ] = "",
    store: StoreOption = "",
    device: DeviceOption = "",
    triton: TritonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show a kernel's decision trees, or list all trees.

    --as prints one tree as Python to paste, or as the JSON that the library reads.
    """
    if to not in ("", "python", "json"):
        raise SettingsError(f"--as {to!r}: choose python or json")
    trees = _find_trees(kernel, store, device, triton)
    if to:
        _print_tree(trees, kernel, to)
    elif as_json:
        show_json(
            [
                {**_summary(tree), "file": url, "tree": tree.model_dump(mode="json")}
                for tree, url in trees
            ]
        )
    elif kernel:
        for tree, url in trees:
            _say_tree(tree, url)
    else:
        cells = [_cells(tree) for tree, _ in trees]
        show_table(COLUMNS, cells, optional=["last_tuned", "leaves", "configs"])


def _print_tree(trees: list[FoundTree], kernel: str, to: str) -> None:
    """Print the only tree that was found, for a program to read."""
    from dejavu_cache.heuristics.python_export import as_python

    if len(trees) != 1:
        rows = [_summary(tree) for tree, _ in trees]
        candidates = "; ".join(f"{row['device']}, Triton {row['triton']}" for row in rows)
        raise SettingsError(
            f"{len(trees)} trees fit {kernel!r} ({candidates}): "
            "name one by its kernel, --device, --triton or its file"
        )
    tree = trees[0].tree
    sys.stdout.write(as_python(tree) if to == "python" else tree.text)


def _find_trees(kernel: str, store: str, device: str, triton: str) -> list[FoundTree]:
    """Return the tree of a file, or the trees of a store that pass the filters."""
    path = Path(kernel)
    if kernel.endswith(".json"):
        if not path.is_file():
            raise NoSuchStoreError(f"there is no file {kernel}")
        target = path.resolve()  # a link that the user names is followed
        tree = Tree.parse(read_text(target, target.parent), kernel)
        return [FoundTree(tree, path.absolute().as_uri())]
    with open_existing_store(store) as source:
        trees = list(source.trees())
        names = [stored.tree.context.kernel.name for stored in trees]
        if not trees:
            raise NothingFoundError(
                f"{source.url} has no decision trees; `dejavu-cache heuristics fit` makes one"
            )
        chosen = matching_kernels(names, kernel, source.url)
    matches = [
        stored
        for stored in trees
        if stored.tree.context.kernel.name in chosen
        and context_matches(stored.tree.context, "", device, triton)
    ]
    if not matches:
        wanted = describe_filters(device, triton)
        raise NothingFoundError(f"{source.url} has no decision tree for {wanted}")
    return matches


def _best_single(record_set: RecordSet) -> dict[str, Any] | None:
    """Return the single config with the lowest mean slowdown, which a tree must beat.

    None if no config runs in all scenarios.
    """
    from dejavu_cache.heuristics.fit import SlowdownTable

    costs = SlowdownTable.of(record_set.records)
    means = costs.slowdown.mean(axis=0)
    best = int(means.argmin())
    if means[best] == float("inf"):
        return None
    column = costs.slowdown[:, best] - 1
    return {
        "config": str(costs.configs[best]),
        "mean": float(column.mean()),
        "max": float(column.max()),
    }


def _summary(tree: Tree) -> dict[str, Any]:
    environment = tree.context.environment
    return {
        "kernel": tree.context.kernel.name,
        "device": environment.device.name,
        "triton": environment.triton,
        "method": tree.context.problem.method,
        "bound": tree.bound,
        "configs": len(tree.configs),
        "leaves": sum(1 for _ in leaves(tree.root)),
        "regret": tree.regret.model_dump(),
        "last_tuned": tree.at.isoformat(timespec="seconds"),
    }


def _say_fitted(row: dict[str, Any]) -> None:
    regret, single = row["regret"], row["one_config"]
    say(f"{row['kernel']} on {row['device']}, Triton {row['triton']}, {row['method']}")
    configs, bound = counted(row["configs"], "config"), f"{row['bound']:.1%}"
    say(
        f"  {configs}: one within {bound} of the best of all in each of "
        f"{counted(regret['scenarios'], 'scenario')}"
    )
    size = counted(row["leaves"], "leaf", "leaves")
    folds = counted(regret["folds"], "fold")
    say(f"  tree with {size}: {_regret_text(regret)}, held out in {folds}")
    if single:
        say(f"  one config for all: {_regret_text(single)} ({single['config']})")
    if regret["failed"]:
        say(
            f"  in {counted(regret['failed'], 'held-out scenario')} the chosen config could not run"
        )
    say(f"  {row['file'] or 'not written'}")


def _regret_text(regret: dict[str, Any]) -> str:
    return f"{regret['mean']:.1%} over the best on average, {regret['max']:.1%} at worst"


def _cells(tree: Tree) -> list[str]:
    row, regret = _summary(tree), tree.regret
    counts = [regret.scenarios, row["configs"], row["leaves"]]
    return [
        *(row[name] for name in ("kernel", "device", "triton")),
        *map(str, counts),
        f"{regret.mean:.1%}",
        f"{regret.max:.1%}",
        row["last_tuned"],
    ]


def _say_tree(tree: Tree, url: str) -> None:
    from dejavu_cache.heuristics.python_export import as_python

    _say_fitted({**_summary(tree), "one_config": None, "file": url})
    for line in as_python(tree).splitlines():
        say(f"  {line}")
