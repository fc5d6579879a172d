"""Which scenarios an engine's steps fall into, and how many of them have no shipped record.

    python benchmarks/engine_day.py                    # needs no GPU
    python benchmarks/engine_day.py --seed 2 --most 1  # exit code 1 if more than 1% of steps miss
    python benchmarks/engine_day.py --uncovered        # without the kernels that need no records

Simulates a scheduler with continuous batching and chunked prefill, as vLLM's: requests arrive at
random, with lognormal lengths as in ShareGPT; where the model takes longer contexts, some requests
bring documents. A step runs one token of each decoding request, and fills the rest of its token
budget with prompts. With `graphs`, steps that only decode replay a graph, which was captured with a
padded number of sequences and the model's length as the longest context.

`scenario_of` is the only part that knows how a batch becomes a launch. Prints a table and writes
`benchmarks/results/engine-day.json`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from dejavu_cache.attention import api
from dejavu_cache.attention.batch import Batch
from dejavu_cache.attention.kernels import few_sequences, hopper, qblock, segmented
from dejavu_cache.attention.sweep_suite import PRESETS, Model
from dejavu_cache.model.buckets import Exact
from dejavu_cache.model.scenario import Context
from dejavu_cache.stores import FileStore

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
RECORDS = ROOT / "dejavu_cache" / "attention" / "records"

DEVICE = "NVIDIA H200"
MULTIPROCESSORS = 132
MODEL = "llama3-8b"
PAGE = 16

BUDGETS = (2048, 8192)
MODEL_LENGTHS = (8192, 32768, 131072)
LOADS = (1.0, 5.0, 20.0)
"""Requests per second."""

MOST_SEQUENCES = 256
CACHE_TOKENS = 700_000
"""Tokens that fit into the cache beside the weights of an 8B model on an H200."""

CAPTURED = (1, 2, 4, *range(8, MOST_SEQUENCES + 1, 8))
"""Numbers of sequences for which an engine captures graphs of decoding."""

COMPOSITION = ("num_seqs", "avg_query", "max_context", "decode_share")
"""Key arguments that depend on the batch."""

STEP, PER_TOKEN, PER_KEY = 4e-3, 32e-6, 33e-9
"""Seconds that a step of an 8B model takes on an H200: its weights, each token, each key read."""

PROMPT, OUTPUT, DOCUMENT = (math.log(140), 1.1), (math.log(180), 0.9), 0.7
DOCUMENTS = {8192: (0.0, 0), 32768: (0.1, 8000), 131072: (0.1, 24000)}
"""Share of requests with a document, and its median length in tokens, by the model's length."""


@dataclass
class Sequence:
    """One request: its prompt's and output's lengths, and the tokens computed so far."""

    arrival: float
    prompt: int
    output: int
    computed: int = 0

    @property
    def is_decoding(self) -> bool:
        """Return whether the prompt is computed."""
        return self.computed >= self.prompt


class Step(NamedTuple):
    """A batch: each sequence's new tokens, its total tokens, and the longest context it claims."""

    new: tuple[int, ...]
    totals: tuple[int, ...]
    longest: int


