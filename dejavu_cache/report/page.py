"""One static HTML page about what was tuned: coverage, winners, what choices cost, how environments differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..model.decision_tree import Tree
from ..model.record import RecordSet
from ..model.scenario import Context, now
from .comparison import comparisons
from .section import Section
from .selection_rules import times

__all__ = ["render"]


def render(
    wholes: Iterable[RecordSet], trees: Iterable[Tree], default: Mapping[str, str], where: str
) -> str:
    """The page.

    Args:
        wholes: what is reported on, one section each.
        trees: those of them that fit a section are judged in it.
        default: values, as text, that tell the default config from the others; else there is no line for it.
        where: the name of the store, for the reader.
    """
    known = list(trees)
    sections = [
        Section(whole, _own_tree(whole.context, known), default)
        for whole in wholes
        if whole.records
    ]
    sections.sort(key=lambda each: (each.context.kernel.name, each.label))
    pages = Environment(
        loader=PackageLoader("dejavu_cache.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    pages.filters["times"] = times
    return pages.get_template("report.html").render(
        sections=sections, comparisons=list(comparisons(sections)), where=where, at=now()
    )


def _own_tree(context: Context, trees: Sequence[Tree]) -> Tree | None:
    """The tree of a context's kernel and GPU: its own if there is one, else the last fitted."""
    fitting = [
        tree
        for tree in trees
        if tree.context.kernel.name == context.kernel.name
        and tree.context.environment.device == context.environment.device
    ]
    return max(fitting, key=lambda tree: (tree.context == context, tree.at), default=None)
