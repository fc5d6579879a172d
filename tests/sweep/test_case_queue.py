"""Cases on their way through a sweep."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from dejavu_cache.sweep import runner
from dejavu_cache.sweep.runner import PATIENCE, CaseQueue, TakenCase


def take(queue: CaseQueue, host: int = 0) -> TakenCase:
    case = queue.take(host)
    assert case is not None
    return case


def test_a_host_works_through_its_own_part_then_where_most_are_left() -> None:
    queue = CaseQueue(list("abcdef"), 2, math.inf, None)
    names = [take(queue).name for _ in range(3)]
    assert take(queue, 1).name == "d"
    assert [*names, take(queue).name, take(queue).name] == ["a", "b", "c", "f", "e"]
    assert not queue.has_cases
    assert not queue.is_done


def test_a_case_that_is_put_back_is_its_hosts_next_one() -> None:
    queue = CaseQueue(list("abcd"), 2, math.inf, None)
    queue.put_back(take(queue))
    assert take(queue).name == "a"


def test_what_another_sweep_measures_is_waited_for_after_long_first_phases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: now))
    queue = CaseQueue(["a"], 1, math.inf, lambda: ["a", "b"])
    take(queue)
    now += 2 * PATIENCE
    queue.finish()
    first = take(queue)
    assert first.wait == 0
    queue.postpone(first)
    assert take(queue).name == "b"
    queue.finish()
    again = take(queue)
    assert (again.name, again.wait > 0) == ("a", True)
    queue.postpone(again)
    now += 2 * PATIENCE
    assert queue.take(0) is None
    assert queue.has_cases, "the other sweep has them"
