"""Render a static HTML page: coverage, winners, costs of selection rules, and environments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..model.decision_tree import Tree
from ..model.record import RecordSet
from ..model.scenario import Context, now
from ..system.printable_text import printable_output
from .comparison import comparisons
from .section import Section
from .selection_rules import times

__all__ = ["render"]


def render(
    record_sets: Iterable[RecordSet], trees: Iterable[Tree], default: Mapping[str, str], where: str
) -> str:
    """Return the page.

    Args:
        record_sets: the records, one context each; each one with records gets a section.
        trees: decision trees; a section evaluates the one that fits it.
        default: values, as text, that only the default config has; if empty, the page does not
            compare the default.
        where: name of the store, shown on the page.
    """
    all_trees = list(trees)
    sections = [
        Section(record_set, _fitting_tree(record_set.context, all_trees), default)
        for record_set in record_sets
        if record_set.records
    ]
    sections.sort(key=lambda section: (section.context.kernel.name, section.label))
    pages = Environment(
        loader=PackageLoader("dejavu_cache.report"),
        autoescape=True,
        finalize=printable_output,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    pages.filters["times"] = times
    return pages.get_template("report.html").render(
        sections=sections, comparisons=list(comparisons(sections)), where=where, at=now()
    )


def _fitting_tree(context: Context, trees: Sequence[Tree]) -> Tree | None:
    """Return the tree of a context, or else the last one fitted for its kernel and GPU."""
    fitting = [
        tree
        for tree in trees
        if tree.context.kernel.name == context.kernel.name
        and tree.context.environment.device == context.environment.device
    ]
    return max(fitting, key=lambda tree: (tree.context == context, tree.at), default=None)
