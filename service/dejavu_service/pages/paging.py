"""Pages of the tables of scenarios."""

from __future__ import annotations

from typing import TypeVar

__all__ = ["count_pages", "take_page"]

_T = TypeVar("_T")

_PAGE_SIZE = 50
"""Scenarios on one page."""


def take_page(rows: list[_T], page: int) -> list[_T]:
    """Return the rows of a page, counted from 1; empty beyond the last page."""
    return rows[(page - 1) * _PAGE_SIZE : page * _PAGE_SIZE]


def count_pages(rows: int) -> int:
    """Return the number of pages that so many rows fill."""
    return -(-rows // _PAGE_SIZE)
