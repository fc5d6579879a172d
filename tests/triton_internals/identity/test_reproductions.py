"""Changes of code, environment, device and benchmark that an identity must see, or must not."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import triton
from support.identity_corpus import CORPUS
from support.kernels import load

from dejavu_cache.errors import UnreadableKernelError
from dejavu_cache.triton_internals.environment import nominal_memory
from dejavu_cache.triton_internals.source_hash import source_hash
from dejavu_cache.tuning.benchmark_methods import method_name

NEEDS_TRITON_3_5 = pytest.mark.skipif(
    not hasattr(triton, "constexpr_function"), reason="the kernels need Triton 3.5"
)


@NEEDS_TRITON_3_5
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("helpers", "@triton.jit(noinline=True)", "@triton.jit"),
        ("helpers", "by=2.0", "by=3.0"),
        ("functions", 'do_not_specialize=["n"]', "do_not_specialize=[]"),
        ("functions", "make(gelu, ", "make(relu, "),
        ("constants", "TWICE = 2", "TWICE = 4"),
        ("constants", "tl.constexpr(Mode.TWICE)", "tl.constexpr(Mode.THRICE)"),
        ("constants", "Plan(2, 2.5)", "Plan(3, 2.5)"),
        ("constants", "LOW = 5", "LOW = 6"),
        ("constants", "{1, 3}", "{1, 4}"),
        ("constants", '"offset": 9', '"offset": 8'),
        ("constants", '"value": 13', '"value": 14'),
        ("aggregate", "tl.constexpr(a + 1)", "tl.constexpr(a + 2)"),
        ("aggregate", "v * 2", "v * 3"),
        ("shadows", "N = tl.constexpr(5)", "N = tl.constexpr(6)"),
        ("gluon", "BlockedLayout([2]", "BlockedLayout([1]"),
    ],
)
def test_the_source_hash_changes(tmp_path: Path, name: str, old: str, new: str) -> None:
    source = CORPUS[name].source
    assert old in source
    before = source_hash(load(tmp_path / "kernels.py", source).k)
    assert source_hash(load(tmp_path / "kernels.py", source.replace(old, new, 1)).k) != before


def test_a_constant_that_cannot_be_read_closes_the_door(tmp_path: Path) -> None:
    source = """
        import threading, triton, triton.language as tl
        LOCK = tl.constexpr(threading.Lock())
        @triton.jit
        def k(x):
            tl.store(x, LOCK)
    """
    with pytest.raises(UnreadableKernelError, match="LOCK"):
        source_hash(load(tmp_path / "kernels.py", source).k)


def test_annotations_of_any_kind_can_be_read(tmp_path: Path) -> None:
    source = """
        import torch, triton, triton.language as tl
        from typing import Any, Callable, List, Literal, Optional, Tuple, Union
        @triton.jit
        def k(x: Any, y: Optional[torch.Tensor], shape: List[int], n: "int", mode: Literal["a"],
              sizes: Tuple[int, int], call: Callable[[int], int], z: Union[int, float]):
            tl.store(x, 1)
    """
    before = source_hash(load(tmp_path / "kernels.py", source).k)
    other = source.replace("Optional[", "List[").replace(" Optional,", "")
    assert source_hash(load(tmp_path / "kernels.py", other).k) != before


@pytest.mark.parametrize(
    ("low", "high", "name"),
    [(23.49, 23.64, 24), (39.49, 39.56, 40), (44.42, 44.53, 48), (79.15, 79.25, 79),
     (139.8, 140.4, 140)],
)  # fmt: skip
def test_drivers_do_not_split_a_gpu_model(low: float, high: float, name: int) -> None:
    assert nominal_memory(int(low * 2**30)) == nominal_memory(int(high * 2**30)) == name


class _Bench:
    def __init__(self, repetitions: int) -> None:
        self.repetitions = repetitions

    def __call__(self, call: Any, quantiles: Any) -> float:
        return 1.0


def _bench(call: Any, quantiles: Any, repetitions: int = 1) -> float:
    return 1.0


def test_benchmarks_of_one_name_are_told_apart() -> None:
    def name(bench: Any) -> str:
        return method_name(bench, False, False)

    assert name(partial(_bench, repetitions=1)) == name(partial(_bench, repetitions=1))
    assert name(partial(_bench, repetitions=1)) != name(partial(_bench, repetitions=2))
    assert name(_Bench(1)) == name(_Bench(1))
    assert name(_Bench(1)) != name(_Bench(2))
    assert name(lambda call, quantiles: 1.0) != name(lambda call, quantiles: 2.0)


def test_knobs_at_their_default_and_dumps_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    from dejavu_cache.triton_internals.compiler_settings import compiler_settings

    before = compiler_settings()
    for variable, value in (
        ("MLIR_ENABLE_DUMP", "1"),
        ("LLVM_ENABLE_TIMING", "1"),
        ("DISABLE_LLVM_OPT", "0"),
        ("TRITON_DEFAULT_FP_FUSION", "1"),
        ("TRITON_KERNEL_DUMP", "1"),
    ):
        monkeypatch.setenv(variable, value)
    assert compiler_settings() == before
    for variable, value in (
        ("PTXAS_OPTIONS", "-O1"),
        ("DISABLE_LLVM_OPT", "1"),
        ("TRITON_DEFAULT_FP_FUSION", "0"),
        ("TRITON_OF_TOMORROW", "1"),
    ):
        monkeypatch.setenv(variable, value)
        assert variable in compiler_settings()


def test_debug_and_instrumentation_count(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import knobs

    from dejavu_cache.triton_internals.compiler_settings import compiler_settings

    monkeypatch.setattr(knobs.runtime, "debug", True)
    monkeypatch.setattr(knobs.compilation, "instrumentation_mode", "consan", raising=False)
    settings = compiler_settings()
    # In Triton 3.4 the variable still sets this knob after the import.
    assert settings.get("runtime.debug", settings.get("TRITON_DEBUG")) == "true"
    assert settings["compilation.instrumentation_mode"] == "consan"
