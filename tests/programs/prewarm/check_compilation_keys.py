"""Check that recorded launches give the compilation keys that Triton would look for."""

from __future__ import annotations

import sys
from typing import Any, cast
from urllib import parse

import products
import triton
import triton.language as tl
from support.launch_binding import Pointer, bind_launch
from triton.runtime import driver

from dejavu_cache.runtime.launch_recorder import CompiledLaunch
from dejavu_cache.triton_internals.compilation import launch_of, recreate_compilation, target_of
from dejavu_cache.triton_internals.hooks import DevicelessDriver
from dejavu_cache.triton_internals.identity import jit_function

SPLIT = tl.constexpr(3)


class Functions:
    @triton.jit
    def square(x: Any) -> Any:  # noqa: N805
        return x * x


@triton.jit
def plain(x, y, n, scale, flag, mask, BLOCK: tl.constexpr, segments):
    tl.store(x, tl.load(y) * scale + n + segments + SPLIT)


@triton.jit
def odd(
    x, pair, function: tl.constexpr, kind: tl.constexpr, factor: tl.constexpr, BLOCK: tl.constexpr
):
    tl.store(x, function(tl.load(x)).to(kind) + pair[0])


def check(fn: Any, target: Any, config: Any, *args: Any, **options: Any) -> Any:
    own = config.all_kwargs() if config else {}
    source, metadata = bind_launch(fn, target, args, {**options, **own})
    launch = launch_of(source, metadata, config)
    assert launch is not None, f"{fn} was not kept"
    again = type(launch).model_validate_json(launch.model_dump_json())
    assert recreate_compilation(fn, again, own, target).key == metadata.hash
    return again


def main(backend: str, arch: str) -> None:
    target = target_of(f"sm_{arch}" if backend == "cuda" else arch)
    driver.set_active(DevicelessDriver(target))
    x, y = Pointer("bfloat16"), Pointer("float32", 4097)
    small = triton.Config({"BLOCK": 64, "segments": 1}, num_warps=8, num_stages=2)
    large = triton.Config({"BLOCK": 128, "segments": 32}, num_warps=2, maxnreg=None)
    launch = check(plain, target, small, x, y, 1000, 0.5, True, None)
    # The launch with another config is what launching with that config would have been.
    _, expected = bind_launch(plain, target, (x, y, 1000, 0.5, True, None), large.all_kwargs())
    assert recreate_compilation(plain, launch, large.all_kwargs(), target).key == expected.hash
    for n in (1, 16, 2**40):
        check(plain, target, large, x, y, n, float("1e30"), False, x)
    check(plain, target, None, x, y, 3, 2.0, False, None, 32, 16, num_warps=2)
    tied = triton.Config({"BLOCK": 16})
    pair: Any = parse.DefragResult  # any tuple with names
    square = Functions.square
    check(odd, target, tied, x, (5, y), square, tl.float16, 0.5)
    check(odd, target, tied, x, pair(16, 2.0), square, (tl.float32, pair(1, None)), "json:no")
    check_recorded_launch(target)
    if backend == "cuda" and arch == "90" and triton.__version__ >= "3.6":
        gluon(target)


def check_recorded_launch(target: Any) -> None:
    """Check that a recorded launch of a tuned kernel is stored without its config."""
    tuner, store = products.add_one, cast("Any", None)
    fn, config = jit_function(tuner), tuner.configs[4]
    source, metadata = bind_launch(
        fn, target, (Pointer("float16"), Pointer("float16"), 7), config.all_kwargs()
    )
    launch = CompiledLaunch(source, vars(metadata), tuner, store, store).as_recorded()
    assert launch == launch_of(source, metadata, config)
    assert launch is not None
    assert "BLOCK" not in launch.signature
    source, metadata = bind_launch(
        products.halve, target, (Pointer("float16"), 128), {"num_warps": 1}
    )
    launch = CompiledLaunch(source, vars(metadata), None, store, store).as_recorded()
    assert launch is not None
    assert (launch.constants, launch.options) == ({"BLOCK": 128}, {"num_warps": 1})


def gluon(target: Any) -> None:
    """Check the attention kernel for Hopper, with its tensor descriptors."""
    import torch
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from dejavu_cache.attention.kernels.hopper_kernel import hopper_kernel

    fn = hopper_kernel.fn
    layout = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    cache = torch.empty(256, 128, dtype=torch.bfloat16)
    described = TensorDescriptor(cache, [256, 128], [128, 1], [16, 64], layout)
    values: dict[str, Any] = dict.fromkeys(fn.arg_names, 7)
    numbers = Pointer("int32")
    values.update(units=numbers, arrivals=numbers, block_table=numbers, scratch=Pointer("float32"))
    values.update(
        out=cache, q=cache, keys=described, values=described, sinks=None, softmax_scale=0.1
    )
    values.update(k_cache=None, v_cache=None, new_keys=None, new_values=None, new_slots=None)
    values.update(PAIRS=1, KV_HEADS=8, GROUP=4, HEAD=128, HEAD_PADDED=128, PAGE=16, BOX=16)
    values.update(softcap=0.0, WINDOW=-1, SOFTCAP=False, OVERLAP=False, HALVES=2)
    config = triton.Config({"TILE": 64, "STAGES": 2}, num_warps=4)
    args = tuple(values[name] for name in fn.arg_names if name not in config.kwargs)
    launch = check(fn, target, config, *args)
    assert any(type_.startswith("tensordesc") for type_ in launch.signature.values())


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        main(*argument.split(":"))