def arrivals(rng: random.Random, load: float, model_length: int) -> Iterator[Sequence]:
    """Yield requests at a mean rate, without end."""
    moment, (share, median) = 0.0, DOCUMENTS[model_length]
    while True:
        moment += rng.expovariate(load)
        prompt = rng.lognormvariate(*PROMPT)
        if rng.random() < share:
            prompt += rng.lognormvariate(math.log(median), DOCUMENT)
        output = max(1, min(int(rng.lognormvariate(*OUTPUT)), model_length // 2))
        yield Sequence(moment, max(1, min(int(prompt), model_length - output)), output)


def simulate(seed: int, budget: int, model_length: int, load: float, steps: int) -> Iterator[Step]:
    """Yield the batches of a scheduler's steps."""
    requests = arrivals(random.Random(seed), load, model_length)
    upcoming, waiting, running = next(requests), deque[Sequence](), list[Sequence]()
    moment = 0.0
    for _ in range(steps):
        if not (running or waiting):
            moment = max(moment, upcoming.arrival)
        while upcoming.arrival <= moment:
            waiting.append(upcoming)
            upcoming = next(requests)
        reserved = sum(request.prompt + request.output for request in running)
        while (
            waiting
            and len(running) < MOST_SEQUENCES
            and reserved + waiting[0].prompt + waiting[0].output <= CACHE_TOKENS
        ):
            reserved += waiting[0].prompt + waiting[0].output
            running.append(waiting.popleft())
        scheduled = schedule(running, budget)
        for request, new in scheduled:
            request.computed += new
        totals = tuple(request.computed for request, _ in scheduled)
        step = Step(tuple(new for _, new in scheduled), totals, max(totals))
        moment += STEP + PER_TOKEN * sum(step.new) + PER_KEY * sum(totals)
        running = [r for r in running if r.computed < r.prompt + r.output]
        yield step


def schedule(running: Iterable[Sequence], budget: int) -> list[tuple[Sequence, int]]:
    """Return the requests of a step with their new tokens: decodes first, then prompts."""
    scheduled = []
    for request in sorted(running, key=lambda request: not request.is_decoding):
        new = 1 if request.is_decoding else min(request.prompt - request.computed, budget)
        if new > budget or not budget:
            break
        budget -= new
        scheduled.append((request, new))
    return scheduled


def graph_of(step: Step, model_length: int) -> Step:
    """Return the batch of the graph that is replayed for a step, or the step if it has none."""
    if max(step.new) > 1:
        return step
    size = next(size for size in CAPTURED if size >= len(step.new))
    padding = (0,) * (size - len(step.new))
    return Step((1,) * size, (*step.totals, *padding), model_length)


def scenario_of(
    step: Step, model: Model, page: int, covered: bool = True
) -> tuple[str, Mapping[str, Any]]:
    """Return the kernel that `paged_attention` launches for a batch, and its key arguments.

    Args:
        step: the batch.
        model: shape of the model.
        page: tokens in a block of the cache.
        covered: whether the Hopper kernel covers the model's features; it does not cover ALiBi.
    """
    with torch.device("meta"):
        q = torch.empty(sum(step.new), model.query_heads, model.head_size, dtype=torch.bfloat16)
        cache_ = torch.empty(1, page, model.kv_heads, model.head_size, dtype=torch.bfloat16)
        table = torch.empty(len(step.new), 1, dtype=torch.int32)
        batch = Batch(
            q, cache_, cache_, q, table[:, 0], table[:, 0], table, max(step.new), step.longest,
            1.0, model.window, 0.0, None, None, None, None,
        )  # fmt: skip
    composition = dict(zip(COMPOSITION, batch.composition, strict=True))
    return KERNELS[_implementation_of(batch, covered)], {**composition, **batch.shape}


KERNELS = {
    "qblock": f"{qblock.__name__}.qblock_kernel",
    "segmented": f"{segmented.__name__}.segment_kernel",
    "hopper": f"{hopper.__name__}_kernel.hopper_kernel",
    "few_sequences": few_sequences.__name__,
}

ONE_CONFIG = (KERNELS["hopper"], KERNELS["few_sequences"])
"""Kernels that have one config for each shape, and so nothing to miss."""


def _implementation_of(batch: Batch, covered: bool) -> str:
    """Return the implementation that `auto` chooses on a Hopper GPU."""
    with ExitStack() as patches:
        for module in (api, few_sequences):
            patches.enter_context(patch.object(module, "num_sms", lambda device: MULTIPROCESSORS))
        patches.enter_context(patch.object(hopper, "suits", lambda batch: covered))
        return api.choose(batch)


@cache
def shipped_records() -> dict[str, tuple[Context, set[str]]]:
    """Return the shipped context of each kernel, and the key values of its records as text."""
    store = FileStore(RECORDS)
    return {
        context.kernel.name: (
            context,
            {_text(record.scenario.args) for record in store.records(context)},
        )
        for context in store.contexts()
        if context.environment.device.name == DEVICE
    }


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps(dict(sorted(values.items())))


def scenario_text(kernel: str, values: Mapping[str, Any]) -> str | None:
    """Return the scenario of a launch as text, or None if the kernel has no records at all."""
    if kernel not in shipped_records():
        return None
    problem = shipped_records()[kernel][0].problem
    return _text({name: problem.buckets.get(name, Exact())(values[name]) for name in problem.keys})


@dataclass
class Day:
    """Counts of one simulation; work is the number of keys that its steps read."""

    budget: int
    model_length: int
    load: float
    graphs: bool
    covered: bool = True
    steps: int = 0
    missed_steps: int = 0
    work: int = 0
    missed_work: int = 0
    scenarios: set[tuple[str, str | None]] = field(default_factory=set)
    missed: set[tuple[str, str | None]] = field(default_factory=set)

    def count(self, step: Step, model: Model) -> None:
        """Count a step."""
        kernel, values = scenario_of(step, model, PAGE, self.covered)
        scenario = scenario_text(kernel, values)
        is_missed = kernel not in ONE_CONFIG and (
            scenario is None or scenario not in shipped_records()[kernel][1]
        )
        self.scenarios.add((kernel, scenario))
        self.steps += 1
        self.work += sum(step.totals)
        if is_missed:
            self.missed.add((kernel, scenario))
            self.missed_steps += 1
            self.missed_work += sum(step.totals)

    @property
    def row(self) -> dict[str, Any]:
        """Return the counts as values for JSON, with shares in percent."""
        row = asdict(self)
        row.update(scenarios=len(self.scenarios), missed=len(self.missed))
        row["missed_steps_percent"] = round(100 * self.missed_steps / self.steps, 2)
        row["missed_work_percent"] = round(100 * self.missed_work / self.work, 2)
        return row


def main() -> int:
    """Simulate all loads; return 1 if more steps miss than allowed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000, help="steps of each simulation")
    parser.add_argument("--uncovered", action="store_true", help="as if the model had ALiBi")
    parser.add_argument("--most", type=float, help="percentage of steps that may miss")
    arguments = parser.parse_args()
    model, days = PRESETS[MODEL], []
    for budget, length, load in product(BUDGETS, MODEL_LENGTHS, LOADS):
        steps = list(simulate(arguments.seed, budget, length, load, arguments.steps))
        for graphs in (False, True):
            day = Day(budget, length, load, graphs, not arguments.uncovered)
            for step in steps:
                day.count(graph_of(step, length) if graphs else step, model)
            days.append(day)
    steps, work = sum(day.steps for day in days), sum(day.work for day in days)
    total = {
        "scenarios": len(set().union(*(day.scenarios for day in days))),
        "missed": len(set().union(*(day.missed for day in days))),
        "missed_steps_percent": round(100 * sum(day.missed_steps for day in days) / steps, 2),
        "missed_work_percent": round(100 * sum(day.missed_work for day in days) / work, 2),
    }
    rows = [day.row for day in days]
    print("budget  length  load  graphs  scenarios  missed  steps missed  work missed")
    for row in rows:
        print(
            f"{row['budget']:6} {row['model_length']:7} {row['load']:5} {row['graphs']!s:>7} "
            f"{row['scenarios']:10} {row['missed']:7} {row['missed_steps_percent']:12}% "
            f"{row['missed_work_percent']:11}%"
        )
    print(f"all: {total}")
    result = {"device": DEVICE, "model": MODEL, "page": PAGE, "seed": arguments.seed,
              "steps": arguments.steps, "uncovered": arguments.uncovered, "total": total,
              "days": rows}  # fmt: skip
    name = "engine-day-uncovered.json" if arguments.uncovered else "engine-day.json"
    (RESULTS / name).write_text(json.dumps(result, indent=1) + "\n")
    return int(arguments.most is not None and total["missed_steps_percent"] > arguments.most)


if __name__ == "__main__":
    sys.exit(main())
