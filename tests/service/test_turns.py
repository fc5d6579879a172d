"""The turns for which requests with bodies wait."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from dejavu_service.middleware import json_body, write_queue
from dejavu_service.middleware.json_body import BodyGate
from dejavu_service.problems import ProblemError

LARGE = 10**6


def test_what_a_large_body_waited_for_others_it_does_not_wait_for_its_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients and proxies give up on an answer that comes after all waits in a row."""
    for module in (json_body, write_queue):
        monkeypatch.setattr(module, "LONGEST_WAIT", 60.0)

    async def wait_in_turn() -> float:
        gate = BodyGate(10 * LARGE, 8)

        async def hold() -> None:
            async with gate.turn_for("a job", LARGE):
                await asyncio.sleep(0.2)

        holding = [asyncio.create_task(hold()) for _ in range(2)]
        await asyncio.sleep(0)
        async with gate.turn_for("a job", LARGE) as seconds:
            await asyncio.gather(*holding)
            return seconds

    assert 0 < asyncio.run(wait_in_turn()) <= 60.0 - 0.15


def test_who_has_waited_long_enough_gets_a_free_turn_and_waits_for_no_other() -> None:
    async def take_turns() -> None:
        gate = BodyGate(10 * LARGE, 8)
        async with gate.queue.turn("a", 0.0), gate.queue.turn("a", 0.0):
            with pytest.raises(ProblemError) as refused:
                async with gate.queue.turn("a", 0.0):
                    raise AssertionError("a third one got a turn")
            assert refused.value.headers == {"Retry-After": "2"}

    asyncio.run(take_turns())


def test_one_principal_leaves_room_for_the_large_bodies_of_others() -> None:
    async def take_turns() -> None:
        gate = BodyGate(10 * LARGE, 8)
        async with gate.turn_for("greedy", LARGE), gate.turn_for("greedy", LARGE):
            third = asyncio.create_task(gate.turn_for("greedy", LARGE).__aenter__())
            with anyio.fail_after(5):
                async with gate.turn_for("modest", LARGE):
                    assert not third.done()
            third.cancel()

    asyncio.run(take_turns())
