"""Random launches of kernels that prune, through the hot path of a pretended GPU.

Each rule draws its answer from all that a pruning function is promised to see, by a digest of it,
so that any part that a key lacks shows as a config that was left out.
"""

import functools
import hashlib
import itertools
import random
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from dejavu_cache import Edges, Multiple, Pow2, ScenarioNotTuned, cached_autotune
from dejavu_cache.model.buckets import Bucket
from support.pretended_gpu import LAUNCHED

CONFIGS = [triton.Config({"B": block}, num_warps=4) for block in (16, 32, 64, 128)]
MEMORY = torch.zeros(1 << 14, dtype=torch.uint8)


def body(x, y, n, m, scale, flag: tl.constexpr, z=3, B: tl.constexpr = 16):  # type: ignore[no-untyped-def]
    tl.store(x, n)


def seen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride(), value.data_ptr() % 16
    return type(value), repr(value)


def left_by_rule(
    configs: Sequence[Any], arguments: Mapping[str, Any], names: Sequence[str], branches: bool
) -> list[Any]:
    """Return the configs that a digest of the named arguments chooses, at least one.

    Args:
        configs: the configs to choose from.
        arguments: the launch's arguments by name.
        names: the arguments that are read, in order.
        branches: whether the digest of those that are read decides whether the next one is.
    """
    digest = hashlib.sha256()
    for name in names:
        if name in arguments:
            digest.update(repr((name, seen(arguments[name]))).encode())
        if branches and digest.digest()[1] % 3 == 0:
            break
    bits = digest.digest()[0] % 15 + 1
    return [config for place, config in enumerate(configs) if bits >> place & 1]


def draw_tensor(rng: random.Random) -> torch.Tensor:
    dtype = rng.choice([torch.float32, torch.float16])
    start = rng.choice([0, 0, 4, 16])
    flat = MEMORY[start : start + 4096].view(dtype)
    return rng.choice(
        [
            flat[:512],
            flat[:256],
            flat[:1024:2],
            flat[:512].view(16, 32),
            flat[:512].view(16, 32).t(),
        ]
    )


def draw_arguments(rng: random.Random) -> dict[str, Any]:
    arguments = {
        "x": draw_tensor(rng),
        "y": rng.choice([None, draw_tensor(rng)]),
        "n": rng.choice([1, 16, 33, 48, 60, 64, 96, 2**31]),
        "m": rng.choice([1, True, 2, 16, 17, 32, 1.5]),
        "scale": rng.choice([0.0, -0.0, 1.0, 1, 2.5]),
        "flag": rng.choice([True, False, 1, "a", None, tl.float16]),
    }
    if rng.random() < 0.5:
        arguments["z"] = rng.choice([3, 3, 4])
    return arguments


def make_kernel(rng: random.Random) -> tuple[Any, Any]:
    """Return a kernel with a bucket, and its rule as a function of a launch's arguments."""
    names = rng.sample(["x", "y", "n", "m", "scale", "flag", "z"], rng.randint(1, 7))
    reads_all, branches = rng.random() < 0.3, rng.random() < 0.5

    def prune(configs: Sequence[Any], named: Mapping[str, Any], **more: Any) -> list[Any]:
        # Arguments by position and by name come apart, and a rule may look at one of them alone.
        arguments = ChainMap(more if len(names) % 2 else {}, named)  # type: ignore[arg-type]
        return left_by_rule(configs, dict(arguments) if reads_all else arguments, names, branches)

    key = rng.sample(["n", "m"], rng.randint(1, 2))
    rules: list[Bucket] = [Pow2(), Multiple(64), Edges((1, 50))]
    bucket = rng.choice(rules)
    kernel = decorate(
        {"early_config_prune": prune},
        key=key,
        buckets=dict.fromkeys(key, bucket),
        mode=rng.choice(["tune", "reuse", "strict"]),
        default=rng.choice([None, *CONFIGS]),
    )
    return kernel, prune


def decorate(pruning: dict[str, Any], **options: Any) -> Any:
    """Return a kernel that prunes, of which larger blocks are faster; nothing is computed."""

    def bench(call: Any, quantiles: Any) -> list[float]:
        call()
        return [1.0 / LAUNCHED[-1].constant("B")] * 3

    options = {"configs": CONFIGS, "key": ["n"], "do_bench": bench, "check": False, **options}
    return cached_autotune(prune_configs_by=pruning, **options)(triton.jit(body))


