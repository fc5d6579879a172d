"""Requests of a made-up day: how long their prompts and answers are, and in which step they come.

Arrivals are counted in steps of the engine, so that every engine meets the same batches.
"""

from __future__ import annotations

import random
from typing import NamedTuple


class DrawnRequest(NamedTuple):
    """Request that comes in a step, with tokens to read and to write."""

    step: int
    prompt: int
    answer: int


def draw_day(seed: int, steps: int, per_step: float = 0.12) -> list[DrawnRequest]:
    """Return the requests of a day of some steps, with a busy hour in the middle.

    Args:
        seed: of the random numbers.
        steps: of the engine.
        per_step: mean number of requests that come in a step.
    """
    drawn = random.Random(seed)
    requests = []
    for step in range(steps):
        rate = per_step * (2.0 if steps // 3 <= step < steps // 2 else 0.8)
        while drawn.random() < rate:
            prompt = int(min(max(drawn.lognormvariate(6.2, 1.1), 4), 8000))
            answer = int(min(max(drawn.lognormvariate(4.8, 0.8), 2), 1000))
            requests.append(DrawnRequest(step, prompt, answer))
            rate -= 1.0
    return requests
