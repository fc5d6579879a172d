"""`heuristics fit`, `show` and `export`: decision trees out of records."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from dejavu_cache.errors import SettingsError, TooFewRecordsError
from dejavu_cache.model.decision_tree import AtMost, Equals, Node, Tree, leaves
from dejavu_cache.model.record import RecordSet
from dejavu_cache.model.scenario import Context, canonical_json
from dejavu_cache.stores import FoundTree, Store, open_store

from ..output import JsonOption, StoreOption, open_chosen_store, say, show_json, show_table

__all__ = ["DeviceOption", "TritonOption", "newest", "register"]

KernelArgument = Annotated[
    str, typer.Argument(help="The kernel's module and qualified name, or the end of it.")
]
DeviceOption = Annotated[
    str, typer.Option("--device", metavar="TEXT", help="Only GPUs whose name contains this.")
]
TritonOption = Annotated[
    str, typer.Option("--triton", metavar="VERSION", help="Only this version of Triton.")
]

heuristics = typer.Typer(
    help="Decision trees: what stands in where nothing near was tuned.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    heuristics.command()(fit)
    heuristics.command()(show)
    heuristics.command()(export)
    app.add_typer(heuristics, name="heuristics")


def fit(
    kernel: KernelArgument,
    store: StoreOption = "",
    into: Annotated[
        str, typer.Option("--into", metavar="URL", help="Where trees go; else beside the records.")
    ] = "",
    bound: Annotated[
        float,
        typer.Option(
            min=0,
            help="How far from the best the set of configs may be in any scenario, in percent.",
        ),
    ] = 5.0,
    configs: Annotated[int, typer.Option(min=1, max=256, help="How many configs at most.")] = 12,
    max_leaves: Annotated[
        int, typer.Option("--leaves", min=2, max=1024, help="How many leaves at most.")
    ] = 32,
    device: DeviceOption = "",
    triton: TritonOption = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what a tree would cost, and write nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Fit a decision tree to a kernel's records, one for each GPU and Triton version; exits 1 if there are too few."""
    from dejavu_cache.heuristics.fit import fit as fitted

    rows: list[dict[str, Any]] = []
    refused = []
    with open_chosen_store(store) as held:
        for whole in newest(held, kernel, device, triton):
            try:
                with _progress(whole) as progress:
                    tree = fitted(
                        whole,
                        bound=bound / 100,
                        limit=configs,
                        leaves=max_leaves,
                        progress=progress,
                    )
            except TooFewRecordsError as error:
                refused.append(str(error))
                continue
            url = None if dry_run else (open_store(into) if into else held).put_tree(tree)
            rows.append({**_summary(tree), "one config": _one_config(whole), "file": url})
        if not rows and not refused:
            refused.append(
                f"{held.url} has no records of {kernel}{' that fit' if device or triton else ''}"
            )
    if as_json:
        show_json(rows)
    else:
        for row in rows:
            _say_fitted(row)
    for line in refused:
        sys.stderr.write(f"error: {line}\n")
    if refused:
        raise typer.Exit(1)