def launch_at_random(seed: int, count: int) -> dict[str, int]:
    """Return how many launches ran a config that was left out, were hot, or found nothing tuned."""
    rng = random.Random(seed)
    kernels = [make_kernel(rng) for _ in range(12)]
    pool = [draw_arguments(rng) for _ in range(8)]
    counts = {"left out": 0, "hot": 0, "not tuned": 0}
    by_triton: list[Any] = []
    JITFunction.run = note_calls(JITFunction.run, by_triton)
    for _ in range(count):
        kernel, prune = rng.choice(kernels)
        arguments = rng.choice(pool)
        if rng.random() < 0.5:  # what one argument changes is what a key may lack
            other = draw_arguments(rng)
            name = rng.choice([*other])
            arguments = {
                each: (other if each == name else arguments)[each]
                for each in other
                if each in arguments or each == name
            }
        positional = rng.choice([2, 6])
        args = list(arguments.values())[:positional]
        kwargs = dict(list(arguments.items())[positional:])
        left = prune(CONFIGS, dict(zip(arguments, args, strict=False)), **kwargs)
        by_triton.clear()
        try:
            kernel[(1,)](*args, **kwargs)
        except ScenarioNotTuned:
            counts["not tuned"] += kernel.mode.value == "strict"
            continue
        counts["hot"] += not by_triton
        block = LAUNCHED[-1].constant("B")
        counts["left out"] += block not in [config.kwargs["B"] for config in left]
    return counts


def some_of_n(configs: Sequence[Any], named: Mapping[str, Any], **_: Any) -> list[Any]:
    return [config for config in configs if named["n"] % config.kwargs["B"] == 0]


PRUNINGS: dict[str, Any] = {
    "early": {"early_config_prune": some_of_n},
    "model": {"perf_model": lambda n, B, **more: B, "top_k": 2},
}
CHANGES: dict[str, Any] = {
    "integer": lambda call, step: call(MEMORY[:64], None, 64, 2 * step + 3, 1.0, "a"),
    "float": lambda call, step: call(MEMORY[:64], None, 64, 3, 0.5 * step, "a"),
    "shape": lambda call, step: call(MEMORY[: 16 * step], None, 64, 3, 1.0, "a"),
    "by name": lambda call, step: call(MEMORY, None, 64, m=2 * step + 3, scale=1.0, flag="a"),
}


def launch_with_changes(count: int) -> dict[str, int]:
    """Return how many launches that differ in what pruning does not read left the hot path."""
    by_triton: list[Any] = []
    JITFunction.run = note_calls(JITFunction.run, by_triton)
    left_hot_path = {}
    for bucket, pruning, change in itertools.product([None, Pow2()], PRUNINGS, CHANGES):
        kernel = decorate(PRUNINGS[pruning], buckets={"n": bucket} if bucket else {})
        CHANGES[change](kernel[(1,)], 1)
        by_triton.clear()
        for step in range(2, count):
            CHANGES[change](kernel[(1,)], step)
        left_hot_path[f"{bucket} {pruning} {change}"] = len(by_triton)
    return left_hot_path


def launch_after_changes() -> list[int]:
    """Return the blocks that a kept launcher runs once a config more makes the kernel prune."""
    pruning = {"perf_model": lambda n, B, **more: n % B * 1000 - B, "top_k": 2}
    kernel = decorate(pruning, configs=CONFIGS[:2], buckets={"n": Pow2()})
    launch = kernel[(1,)]
    blocks = []
    for configs in (CONFIGS[:2], CONFIGS[:3], CONFIGS):
        kernel.configs = configs
        for n in (64, 80, 96, 64, 80, 96):
            launch(MEMORY, None, n, 3, 1.0, "a")
            blocks.append(LAUNCHED[-1].constant("B"))
    return blocks


def note_calls(run: Any, calls: list[Any]) -> Any:
    """Wrap `JITFunction.run`; the hot path takes it for Triton's own, by its module."""

    @functools.wraps(run)
    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(self)
        return run(self, *args, **kwargs)

    return noted
