"""Random launches of kernels that are decorated with both autotuners, and what is around them."""

import functools
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
import triton.language as tl
from triton import knobs

from dejavu_cache import cached_autotune

GPU = torch.cuda.is_available()

Surrounding = Callable[[Any, list[Any]], AbstractContextManager[None]]
"""Takes a `JITFunction`, and a list for what its hooks are given."""


@contextmanager
def launch_hooks(jitted: Any, seen: list[Any]) -> Iterator[None]:
    """Both launch hooks, which look at what they are given."""

    def enter(metadata: Any) -> None:
        seen.append(("enter", metadata.get()["name"]))

    def leave(metadata: Any) -> None:
        seen.append(("exit", metadata.get()["stream"]))

    with _hook("launch_enter_hook", enter), _hook("launch_exit_hook", leave):
        yield


@contextmanager
def exit_hook(jitted: Any, seen: list[Any]) -> Iterator[None]:
    """Set only the hook that runs after a launch."""
    with _hook(
        "launch_exit_hook", lambda metadata: seen.append(metadata and metadata.get()["name"])
    ):
        yield


@contextmanager
def _hook(name: str, function: Any) -> Iterator[None]:
    chain = getattr(knobs.runtime, name)
    chain.add(function)
    try:
        yield
    finally:
        chain.remove(function)


@contextmanager
def pre_run_hook(jitted: Any, seen: list[Any]) -> Iterator[None]:
    """Register a hook on the function, which sees the arguments as they were passed.

    How often a tune calls it is not specified.
    """

    def hook(*args: Any, **kwargs: Any) -> None:
        called = len(args), sorted(kwargs)
        if called not in seen:
            seen.append(called)

    jitted.add_pre_run_hook(hook)
    try:
        yield
    finally:
        jitted.pre_run_hooks.clear()


@contextmanager
def debug(jitted: Any, seen: list[Any]) -> Iterator[None]:
    """`TRITON_DEBUG`, switched on in the running process."""
    with patch.object(knobs.runtime, "debug", True):
        yield


@functools.cache
def _side_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@contextmanager
def another_stream(jitted: Any, seen: list[Any]) -> Iterator[None]:
    """Another current stream."""
    if not GPU:
        yield
        return
    stream = _side_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


@contextmanager
def emptied_cache(jitted: Any, seen: list[Any]) -> Iterator[None]:
    """Triton's own cache of compiled kernels is emptied."""
    jitted.device_caches.clear()
    yield


DEVICES = [f"cuda:{index}" for index in range(torch.cuda.device_count())][:2] if GPU else ["cpu"]
NUMBER = tl.constexpr(3)
CONFIGS = [
    triton.Config({"BLOCK": block}, num_warps=warps)
    for block, warps in ((64, 2), (128, 4), (256, 4))
]


def plain(x, out, n, extra, scale, FLAG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n) * scale + extra
    if FLAG:
        value += BLOCK
    tl.store(out + at, value, mask=at < n)


def defaults(
    x, out, n=64, bias=None, shift=3, KIND: tl.constexpr = "add", BLOCK: tl.constexpr = 16
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    if bias is not None:
        value += tl.load(bias + at, mask=at < n)
    if KIND == "add":
        value += shift
    tl.store(out + at, value, mask=at < n)


def annotated(x, out, n, m, k, scale, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * scale + m + k, mask=at < n)


annotated.__annotations__ |= {
    "n": "i64",
    "scale": "fp32",
}  # Triton's names of types mean nothing to Python


def reads_a_global(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + NUMBER, mask=at < n)


def tuned_in_the_middle(x, BLOCK: tl.constexpr, out, n):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + BLOCK, mask=at < n)


def takes_a_tuple(pair, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(pair[0] + at, mask=at < n) + pair[1], mask=at < n)


def warps_as_an_argument(x, out, n, num_warps: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + num_warps, mask=at < n)


KERNELS: dict[Callable[..., None], dict[str, Any]] = {
    plain: {},
    defaults: {},
    annotated: {"do_not_specialize": ["m"], "do_not_specialize_on_alignment": ["k"]},
    reads_a_global: {},
    tuned_in_the_middle: {},
    takes_a_tuple: {},
    warps_as_an_argument: {},
}


