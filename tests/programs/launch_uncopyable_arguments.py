"""Launch kernels on arguments that cannot be copied; print which launches raised, as JSON."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from support import pretended_gpu

import dejavu_cache
from dejavu_cache import CheckOptions, cached_autotune

assert pretended_gpu

CONFIGS = [triton.Config({"B": block}) for block in (16, 32)]


class Packed(torch.Tensor):
    """Refuses what it has no meaning for, as classes of quantized weights do."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"{func} of packed weights")


class Strict(torch.Tensor):
    """Refuses torch's functions; has an address and a dtype."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("data_ptr", "__get__"):
            return super().__torch_function__(func, types, args, kwargs or {})
        raise NotImplementedError(f"{func} of packed weights")


class Address:
    """An address and a dtype, and nothing else."""

    dtype = torch.float32

    def data_ptr(self) -> int:
        return 1 << 20


def fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(torch.ones(64))


ARGUMENTS: dict[str, Callable[[], Any]] = {
    "dispatch": lambda: torch.ones(64).as_subclass(Packed),
    "function": lambda: torch.ones(64).as_subclass(Strict),
    "negative": lambda: torch.conj(torch.ones(64, dtype=torch.complex64)).imag,
    "expanded": lambda: torch.ones(1).expand(64),
    "address": Address,
    "fake": fake,
}


def bench(call: Callable[[], Any], quantiles: Any = None) -> list[float]:
    call()
    return [1.0] * 3


def copy(x: Any, o: Any, n: Any, B: tl.constexpr) -> None:
    off = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(o + off, tl.load(x + off, mask=off < n), mask=off < n)


def decorators() -> dict[str, Callable[[], Any]]:
    def decorate_cached(**options: Any) -> Any:
        return cached_autotune(CONFIGS, ["n"], do_bench=bench, store=tempfile.mkdtemp(), **options)(
            triton.jit(copy)
        )

    def decorate_adopted() -> Any:
        dejavu_cache.install()
        try:
            return triton.autotune(CONFIGS, ["n"], do_bench=bench)(triton.jit(copy))
        finally:
            dejavu_cache.uninstall()

    return {
        "tune": decorate_cached,
        "ignored": lambda: decorate_cached(check=CheckOptions(ignore=["x"])),
        "declared": lambda: decorate_cached(check=CheckOptions(outputs=["x", "o"])),
        "unchecked": lambda: decorate_cached(check=False),
        "reuse": lambda: decorate_cached(mode="reuse"),
        "adopted": decorate_adopted,
    }


def main() -> None:
    raised = {}
    for argument, make in ARGUMENTS.items():
        for kind, decorate in decorators().items():
            for place in ("x", "o"):
                values = {"x": torch.zeros(64), "o": torch.zeros(64), place: make()}
                try:
                    decorate()[(4,)](values["x"], values["o"], 64)
                except Exception as error:
                    raised[f"{argument} as {place}, {kind}"] = f"{type(error).__name__}: {error}"
    print(json.dumps(raised))


if __name__ == "__main__":
    main()