def show(
    kernel: Annotated[
        str, typer.Argument(help="The kernel, or the end of its name, or a tree's file.")
    ] = "",
    store: StoreOption = "",
    device: DeviceOption = "",
    triton: TritonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show a kernel's decision trees, or list all trees."""
    found = _found(kernel, store, device, triton)
    if as_json:
        show_json(
            [
                {**_summary(tree), "file": url, "tree": tree.model_dump(mode="json")}
                for tree, url in found
            ]
        )
    elif kernel:
        for tree, url in found:
            _say_tree(tree, url)
    else:
        columns = [
            "kernel",
            "device",
            "triton",
            "scenarios",
            "configs",
            "leaves",
            "mean regret",
            "worst",
            "last tuned",
        ]
        show_table(columns, [_cells(tree) for tree, _ in found])
    if not found:
        if not as_json:
            say(
                f"no decision tree{f' of {kernel}' if kernel else ''} is here; `dejavu-cache heuristics fit` makes one"
            )
        raise typer.Exit(1)


def export(
    kernel: Annotated[
        str, typer.Argument(help="The kernel, or the end of its name, or a tree's file.")
    ],
    to: Annotated[str, typer.Option("--as", metavar="FORMAT", help="python or json.")] = "python",
    store: StoreOption = "",
    device: DeviceOption = "",
    triton: TritonOption = "",
) -> None:
    """Print one decision tree as Python to paste, or as the JSON that the library reads."""
    from dejavu_cache.heuristics.python_export import as_python

    if to not in ("python", "json"):
        raise SettingsError(f"--as {to!r}: choose python or json")
    found = _found(kernel, store, device, triton)
    if len(found) != 1:
        rows = [_summary(tree) for tree, _ in found]
        which = "; ".join(f"{row['device']}, Triton {row['triton']}" for row in rows)
        raise SettingsError(
            f"{len(found)} trees fit {kernel!r}{f' ({which})' if which else ''}: "
            "name one by --device, --triton or its file"
        )
    tree = found[0].tree
    sys.stdout.write(as_python(tree) if to == "python" else tree.text)


def newest(store: Store, kernel: str, device: str, triton: str) -> Iterator[RecordSet]:
    """The records of each environment and problem that fit; of several versions of the code, the last tuned one's.

    What was noted of launches alone, where nothing was measured, is left out.
    """
    newest: dict[tuple[str, ...], RecordSet] = {}
    for context in store.contexts():
        if not _fits(context, kernel, device, triton):
            continue
        whole = RecordSet(context=context, records=tuple(store.records(context)))
        if not any(record.measurements for record in whole.records):
            continue
        place = (
            context.kernel.name,
            canonical_json(context.environment),
            canonical_json(context.problem),
        )
        if place not in newest or _last(whole) > _last(newest[place]):
            newest[place] = whole
    yield from newest.values()


def _last(whole: RecordSet) -> float:
    return max(
        (each.at.timestamp() for record in whole.records for each in record.measurements),
        default=0.0,
    )


def _fits(context: Context, kernel: str, device: str, triton: str) -> bool:
    return (
        (not kernel or context.kernel.name == kernel or context.kernel.name.endswith(f".{kernel}"))
        and device.lower() in context.environment.device.name.lower()
        and triton in ("", context.environment.triton)
    )


def _found(kernel: str, store: str, device: str, triton: str) -> list[FoundTree]:
    """The trees that a file holds, or that a store has."""
    path = Path(kernel)
    if kernel.endswith(".json") and path.is_file():
        return [
            FoundTree(
                Tree.parse(path.read_text(encoding="utf-8"), kernel), path.absolute().as_uri()
            )
        ]
    with open_chosen_store(store) as held:
        return [each for each in held.trees() if _fits(each.tree.context, kernel, device, triton)]


@contextmanager
def _progress(whole: RecordSet) -> Iterator[Callable[[float], None]]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(
            f"{whole.context.kernel.name} on {whole.context.environment.device.name}", total=1.0
        )
        yield lambda share: bar.update(task, completed=share)


def _one_config(whole: RecordSet) -> dict[str, Any] | None:
    """What the best single config costs everywhere: the yardstick of a tree. None if no config runs everywhere."""
    from dejavu_cache.heuristics.slowdowns import SlowdownTable

    costs = SlowdownTable.of(whole.records)
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
        "last tuned": tree.at.isoformat(timespec="seconds"),
    }


def _say_fitted(row: dict[str, Any]) -> None:
    regret, one = row["regret"], row["one config"]
    say(f"{row['kernel']} on {row['device']}, Triton {row['triton']}, {row['method']}")
    configs, bound = _counted(row["configs"], "config", "configs"), f"{row['bound']:.1%}"
    say(
        f"  {configs}: one within {bound} of the best of all in each of {regret['scenarios']} scenarios"
    )
    size = _counted(row["leaves"], "leaf", "leaves")
    say(f"  tree with {size}: {_told(regret)}, held out in {regret['folds']} folds")
    if one:
        say(f"  one config for all: {_told(one)} ({one['config']})")
    if regret["failed"]:
        say(f"  in {regret['failed']} held-out scenarios the chosen config could not run")
    say(f"  {row['file'] or 'not written'}")


def _told(regret: dict[str, Any]) -> str:
    return f"{regret['mean']:.1%} over the best on average, {regret['max']:.1%} at worst"


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _cells(tree: Tree) -> list[str]:
    row, regret = _summary(tree), tree.regret
    counts = [regret.scenarios, row["configs"], row["leaves"]]
    return [
        *(row[name] for name in ("kernel", "device", "triton")),
        *map(str, counts),
        f"{regret.mean:.1%}",
        f"{regret.max:.1%}",
        row["last tuned"],
    ]


def _say_tree(tree: Tree, url: str) -> None:
    _say_fitted({**_summary(tree), "one config": None, "file": url})
    for line in _drawn(tree.root, tree):
        say(f"  {line}")


def _drawn(node: Node, tree: Tree, margin: str = "") -> Iterator[str]:
    """A node and all below it, a line each."""
    if not isinstance(node, (AtMost, Equals)):
        yield f"{margin}{tree.configs[node.ranking[0]]}"
        return
    question = (
        f"{' * '.join(node.inputs)} <= {node.at_most}" if isinstance(node, AtMost) else _is(node)
    )
    yield f"{margin}if {question}:"
    yield from _drawn(node.yes, tree, margin + "  ")
    yield f"{margin}else:"
    yield from _drawn(node.no, tree, margin + "  ")


def _is(node: Equals) -> str:
    return f"{node.input} is {node.equals}"