def one_by_size(configs: list[Any], named: dict[str, Any], **kwargs: Any) -> list[Any]:
    """Leaves one config, so that both autotuners choose the same without a benchmark."""
    return [configs[int({**named, **kwargs}.get("n", 64)) % len(configs)]]


class Pair:
    """One kernel under both autotuners."""

    def __init__(self, function: Callable[..., None], store: Path, **options: Any) -> None:
        self.name = function.__name__
        options = {
            "configs": CONFIGS,
            "prune_configs_by": {"early_config_prune": one_by_size},
            **options,
        }
        jitted = KERNELS.get(function, {})
        self.functions = [triton.jit(function, **jitted), triton.jit(function, **jitted)]
        # Triton benchmarks the only config that pruning leaves, and the cached autotuner does not.
        options.setdefault("do_bench", without_launching)
        self.theirs = triton.autotune(key=["n"], **options)(self.functions[0])
        self.ours = cached_autotune(key=["n"], store=store, **options)(self.functions[1])


def without_launching(kernel_call: Callable[[], Any], quantiles: Any) -> list[float]:
    return [1.0, 1.0, 1.0]


_CONFLICT = "Conflicting meta-parameters: BLOCK."
"""Triton's words, where it benchmarks, about an argument that the launch and a config set."""


@contextmanager
def changed_global(jitted: Any, seen: list[Any]) -> Iterator[None]:
    """Change a global that the kernel was compiled with."""
    with patch.dict(globals(), NUMBER=tl.constexpr(4)):
        yield


AROUND: dict[Surrounding, float] = {
    launch_hooks: 0.05,
    exit_hook: 0.03,
    pre_run_hook: 0.03,
    debug: 0.02,
    another_stream: 0.05,
    emptied_cache: 0.005,
    changed_global: 0.01,
}
"""Share of the random launches that each is around."""


