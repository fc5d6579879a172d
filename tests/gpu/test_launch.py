"""On a real GPU, `cached_autotune` and `triton.autotune` launch alike.

`LAUNCHES` sets how many random launches are compared (5,000). At the end of the run, every
difference is printed with the launch that made it.
"""

from __future__ import annotations

import functools
import os
import random
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.runtime.jit import JITFunction

from dejavu_cache import Pow2, cached_autotune

pytestmark = pytest.mark.gpu

LAUNCHES = int(os.environ.get("LAUNCHES", "5000"))
GPU = torch.cuda.is_available()
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
        options.setdefault("do_bench", without_timing)
        self.theirs = triton.autotune(key=["n"], **options)(self.functions[0])
        self.ours = cached_autotune(key=["n"], store=store, **options)(self.functions[1])


def without_timing(kernel_call: Callable[[], Any], quantiles: Any) -> list[float]:
    kernel_call()
    return [1.0, 1.0, 1.0]


class Case:
    """A random launch: arguments made anew for each autotuner, a grid, and the state around it."""

    def __init__(self, pair: Pair, rng: random.Random) -> None:
        self.pair = pair
        self.device = rng.choice(DEVICES)
        self.seed = rng.getrandbits(32)
        self.around = [name for name, share in AROUND.items() if rng.random() < share]

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
            kwargs["n"] = rng.choice([True, None, 2**70])
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
            for name in self.around:
                around.enter_context(globals()[name](jitted, seen))
            try:
                compiled = kernel[grid](*args, **kwargs)
            except Exception as caught:
                error = f"{type(caught).__name__}: {caught}"
            if GPU:
                torch.cuda.synchronize()
        ran = compiled and (compiled.hash, compiled.metadata.name, compiled.packed_metadata)
        written = tuple(tuple(tensor.tolist()) for tensor in outputs)
        return ran, written, error, tuple(seen), str(kernel.best_config) if error is None else None


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
    if hasattr(chain, "calls"):
        chain.add(function)
        try:
            yield
        finally:
            chain.remove(function)
    else:
        setattr(knobs.runtime, name, function)
        try:
            yield
        finally:
            setattr(knobs.runtime, name, chain)


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
def changed_global(jitted: Any, seen: list[Any]) -> Iterator[None]:
    """Change a global that the kernel was compiled with."""
    before = globals()["NUMBER"]
    globals()["NUMBER"] = tl.constexpr(4)
    try:
        yield
    finally:
        globals()["NUMBER"] = before


@contextmanager
def debug(jitted: Any, seen: list[Any]) -> Iterator[None]:
    """`TRITON_DEBUG`, switched on in the running process."""
    knobs.runtime.debug = True
    try:
        yield
    finally:
        knobs.runtime.debug = False


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


AROUND = {
    "launch_hooks": 0.05,
    "exit_hook": 0.03,
    "pre_run_hook": 0.03,
    "changed_global": 0.01,
    "debug": 0.02,
    "another_stream": 0.05,
    "emptied_cache": 0.005,
}


