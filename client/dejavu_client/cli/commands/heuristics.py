"""`heuristics`: what decision trees, fitted to records, choose for other scenarios."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dejavu_cache.errors import SettingsError, TooFewRecordsError
from dejavu_cache.system.notices import counted

from ..application import app
from ..chosen_store import open_existing_store
from ..options import DeviceOption, KernelArgument, StoreOption, TritonOption
from ..output import fail, say, show_progress
from ..queries import newest_record_sets

if TYPE_CHECKING:
    from dejavu_client.heuristics.decision_tree import Regret, Single, Tree


@app.command()
def heuristics(
    kernel: KernelArgument,
    to: Annotated[
        str, typer.Option("--as", metavar="FORMAT", help="Print the tree: as python or json.")
    ] = "",
    store: StoreOption = "",
    device: DeviceOption = "",
    triton: TritonOption = "",
) -> None:
    """Fit decision trees to a kernel's records, to use them elsewhere.

    There is one for each GPU and version of Triton. Without --as, says what each costs. Exits with
    1 if there are too few records.
    """
    from dejavu_client.heuristics.fit import fit

    if to not in ("", "python", "json"):
        raise SettingsError(f"--as {to!r}: choose python or json")
    show_progress()
    trees: list[Tree] = []
    refusals: list[str] = []
    with open_existing_store(store) as source:
        for record_set in newest_record_sets(source, kernel, device, triton):
            try:
                trees.append(fit(record_set))
            except TooFewRecordsError as error:
                refusals.append(str(error))
    if to and len(trees) > 1:
        places = "; ".join(map(_place, trees))
        raise SettingsError(
            f"{kernel} has {len(trees)} trees: name one by its kernel, --device or "
            f"--triton ({places})"
        )
    for tree in trees:
        if to:
            sys.stdout.write(tree.as_python() if to == "python" else tree.as_json())
        else:
            _say_summary(tree)
    for line in refusals:
        fail(line)
    if refusals:
        raise typer.Exit(1)


def _place(tree: Tree) -> str:
    environment = tree.context.environment
    return f"{tree.context.kernel.name} on {environment.device.name}, Triton {environment.triton}"


def _say_summary(tree: Tree) -> None:
    regret = tree.regret
    say(f"{_place(tree)}, {tree.context.problem.method}")
    size = f"{counted(len(tree.configs), 'config')} in {counted(tree.leaves, 'leaf', 'leaves')}"
    say(f"  tree with {size}: {_costs(regret)}")
    scenarios, folds = counted(regret.scenarios, "scenario"), counted(regret.folds, "fold")
    say(f"  in {scenarios}, held out in {folds}")
    if regret.failed:
        say(f"  in {regret.failed} of them the chosen config failed or was not timed")
    if tree.single:
        say(f"  one config for all: {_costs(tree.single)} ({tree.single.config})")


def _costs(regret: Regret | Single) -> str:
    return f"{regret.mean:.1%} over the best on average, {regret.max:.1%} at worst"
