"""What a function looks at in a launch's arguments is noted, however it looks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dejavu_cache.triton_internals.argument_reads import ReadArguments, noting_reads

WAYS: dict[str, Callable[[Any], object]] = {
    "an item": lambda named: named["n"],
    "get": lambda named: named.get("n"),
    "get of what is not there": lambda named: named.get("n", 1),
    "pop": lambda named: named.pop("n"),
    "items": lambda named: list(named.items()),
    "values": lambda named: list(named.values()),
    "a copy": lambda named: named.copy(),
    "a dictionary": dict,
    "keywords": lambda named: (lambda **rest: rest)(**named),
    "a display": lambda named: {**named},
    "a union": lambda named: named | {},
    "a union to the right": lambda named: {} | named,
    "equality": lambda named: named == {"n": 1},
    "a text": repr,
    "JSON": json.dumps,
    "eval": lambda named: eval("n > 0", named),
    "a format": lambda named: "{n}".format_map(named),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_read_is_noted(way: str) -> None:
    read: set[str] = set()
    named = ReadArguments({"n": 5, "m": 6}, read)
    assert isinstance(named, dict)
    WAYS[way](named)
    assert "n" in read


def test_names_alone_are_no_reads_and_writes_reach_the_launch() -> None:
    read: set[str] = set()
    arguments = {"n": 5}
    named = ReadArguments(arguments, read)
    assert ("n" in named, list(named), len(named)) == (True, ["n"], 1)
    assert read == set()
    named["m"] = 6
    named |= {"k": 7}
    named.update(j=8)
    del named["n"]
    assert arguments == {"m": 6, "k": 7, "j": 8}


def by_name(configs: Any, named: Any, n: int, **rest: Any) -> int:
    return n


def by_rest(configs: Any, named: Any, n: int, **rest: Any) -> Any:
    return rest.get("seed")


def by_locals(configs: Any, named: Any, n: int, **rest: Any) -> Any:
    return locals()["rest"]


@pytest.mark.parametrize(
    ("function", "noted"), [(by_name, {"n"}), (by_rest, {"n", "seed"}), (by_locals, {"n", "seed"})]
)
def test_what_a_function_may_read_of_its_keywords_counts(
    function: Callable[..., Any], noted: set[str]
) -> None:
    read: set[str] = set()
    noting_reads(function, read)([], {}, n=1, seed=2)
    assert read == noted