@pytest.fixture
def through_triton(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Count the launches that go through `JITFunction.run`, by the function's id."""
    calls: Counter[int] = Counter()
    run = JITFunction.run

    @functools.wraps(run)
    def run_and_count(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls[id(self)] += 1
        return run(self, *args, **kwargs)

    monkeypatch.setattr(JITFunction, "run", run_and_count)
    return calls


def test_random_launches_cannot_be_told_apart(tmp_path: Path, through_triton: Counter[int]) -> None:
    """Compare compiled kernels, results, errors, hooks and configs of random launches."""
    rng = random.Random(0)
    pairs = [Pair(function, tmp_path / function.__name__) for function in KERNELS]
    different, errors = [], Counter[str]()
    for index in range(LAUNCHES):
        case = Case(rng.choice(pairs), rng)
        try:
            theirs, ours = case.run("theirs"), case.run("ours")
        except Exception:
            different.append(
                f"launch {index} of {case.pair.name}: the comparison failed\n"
                f"{traceback.format_exc()}"
            )
            continue
        errors[str(theirs[2])[:60]] += 1
        if theirs != ours:
            grid, args, kwargs, _ = case.arguments()
            parts = zip(
                ("kernel", "written", "error", "hooks", "config"), theirs, ours, strict=True
            )
            shown = "".join(
                f"\n  {part}: theirs {str(a)[:300]}\n  {part}: ours   {str(b)[:300]}"
                for part, a, b in parts
                if a != b
            )
            different.append(
                f"launch {index} of {case.pair.name} on {case.device}, "
                f"around it {case.around}, grid {grid}, "
                f"args {_format_values(args)}, kwargs {_format_values(kwargs)}{shown}"
            )
    ours_through_triton = sum(through_triton[id(pair.functions[1])] for pair in pairs)
    print(
        f"\n{LAUNCHES} launches, {len(different)} different; "
        f"ours through Triton: {ours_through_triton}"
    )
    print("errors that both raised:", dict(errors))
    print("\n".join(different[:40]))
    assert not different
    assert ours_through_triton < LAUNCHES / 2, "the hot path was hardly taken"


def _format_values(values: Any) -> str:
    def show(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return f"<{type(value).__name__} {value.dtype} at {value.data_ptr() % 16}>"
        return f"({', '.join(map(show, value))})" if isinstance(value, tuple) else repr(value)

    items = values.items() if isinstance(values, dict) else enumerate(values)
    return ", ".join(f"{name}: {show(value)}" for name, value in items)


def _launch(kernel: Any, n: int, device: str = DEVICES[0], **kwargs: Any) -> torch.Tensor:
    x = torch.arange(n, device=device).float()
    out = torch.full_like(x, -7.0)
    kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n, **kwargs)
    return out


def test_a_resolved_launch_does_not_pass_through_triton(
    tmp_path: Path, through_triton: Counter[int]
) -> None:
    """Neither bare, with buckets, with one config, nor where a fallback runs untuned."""
    options: dict[str, Any] = {"configs": CONFIGS, "key": ["n"], "do_bench": without_timing}
    ways: dict[str, dict[str, Any]] = {
        "exact": {},
        "buckets": {"buckets": {"n": Pow2()}},
        "one config": {"configs": CONFIGS[:1]},
        "a fallback": {"mode": "reuse"},
    }
    for name, way in ways.items():
        kernel = cached_autotune(**{**options, "store": tmp_path / name, **way})(
            triton.jit(reads_a_global)
        )
        for n in (100, 101):
            _launch(kernel, n)
        before = through_triton[id(kernel.fn)]
        for n in (100, 101) * 5:
            out = _launch(kernel, n)
            assert not GPU or torch.equal(out, torch.arange(n, device=out.device) + 3.0)
        assert through_triton[id(kernel.fn)] == before, name


def test_a_config_with_a_hook_sees_its_arguments_and_may_change_them(tmp_path: Path) -> None:
    """As persistent matmuls set a descriptor's block in a hook, launches use what it left."""
    seen: list[int] = []

    def hook(args: dict[str, Any]) -> None:
        seen.append(args["n"])
        args["x"].block_shape[0] = args["BLOCK"]

    from triton.tools.tensor_descriptor import TensorDescriptor

    def copies(x, out, n, BLOCK: tl.constexpr):
        start = tl.program_id(0) * BLOCK
        tl.store(out + start + tl.arange(0, BLOCK), x.load([start]))

    configs = [triton.Config({"BLOCK": block}, pre_hook=hook) for block in (64, 128)]
    kernel = cached_autotune(configs, ["n"], do_bench=without_timing, store=tmp_path)(
        triton.jit(copies)
    )
    x = torch.arange(1024, device=DEVICES[0]).float()
    counts = []
    for _ in range(3):
        out = torch.full_like(x, -7.0)
        kernel[lambda meta: (1024 // meta["BLOCK"],)](
            TensorDescriptor.from_tensor(x, [16]), out, 1024
        )
        assert not GPU or torch.equal(out, x)
        counts.append(len(seen))
    assert [counts[1] - counts[0], counts[2] - counts[1]] == [1, 1]


def test_descriptors_without_a_hook_are_launched_as_triton_does(tmp_path: Path) -> None:
    """Another block is another kernel."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    def copies(x, out, n, BLOCK: tl.constexpr, SIZE: tl.constexpr):
        at = tl.arange(0, SIZE)
        for start in range(tl.program_id(0) * BLOCK, tl.program_id(0) * BLOCK + BLOCK, SIZE):
            tl.store(out + start + at, x.load([start]))

    kernel = cached_autotune(CONFIGS, ["n"], do_bench=without_timing, store=tmp_path)(
        triton.jit(copies)
    )
    x = torch.arange(1024, device=DEVICES[0]).float()
    for size in (16, 64, 16, 64, 16):
        out = torch.full_like(x, -7.0)
        kernel[lambda meta: (1024 // meta["BLOCK"],)](
            TensorDescriptor.from_tensor(x, [size]), out, 1024, SIZE=size
        )
        assert not GPU or torch.equal(out, x)


def test_threads_launch_side_by_side(tmp_path: Path) -> None:
    """Eight threads, two scenarios each: nobody gets another's arguments."""
    kernel = Pair(reads_a_global, tmp_path).ours
    wrong: list[str] = []

    def work(n: int) -> None:
        try:
            for _ in range(200):
                for size in (n, n + 16):
                    out = _launch(kernel, size)
                    if GPU and not torch.equal(out, torch.arange(size, device=out.device) + 3.0):
                        wrong.append(f"{size}: {out[:4]}")
        except Exception:
            wrong.append(traceback.format_exc())

    threads = [threading.Thread(target=work, args=(32 * (1 + index % 4),)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]
