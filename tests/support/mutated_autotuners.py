"""Random changes to an autotuner between launches, on Triton's and on the cached one.

Programs read and write an autotuner's attributes: its cache, its configs, its function. Both kinds
are changed alike on a pretended GPU, and after each change both must launch the same config.
"""

import copy
import random
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from dejavu_cache import cached_autotune
from support.pretended_gpu import LAUNCHED

BLOCKS = (16, 32, 64, 128)
SIZES = (3, 16, 17)
CHANGES = (
    *("put", "pop", "clear", "update", "plain", "copy"),
    *("fn", "run", "hook", "configs", "single", "listed", "forget"),
    *("in place", "replaced", "warps"),
)
TENSORS = (torch.empty(64), torch.empty(64, dtype=torch.float16))


def body(x, n, m, B: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(x, n + m)


class Wrapper:
    """Object around a jit function that launches it."""

    def __init__(self, fn: Any) -> None:
        self.fn, self.arg_names = fn, fn.arg_names

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn.run(*args, **kwargs)


class Twin:
    """One autotuner, of either kind, with a benchmark that knows what it launched."""

    def __init__(self, decorate: Callable[..., Any], **options: Any) -> None:
        def bench(kernel_call: Any, quantiles: Any) -> list[float]:
            kernel_call()
            self.wrapped.clear()
            block = LAUNCHED[-1].constant("B")
            return [float((block * 7 + self.size * 13) % 31 + 1)] * 3

        self.size = 0
        self.wrapped: list[int] = []
        self.has_own_cache = False  # of the program, which says nothing when it changes
        configs = [triton.Config({"B": block}) for block in BLOCKS[:3]]
        decorator = decorate(configs=configs, key=["n"], do_bench=bench, **options)
        self.kernel = decorator(triton.jit(body))

    def launch(self, size: int, tensor: torch.Tensor, more: int) -> tuple[Any, ...]:
        self.size = size
        LAUNCHED.clear()
        self.wrapped.clear()
        self.kernel[(1,)](tensor, size, more)
        launched = LAUNCHED[-1]
        block = self.kernel.best_config.kwargs["B"]
        return launched.constant("B"), launched.hash, block, self.wrapped[-1:]

    def wrap_run(self) -> None:
        function = self.kernel.fn
        run = function.run

        def noted_run(*args: Any, **kwargs: Any) -> Any:
            self.wrapped.append(kwargs["B"])
            return run(*args, **kwargs)

        function.run = noted_run


def change(twin: Twin, draw: random.Random) -> str:
    """Change one attribute as a program would, and return what was done."""
    kernel = twin.kernel
    key = (draw.choice(SIZES), str(draw.choice(TENSORS).dtype))
    config = triton.Config({"B": draw.choice(BLOCKS)})
    choice = draw.choice(CHANGES)
    twin.has_own_cache |= choice in ("plain", "copy", "configs", "single", "listed")
    if choice == "put":
        kernel.cache[key] = config
    elif choice == "pop":
        kernel.cache.pop(key, None)
    elif choice == "clear":
        kernel.cache.clear()
    elif choice == "plain":
        kernel.cache = {key: config}
    elif choice == "copy":
        twin.kernel = copy.copy(kernel)
        twin.kernel.cache = dict(kernel.cache)
    elif choice == "update":
        kernel.cache.update({key: config})
    elif choice == "fn":
        kernel.fn = Wrapper(kernel.fn)
    elif choice == "run":
        twin.wrap_run()
    elif choice == "hook" and hasattr(kernel, "best_config") and not twin.has_own_cache:
        kernel.best_config.pre_hook = lambda named: twin.wrapped.append(named["n"])
    elif choice == "in place" and not twin.has_own_cache:
        next(iter(kernel.cache.values()), kernel.configs[0]).kwargs["B"] = config.kwargs["B"]
    elif choice == "replaced" and hasattr(kernel, "best_config") and not twin.has_own_cache:
        kernel.best_config.kwargs = config.kwargs
    elif choice == "warps" and hasattr(kernel, "best_config") and not twin.has_own_cache:
        kernel.best_config.num_warps = 4 + draw.choice((0, 4))
    elif choice in ("configs", "single", "listed"):
        blocks = draw.sample(BLOCKS, 1 if choice == "single" else 3)
        configs = [triton.Config({"B": block}) for block in blocks]
        if choice == "listed":
            kernel.configs[:] = configs
        else:
            kernel.configs = configs
        kernel.cache = {}
    elif choice == "forget":
        while isinstance(kernel.fn, Wrapper):
            kernel.fn = kernel.fn.fn
        kernel.fn.device_caches.clear()
        vars(kernel.fn).pop("run", None)
    return choice


def compare_at_random(seed: int, steps: int) -> list[str]:
    """Return where the cached autotuner launched something else than Triton's."""
    theirs = Twin(triton.autotune)
    ours = Twin(cached_autotune, store="memory://", check=False)
    draw, history, differences = random.Random(seed), [], []
    for _ in range(steps):
        if draw.random() < 0.3:
            state = draw.getstate()
            change(theirs, draw)
            draw.setstate(state)
            history.append(change(ours, draw))
        launch = draw.choice(SIZES), draw.choice(TENSORS), draw.choice((1, 5))
        expected, seen = theirs.launch(*launch), ours.launch(*launch)
        history.append(f"n={launch[0]}")
        if expected != seen:
            differences.append(f"seed {seed}, {history[-8:]}: Triton {expected}, cached {seen}")
            return differences
    return differences