class Case:
    """A random launch: arguments made anew for each autotuner, a grid, and the state around it."""

    def __init__(self, pair: Pair, rng: random.Random) -> None:
        self.pair = pair
        self.device = rng.choice(DEVICES)
        self.seed = rng.getrandbits(32)
        self.around = [around for around, share in AROUND.items() if rng.random() < share]

    def arguments(self) -> tuple[Any, tuple[Any, ...], dict[str, Any], list[torch.Tensor]]:
        """Grid, positional and keyword arguments, and the tensors that a launch may write."""
        rng = random.Random(self.seed)
        n = rng.choice([1, 16, 100, 256])
        dtype = rng.choice([torch.float32, torch.float32, torch.float16])

        def tensor() -> torch.Tensor:
            offset = rng.choice([0, 0, 0, 1])
            base = torch.arange(1032, device=self.device).to(dtype)
            return (
                torch.nn.Parameter(base[offset:], requires_grad=False)
                if rng.random() < 0.1
                else base[offset:]
            )

        out = torch.full((1024,), -7.0, device=self.device, dtype=dtype)
        named = self._common_arguments(rng, n, tensor, out)
        kwargs = self._spoil(rng, named)
        names = [name for name in kwargs if name in named]
        order = [name for name in self.pair.theirs.arg_names if name in names]
        arguments: list[Any] = []
        if rng.random() < 0.8:
            for name, expected in zip(order, self.pair.theirs.arg_names, strict=False):
                if name != expected or rng.random() < 0.02:
                    break
                arguments.append(kwargs.pop(name))
        if rng.random() < 0.01:
            arguments.append(5)
        return self._grid(rng, n), tuple(arguments), kwargs, [out]

    def _common_arguments(
        self, rng: random.Random, n: int, tensor: Any, out: Any
    ) -> dict[str, Any]:
        common: dict[str, Any] = {"x": tensor(), "out": out, "n": n}
        name = self.pair.name
        if name == "plain":
            extra = rng.choice([1, 2, 3, -5, 2**31 - 1])
            scale = rng.choice([1.0, 2.5, 3])
            return {
                **common,
                "extra": extra,
                "scale": scale,
                "FLAG": rng.choice([True, False, True, False, 1]),
            }
        if name == "defaults":
            maybe = {
                "bias": rng.choice([None, tensor()]),
                "shift": rng.choice([1, 3, 7]),
                "KIND": rng.choice(["add", ""]),
            }
            chosen = {key: value for key, value in maybe.items() if rng.random() < 0.5}
            return {
                **{key: common[key] for key in common if key != "n" or rng.random() < 0.7},
                **chosen,
            }
        if name == "annotated":
            return {
                **common,
                "m": rng.choice([1, 16, 5]),
                "k": rng.choice([1, 32, 9]),
                "scale": rng.choice([1.0, 0.5]),
            }
        if name == "takes_a_tuple":
            return {"pair": (common.pop("x"), rng.choice([1, 16, 5, 1.5])), **common}
        return common

    def _spoil(self, rng: random.Random, named: dict[str, Any]) -> dict[str, Any]:
        """Sometimes something is missing, too much, or of a kind that no kernel takes."""
        kwargs = dict(named)
        how = rng.random()
        if how < 0.01:
            kwargs.pop(rng.choice(list(kwargs)))
        elif how < 0.02:
            kwargs["nonsense"] = 1
        elif how < 0.03:
            kwargs["BLOCK"] = 64
        elif how < 0.04:
            kwargs["out"] = rng.choice([object(), "text", [1]])
        elif how < 0.05 and "FLAG" in kwargs:
            kwargs["FLAG"] = [1]
        elif how < 0.07:
            kwargs["debug"] = rng.choice([True, False])
        elif how < 0.08:
            kwargs["launch_pdl"] = True
        elif how < 0.09:
            kwargs["n"] = rng.choice([True, None])  # what no key may be has an error of ours
        elif how < 0.11 and "extra" in kwargs:
            kwargs["extra"] = rng.choice([True, 1.0, 2**40, 2**63, 2**70, torch.float32])
        return kwargs

    def _grid(self, rng: random.Random, n: int) -> Any:
        if rng.random() < 0.6:
            return lambda meta: (
                triton.cdiv(meta["n"], meta["BLOCK"]),
                *rng.choice([(), (1,), (1, 1)]),
            )
        return rng.choice(
            [
                (16,),
                (16,),
                (16, 1),
                [16, 1, 1],
                (16, 1, 1, 9),
                (0,),
                (),
                None,
                5,
                (1.5,),
                lambda meta: meta["nonsense"],
            ]
        )

    def run(self, which: str) -> tuple[Any, ...]:
        """Return a launch's compiled kernel, outputs, error, hooks' arguments and config."""
        kernel = getattr(self.pair, which)
        jitted = self.pair.functions[which == "ours"]
        grid, args, kwargs, outputs = self.arguments()
        seen: list[Any] = []
        compiled = error = None
        with ExitStack() as around:
            if GPU:
                around.enter_context(torch.cuda.device(self.device))
            for surrounding in self.around:
                around.enter_context(surrounding(jitted, seen))
            try:
                compiled = kernel[grid](*args, **kwargs)
            except Exception as caught:
                error = f"{type(caught).__name__}: {caught}"
                if _CONFLICT in error or "multiple values for keyword argument 'BLOCK'" in error:
                    error = _CONFLICT
            if GPU:
                torch.cuda.synchronize()
        ran = compiled and (compiled.hash, compiled.metadata.name, compiled.packed_metadata)
        written = tuple(tuple(tensor.tolist()) for tensor in outputs)
        return ran, written, error, tuple(seen), str(kernel.best_config) if error is None else None

    def __str__(self) -> str:
        """Return the launch as text: where, around which hooks, and with which arguments."""
        grid, args, kwargs, _ = self.arguments()
        names = [surrounding.__name__ for surrounding in self.around]
        return (
            f"{self.pair.name} on {self.device}, around it {names}, grid {grid}, "
            f"args {_format_values(args)}, kwargs {_format_values(kwargs)}"
        )


def _format_values(values: Any) -> str:
    def show(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return f"<{type(value).__name__} {value.dtype} at {value.data_ptr() % 16}>"
        return f"({', '.join(map(show, value))})" if isinstance(value, tuple) else repr(value)

    items = values.items() if isinstance(values, dict) else enumerate(values)
    return ", ".join(f"{name}: {show(value)}" for name, value in items)
